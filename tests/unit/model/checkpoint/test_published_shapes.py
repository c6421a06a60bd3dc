"""The dense Qwen3-VL models as they are published, on the meta device: sizes, ties, what trains."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.errors import CheckpointError
from coordexp.model.loading import load
from coordexp.model.lora import apply_tuning
from coordexp.model.param_groups import build_param_groups, describe
from tests.support.real_vocabulary import COORD_IDS, PUBLISHED

# Parameters as the hub counts them; tables; text layers; vision blocks; hidden size.
FACTS = {
    "2B": (2_127_532_032, 1, 28, 24, 2048),
    "4B": (4_437_815_808, 1, 36, 24, 2560),
    "8B": (8_767_123_696, 2, 36, 27, 4096),
}


def _on_meta(size: str) -> Qwen3VLForConditionalGeneration:
    config = Qwen3VLConfig.from_dict(copy.deepcopy(PUBLISHED[size]))
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(config)
    model.tie_weights()
    return model


@pytest.mark.parametrize("size", PUBLISHED)
def test_size_and_tie(size):
    num_parameters, num_tables, num_layers, num_blocks, hidden = FACTS[size]
    model = _on_meta(size)
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert embedding.shape == head.shape == (151_936, hidden)
    assert (head is embedding) is (num_tables == 1)
    assert len(model.model.language_model.layers) == num_layers
    assert len(model.model.visual.blocks) == num_blocks
    assert model.config.text_config.rope_parameters["rope_theta"] == 5_000_000
    assert model.config.text_config.rope_parameters["mrope_section"] == [24, 20, 20]


@pytest.mark.parametrize("size", PUBLISHED)
def test_what_trains(size):
    """Seven linear layers in each text layer; four in each block and two in each merger of the vision tower."""
    _, _, num_layers, num_blocks, hidden = FACTS[size]
    model = _on_meta(size)
    model.resize_token_embeddings(COORD_IDS.stop, mean_resizing=False)
    install_coord_offset_adapter(model, coord_ids=COORD_IDS, tie_head=False)
    tuned = apply_tuning(model, tuning="lora", rank=8, alpha=16.0, dropout=0.0, vision=True, seed=0)
    groups = build_param_groups(
        tuned, optimizer="multimodal_coord_offset", learning_rate=1e-4, vit_lr=1e-5, aligner_lr=1e-5
    )
    rows = {row.name: (row.num_tensors, row.num_parameters) for row in describe(groups)}
    assert rows["llm"][0] == 2 * 7 * num_layers
    assert rows["vision"][0] == 2 * 4 * num_blocks
    assert rows["aligner"][0] == 2 * 2 * 4
    assert rows["coord_embed_offset"] == rows["coord_head_offset"] == (1, 1000 * hidden)
    assert all(parameter.is_meta for parameter in tuned.parameters())


def _as(directory: Path, target: Path, **changes: object) -> Path:
    shutil.copytree(directory, target)
    (target / "config.json").write_text(json.dumps(PUBLISHED["4B"] | changes))
    return target


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen3"}, r"config.json: model_type is 'qwen3'; expected qwen3_vl"),
        ({"model_type": None}, r"config.json: model_type is missing; expected qwen3_vl"),
    ],
)
def test_other_architectures_are_refused(make_base, tmp_path, changes, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        load(_as(make_base(), tmp_path / "other", **changes))
    assert "\n" not in str(caught.value)


def test_a_configuration_of_another_size_is_refused_before_its_weights_are_made(make_base, tmp_path, monkeypatch):
    """Otherwise transformers fills 4.4 billion numbers with random ones, and warns only afterwards."""
    monkeypatch.setattr(Qwen3VLForConditionalGeneration, "from_pretrained", lambda *_, **__: pytest.fail("made"))
    other = _as(make_base(), tmp_path / "other")
    images = other / "preprocessor_config.json"
    images.write_text(json.dumps(json.loads(images.read_text()) | {"patch_size": 16}))
    with pytest.raises(CheckpointError, match=r"other: \d+ weights are missing, e.g. model"):
        load(other)
    shutil.copy(make_base() / images.name, images)
    (other / "config.json").write_text(
        (make_base() / "config.json").read_text().replace('"hidden_size": 128', '"hidden_size": 64')
    )
    with pytest.raises(CheckpointError, match=r"other: \d+ weights are mismatched, e.g. .* is \[.*\], expected \["):
        load(other)


def test_code_in_a_checkpoint_is_not_run(make_base, tmp_path):
    target = tmp_path / "base"
    shutil.copytree(make_base(), target)
    (target / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Evil: pass\n")
    for name, kinds in (
        ("config.json", ("AutoConfig", "AutoModelForImageTextToText")),
        ("tokenizer_config.json", ("AutoTokenizer",)),
        ("preprocessor_config.json", ("AutoImageProcessor", "AutoProcessor")),
    ):
        settings = json.loads((target / name).read_text())
        settings["auto_map"] = dict.fromkeys(kinds, "evil.Evil")
        (target / name).write_text(json.dumps(settings))
    assert load(target).vocab is not None
    assert not (tmp_path / "ran").exists()

"""Every family at its published sizes on the meta device: parameters, ties, ids, what is adapted."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.coord_tokens.vocab import expand_tokenizer
from coordexp.data.prompt import Prompt
from coordexp.errors import TokenizerError
from coordexp.model.families import FAMILIES
from coordexp.model.lora import apply_tuning
from coordexp.model.param_groups import build_param_groups, describe
from coordexp.model.processor import Processor
from coordexp.train.setup.base import check_base
from tests.support.family_shapes import VOCABULARIES, family_config, write_family_files
from tests.support.real_vocabulary import PUBLISHED
from tests.support.training import small_config

# Parameters; of the text, the adapted layers of each layer: attention, delta net, feed-forward or shared expert.
# A delta net's are in_proj_qkv, _z, _b, _a and out_proj. Of the vision tower: those of a block, and of its mergers.
FACTS = {
    "Qwen3-VL-2B": (2_127_532_032, {"attention": 28 * 4, "mlp": 28 * 3}, 24 * 4 + 4 * 2),
    "Qwen3-VL-4B": (4_437_815_808, {"attention": 36 * 4, "mlp": 36 * 3}, 24 * 4 + 4 * 2),
    "Qwen3-VL-8B": (8_767_123_696, {"attention": 36 * 4, "mlp": 36 * 3}, 27 * 4 + 4 * 2),
    "Qwen3.5-0.8B": (852_985_920, {"attention": 6 * 4, "delta": 18 * 5, "mlp": 24 * 3}, 12 * 4 + 2),
    "Qwen3.5-9B": (9_409_813_744, {"attention": 8 * 4, "delta": 24 * 5, "mlp": 32 * 3}, 27 * 4 + 2),
    "Qwen2.5-VL-3B": (3_754_622_976, {"attention": 36 * 4, "mlp": 36 * 3}, 32 * 5 + 2),
    "Qwen2.5-VL-7B": (8_292_166_656, {"attention": 28 * 4, "mlp": 28 * 3}, 32 * 5 + 2),
    "Qwen3-VL-30B-A3B": (31_070_754_032, {"attention": 48 * 4}, 27 * 4 + 4 * 2),
    "Qwen3.5-35B-A3B": (35_107_181_936, {"attention": 10 * 4, "delta": 30 * 5, "mlp": 40 * 3}, 27 * 4 + 2),
}


def _published(name: str) -> dict[str, object]:
    size = name.removeprefix("Qwen3-VL-")
    return PUBLISHED[size] if size in PUBLISHED else family_config(name)


def _on_meta(name: str, folder):
    (folder / "config.json").write_text(json.dumps(_published(name)))
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    model.tie_weights()
    return model


@pytest.mark.parametrize("tie_head", [True, False])
@pytest.mark.parametrize("name", FACTS)
def test_size_ties_and_what_trains(name, tie_head, tmp_path):
    num_parameters, adapted, num_vision = FACTS[name]
    model = _on_meta(name, tmp_path)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters
    assert tied is _published(name)["tie_word_embeddings"]
    _, first, num_rows = VOCABULARIES[model.config.model_type]
    hidden = model.config.get_text_config().hidden_size
    assert len(model.get_input_embeddings().weight) == (152_064 if name == "Qwen2.5-VL-7B" else num_rows)
    ids = range(first, first + 1000)
    model.resize_token_embeddings(max(num_rows, ids.stop), mean_resizing=False)
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) is tied
    install_coord_offset_adapter(model, coord_ids=ids, tie_head=tie_head)
    tuned = apply_tuning(model, tuning="lora", rank=8, alpha=16.0, dropout=0.0, vision=True, seed=0)
    found = {"attention": 0, "delta": 0, "mlp": 0, "vision": 0}
    for layer, _ in tuned.named_modules():
        if layer.endswith(".lora_A"):
            kind = next((k for k, part in _PARTS.items() if part in layer), None)
            assert kind is not None, layer
            found[kind] += 1
    assert found == {"attention": 0, "delta": 0, "mlp": 0} | adapted | {"vision": num_vision}
    frozen = FAMILIES[model.config.model_type].frozen
    trained = [n for n, parameter in tuned.named_parameters() if parameter.requires_grad]
    assert all(frozen.isdisjoint(n.split(".")) for n in trained)
    groups = build_param_groups(tuned, optimizer="multimodal_coord_offset", learning_rate=1e-4)
    rows = {row.name: row.num_parameters for row in describe(groups)}
    assert rows["coord_embed_offset"] == 1000 * hidden
    assert rows.get("coord_head_offset", 0) == (0 if tie_head else 1000 * hidden)
    assert all(parameter.is_meta for parameter in tuned.parameters())


_PARTS = {"vision": ".visual.", "attention": ".self_attn.", "delta": ".linear_attn.", "mlp": ".mlp."}


@pytest.mark.slow  # 250,000 entries
@pytest.mark.parametrize("model_type", ["qwen2_5_vl", "qwen3_5"])
def test_ids_come_from_the_tokenizer_and_a_mismatch_says_them(model_type, tmp_path):
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(family_config(f"small {model_type}")))
    write_family_files(folder, model_type, tmp_path / "tokenizer")
    num_entries, first, _ = VOCABULARIES[model_type]
    tokenizer = Processor.from_directory(folder).tokenizer
    assert len(tokenizer) == num_entries
    prompt = tokenizer.decode(Prompt.build(tokenizer).after)
    assert prompt.endswith("<think>\n\n</think>\n\n" if model_type == "qwen3_5" else "<|im_start|>assistant\n")
    vocab = expand_tokenizer(tokenizer, structure="native")
    assert (vocab.wildcard_id, vocab.coord_ids) == (first - 1, range(first, first + 1000))
    config = small_config(folder, tmp_path / "runs")
    tree = config.model_dump(mode="json")
    tree["custom"]["coord_offset"]["ids"] = {"start": 151_670, "end": 152_669}  # right for Qwen3-VL
    findings = list(check_base(type(config).model_validate(tree), folder, weights=False))
    (failure,) = (str(finding) for finding in findings if finding.verdict == "failure")
    for fact in ("151670..152669", str(folder), f"{first}..{first + 999}"):
        assert fact in failure


@pytest.mark.slow
def test_a_tokenizer_of_another_family_is_refused(tmp_path):
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(family_config("small qwen3_5")))
    write_family_files(folder, "qwen3_vl", tmp_path / "tokenizer")
    with pytest.raises(TokenizerError, match=r"<\|image_pad\|>.*151655.*248056.*config\.json"):
        _raise_first(check_base(small_config(folder, tmp_path / "runs"), folder, weights=False))


def _raise_first(check):
    for finding in check:
        if finding.verdict == "failure":
            raise finding.error

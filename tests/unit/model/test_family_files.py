"""Files of each family as they are met: two layouts of experts, fused or one by one, and what is no weight."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from coordexp.cli.main import main
from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.adapter import TrainedBase, name_base, save_adapter
from coordexp.model.checkpoint.stored_model import StoredModel
from coordexp.model.expand import expand_to
from coordexp.model.families import FAMILIES
from coordexp.model.loading import load
from coordexp.model.lora import apply_tuning
from coordexp.model.tiny.parts import write_tiny
from tests.support.checkpoints import WEIGHTS, edited


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return a tiny checkpoint of a family, written once."""
    root = tmp_path_factory.mktemp("tiny")

    def make(model_type: str) -> Path:
        if not (root / model_type).exists():
            write_tiny(FAMILIES[model_type], root / model_type)
        return root / model_type

    return make


def same_weights(ours: Path, theirs: Path) -> None:
    found, expected = load(ours).model.state_dict(), load(theirs).model.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_experts_of_either_layout_are_the_same_model_and_expand(tiny, tmp_path):
    def transpose(tensors: dict[str, torch.Tensor]) -> None:
        experts = [name for name in tensors if ".mlp.experts." in name]
        assert experts
        for name in experts:
            assert tensors[name].shape[1] != tensors[name].shape[2]  # else nothing tells the layouts apart
            tensors[name] = tensors[name].transpose(1, 2)

    base = tiny("qwen3_vl_moe")
    vendors = edited(base, tmp_path / "vendors", transpose)
    same_weights(vendors, base)
    for source in (vendors, base):
        expand_to(source, tmp_path / f"{source.name}-expanded")
    same_weights(tmp_path / "vendors-expanded", tmp_path / f"{base.name}-expanded")


def test_experts_fused_or_each_in_its_own_are_the_same_model_and_expand(tiny, tmp_path):
    alone = tiny("qwen3_5_moe")
    assert any(".experts.0." in name for name in load_file(alone / WEIGHTS))

    def fuse(tensors: dict[str, torch.Tensor]) -> None:
        for layer in {name.partition("experts.")[0] for name in tensors if ".experts.0." in name}:
            parts = [
                {kind: tensors.pop(f"{layer}experts.{n}.{kind}_proj.weight") for kind in ("gate", "up", "down")}
                for n in range(4)
            ]
            both = [torch.cat([part["gate"], part["up"]]) for part in parts]
            tensors[f"{layer}experts.gate_up_proj"] = torch.stack(both)
            tensors[f"{layer}experts.down_proj"] = torch.stack([part["down"] for part in parts])

    fused = edited(alone, tmp_path / "fused", fuse)
    assert not any(".experts.0." in name for name in load_file(fused / WEIGHTS))
    same_weights(fused, alone)
    for source in (fused, alone):
        expand_to(source, tmp_path / f"{source.name}-expanded")
    same_weights(tmp_path / "fused-expanded", tmp_path / f"{alone.name}-expanded")


@pytest.mark.parametrize("model_type", ["qwen3_5", "qwen3_5_moe"])
def test_weights_that_predict_more_tokens_stay_behind_and_are_named_once(tiny, tmp_path, capsys, model_type):
    base = edited(
        tiny(model_type), tmp_path / "base", lambda tensors: tensors.update({"mtp.norm.weight": torch.ones(64)})
    )
    capsys.readouterr()
    assert main(["expand-vocab", "--model", str(base), "--output", str(tmp_path / "expanded")]) == 0
    said = "left behind: 1 of the base's tensors, unknown to its model: mtp (with it goes speculative decoding)"
    assert capsys.readouterr().out.count(said) == 1
    assert "mtp.norm.weight" not in load_file(tmp_path / "expanded" / WEIGHTS)
    assert StoredModel.of(tmp_path / "expanded").left_behind == ""


def test_a_merge_says_how_to_serve_a_model_whose_template_may_think(tiny, tmp_path, capsys):
    base = shutil.copytree(tiny("qwen3_5"), tmp_path / "base")
    template = base / "chat_template.jinja"
    closing = "{%- if enable_thinking is false -%}<think></think>{%- else -%}<think>{%- endif -%}"
    template.write_text(template.read_text() + closing)
    expand_to(base, tmp_path / "expanded")
    loaded = load(tmp_path / "expanded")
    install_coord_offset_adapter(loaded.model, coord_ids=loaded.vocab.coord_ids, tie_head=True)
    model = apply_tuning(loaded.model, tuning="lora", rank=2, alpha=4.0, dropout=0.0, vision=False, seed=0)
    name_base(model, TrainedBase(str(tmp_path / "expanded"), structure="native"))
    save_adapter(model, tmp_path / "adapter")
    capsys.readouterr()
    output = tmp_path / "merged"
    assert main(["merge", "--adapter", str(tmp_path / "adapter"), "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert f"""vllm serve {output} --default-chat-template-kwargs '{{"enable_thinking": false}}'""" in printed
    assert json.loads((output / "merge_report.json").read_text())["template"] == {"enable_thinking": False}


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_what_does_not_belong_together_is_one_sentence(tiny, tmp_path, model_type):
    def refused(folder: Path, facts: str) -> None:
        with pytest.raises(CheckpointError, match=facts) as raised:
            load(folder)
        assert "\n" not in str(raised.value)

    base = tiny(model_type)
    other = tiny("qwen3_5" if model_type != "qwen3_5" else "qwen3_vl")
    foreign = shutil.copytree(base, tmp_path / "foreign")
    shutil.copy(other / WEIGHTS, foreign / WEIGHTS)
    refused(foreign, r"foreign.*\d+ of \d+ weights.*config\.json")

    placed = (
        "visual.blocks.7.attn.proj.weight" if model_type == "qwen2_5_vl" else "model.visual.blocks.7.attn.proj.weight"
    )
    change = lambda tensors: tensors.update({placed: torch.ones(32, 32)})  # noqa: E731
    refused(edited(base, tmp_path / "more", change), r"more.*1 weights.*unexpected.*blocks\.7")

    quantised = shutil.copytree(base, tmp_path / "quantised")
    config = json.loads((quantised / "config.json").read_text())
    (quantised / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    refused(quantised, r"config\.json.*quantization_config")

"""Checkpoints of other trainers: weights under other names are read where that is safe, else both names are said."""

import ast
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.names import wrapper_of
from coordexp.model.checkpoint.stored_model import StoredModel, quiet
from coordexp.model.expand import expand_to
from coordexp.model.families import FAMILIES
from coordexp.model.loading import load
from coordexp.model.tiny.parts import write_tiny
from tests.support.checkpoints import WEIGHTS, edited

INDEX = "model.safetensors.index.json"
Rename = Callable[[str], str]


def _newer(name: str) -> str:
    """Return the name in transformers 5 of what Qwen2.5-VL's files call otherwise."""
    name = re.sub(r"^visual\.", "model.visual.", name)
    return re.sub(r"^model\.(?!language_model|visual)", "model.language_model.", name)


def _older(name: str) -> str:
    """Return the name in transformers 4."""
    return re.sub(r"^model\.visual\.", "visual.", re.sub(r"^model\.language_model\.", "model.", name))


def _without_model(name: str) -> str:
    return name.removeprefix("model.")


def _before(prefix: str) -> Rename:
    return lambda name: prefix + name


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Callable[[str], Path]:
    """Return a tiny checkpoint of a family, written once."""
    root = tmp_path_factory.mktemp("tiny")

    def make(model_type: str) -> Path:
        if not (root / model_type).exists():
            write_tiny(FAMILIES[model_type], root / model_type)
        return root / model_type

    return make


def _renamed(source: Path, target: Path, rename: Rename) -> Path:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        renamed = {rename(_newer(name)): tensor for name, tensor in tensors.items()}
        tensors.clear()
        tensors.update(renamed)

    return edited(source, target, change)


def _split(folder: Path) -> None:
    """Put the weights of a folder in two files with an index."""
    weights = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(weights)
    places = {name: f"model-0000{1 + (number >= 40)}-of-00002.safetensors" for number, name in enumerate(names)}
    for file in set(places.values()):
        members = {name: weights[name] for name in names if places[name] == file}
        save_file(members, folder / file, {"format": "pt"})
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def _same(ours: Path, theirs: Path) -> None:
    loaded, expected = load(ours).model.state_dict(), load(theirs).model.state_dict()
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(loaded[name], tensor), name


def _refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as refused:
        load(folder)
    assert "\n" not in str(refused.value)
    assert " ... " not in str(refused.value)  # nothing of it is cut
    return str(refused.value)


@pytest.mark.parametrize(
    ("model_type", "rename", "shown"),
    [
        ("qwen3_vl", _before("module."), "'module.'"),  # DDP, DeepSpeed
        ("qwen3_vl", _before("_orig_mod."), "'_orig_mod.'"),  # torch.compile
        ("qwen3_vl", _before("model."), "'model.'"),  # a LightningModule with the model as self.model
        ("qwen3_vl", _without_model, "language_model.embed_tokens.weight"),
        ("qwen3_5_moe", _before("module."), "'module.'"),
        ("qwen2_5_vl", _older, ""),
        ("qwen2_5_vl", lambda name: name, ""),
        ("qwen2_5_vl", lambda name: f"module.{_older(name)}", "'module.'"),
    ],
)
def test_what_names_the_same_weights_is_read_and_copies_have_the_models_names(
    tiny, tmp_path, model_type, rename, shown
):
    base = tiny(model_type)
    other = _renamed(base, tmp_path / "other", rename)
    assert shown in StoredModel.of(other).renamed
    _same(other, base)
    assert not StoredModel.of(base).renamed
    expand_to(other, tmp_path / "expanded")
    expand_to(base, tmp_path / "expected")
    assert load_file(tmp_path / "expanded" / WEIGHTS).keys() == load_file(tmp_path / "expected" / WEIGHTS).keys()
    _same(tmp_path / "expanded", tmp_path / "expected")
    again = _renamed(tmp_path / "expected", tmp_path / "again", rename)  # nothing is left to add
    expand_to(again, tmp_path / "copied")
    _same(tmp_path / "copied", tmp_path / "expected")
    assert wrapper_of(list(load_file(tmp_path / "copied" / WEIGHTS))) == ""


def test_shards_under_other_names_are_read(tiny, tmp_path):
    base = tiny("qwen3_vl")
    other = _renamed(base, tmp_path / "other", _before("module."))
    _split(other)
    _same(other, base)


def test_a_head_that_is_stored_beside_a_tied_table_does_no_harm(tiny, tmp_path):
    base = tiny("qwen3_vl")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.language_model.embed_tokens.weight"].clone()

    other = _renamed(edited(base, tmp_path / "head", change), tmp_path / "other", _before("module."))
    assert "'module.'" in StoredModel.of(other).renamed
    _same(other, base)


@pytest.mark.parametrize(
    ("rename", "got"),
    [
        (_older, "'model.'"),
        (lambda name: f"module.{_older(name)}", "'module.model.'"),
        (lambda name: name.replace("model.language_model.", "language_model.model."), "'language_model.model.'"),
    ],
)
@pytest.mark.parametrize(("model_type", "num", "num_all"), [("qwen3_vl", 46, 85), ("qwen3_5", 52, 85)])
def test_other_names_are_said_with_those_expected_and_the_way_to_rename_them(
    tiny, tmp_path, model_type, num, num_all, rename, got
):
    base = tiny(model_type)
    other = _renamed(base, tmp_path / "other", rename)
    message = _refusal(other)
    theirs, ours = rename("model.language_model.embed_tokens.weight"), "model.language_model.embed_tokens.weight"
    for fact in (f"{num} of {num_all}", got, "'model.language_model.'", theirs, ours):
        assert fact in message
    assert "missing" not in message

    # As docs/your-model.md has it.
    mapping = ast.literal_eval(re.search(r"key_mapping=(\{.*\})", message)[1])
    with quiet():
        model = AutoModelForImageTextToText.from_pretrained(other, key_mapping=mapping, dtype="auto")
        model.save_pretrained(other, save_original_format=False)
    _same(other, base)


def test_a_peft_model_that_was_saved_whole_is_called_one(tiny, tmp_path):
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.endswith("q_proj.weight")]:
            parent = name.removesuffix("weight")
            tensors[f"{parent}base_layer.weight"] = tensors.pop(name)
            tensors[f"{parent}lora_A.default.weight"] = torch.zeros(2, 64)
            tensors[f"{parent}lora_B.default.weight"] = torch.zeros(64, 2)

    whole = edited(tiny("qwen3_vl"), tmp_path / "whole", change)
    message = _refusal(_renamed(whole, tmp_path / "other", _before("base_model.model.")))
    assert "merge_and_unload" in message
    assert "12 of 93 weights" in message  # four layers, three tensors each


def test_weights_that_are_missing_are_called_missing(tiny, tmp_path):
    lost = edited(tiny("qwen3_vl"), tmp_path / "lost", lambda tensors: tensors.pop("model.language_model.norm.weight"))
    assert re.search(r"1 weights.*missing.*model\.language_model\.norm\.weight", _refusal(lost))
    assert re.search("1 weights.*missing", _refusal(_renamed(lost, tmp_path / "wrapped", _before("module."))))


@pytest.mark.parametrize("model_type", ["qwen3_vl", "qwen2_5_vl"])
def test_empty_tensors_are_a_rank_of_deepspeed(tiny, tmp_path, model_type):
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({name: torch.zeros(0) for name in tensors if "norm" in name})

    message = _refusal(edited(tiny(model_type), tmp_path / "rank", change))
    assert "DeepSpeed ZeRO-3" in message
    assert "zero_to_fp32.py" in message


def test_a_pickle_is_refused_with_the_command_that_converts_it(tiny, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(tiny("qwen3_vl"), tmp_path / "pickled"))
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    command = re.search(r'python -c "(.*)"', _refusal(folder))[1]
    monkeypatch.chdir(folder)
    with quiet():
        exec(command)  # what a user pastes
    _same(folder, tiny("qwen3_vl"))


@pytest.mark.parametrize(
    ("left", "way_on"),
    [
        ("model-00001-of-00002.safetensors", "model.safetensors.index.json"),
        ("zero_to_fp32.py", "python zero_to_fp32.py . . --safe_serialization"),
        ("pytorch_model_fsdp_0/.metadata", "accelerate merge-weights"),
    ],
)
def test_a_folder_with_parts_of_weights_says_how_to_gather_them(tiny, tmp_path, left, way_on):
    folder = Path(shutil.copytree(tiny("qwen3_vl"), tmp_path / "parts"))
    (folder / WEIGHTS).unlink()
    (folder / left).parent.mkdir(exist_ok=True)
    (folder / left).write_bytes(b"")
    assert way_on in _refusal(folder)

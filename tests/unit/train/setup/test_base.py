"""A base that does not suit its run is refused before anything is written."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import CheckpointError, ConfigError, TokenizerError
from coordexp.model.checkpoint.directory import TINY_BASE
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.status import RunStatus, write_status
from coordexp.train.setup.base import base_hashes, prepare_base


@pytest.fixture
def checkpoint(tmp_path):
    """Return a copy of the embedded base, whose files may be changed."""
    return shutil.copytree(TINY_BASE, tmp_path / "checkpoint")


def _config(tmp_path, checkpoint, **sections: object) -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {"experiment": {"runs_dir": str(tmp_path / "runs")}, "model": {"path": str(checkpoint)}, **sections}
    )


def _edit(file, **values: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_it_is_written_once(tmp_path, checkpoint):
    config = _config(tmp_path, checkpoint)
    base = prepare_base(config)
    assert base == ExperimentFolder.of(config).base(config)
    before = {file: file.stat().st_mtime_ns for file in base.iterdir()}
    assert prepare_base(config) == base
    assert {file: file.stat().st_mtime_ns for file in base.iterdir()} == before


def test_offset_ids_that_the_tokenizer_does_not_give(tmp_path, checkpoint):
    offset = {"enabled": True, "ids": {"start": 1, "end": 1000}}
    config = _config(tmp_path, checkpoint, custom={"coord_offset": offset})
    with pytest.raises(TokenizerError, match=r"custom\.coord_offset\.ids.*\b1\.\.1000\b"):
        prepare_base(config)
    assert not ExperimentFolder.of(config).base(config).exists()


def _without_template(checkpoint: Path) -> None:
    (checkpoint / "chat_template.jinja").unlink()


def _of_another_vocabulary(checkpoint: Path) -> None:
    text = json.loads((checkpoint / "config.json").read_text())["text_config"]
    _edit(checkpoint / "config.json", text_config=text | {"vocab_size": 404})


def _with_a_table_of_another_size(checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    name = "model.language_model.embed_tokens.weight"
    save_file(weights | {name: weights[name].repeat(2, 1)}, checkpoint / "model.safetensors", {"format": "pt"})


def _in_float16(checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    halved = {name: tensor.half() for name, tensor in weights.items()}
    save_file(halved, checkpoint / "model.safetensors", {"format": "pt"})
    _edit(checkpoint / "config.json", dtype="float16")


def _of_another_image_token(checkpoint: Path) -> None:
    _edit(checkpoint / "config.json", image_token_id=3)


def _without_a_padding_token(checkpoint: Path) -> None:
    _edit(checkpoint / "tokenizer_config.json", pad_token=None)


@pytest.mark.parametrize(
    ("change", "error", "facts"),
    [
        (_of_another_image_token, TokenizerError, ("<|image_pad|>", " 3 ", "config.json")),
        (_without_a_padding_token, TokenizerError, ("pad_token",)),
        (_without_template, CheckpointError, ("chat_template.jinja",)),
        (_of_another_vocabulary, CheckpointError, ("config.json", "vocab_size", "404", "pad_token_id")),
        (_with_a_table_of_another_size, CheckpointError, ("embed_tokens.weight", "config.json")),
        (_in_float16, ConfigError, ("float16", "model.dtype: bfloat16")),
    ],
)
def test_a_checkpoint_that_cannot_train_is_refused_with_the_way_on(tmp_path, checkpoint, change, error, facts):
    change(checkpoint)
    config = _config(tmp_path, checkpoint)
    with pytest.raises(error) as caught:
        prepare_base(config)
    assert [fact for fact in facts if fact not in str(caught.value)] == []
    assert not ExperimentFolder.of(config).base(config).exists()


def test_a_float16_checkpoint_is_cast_where_the_dtype_is_given(tmp_path, checkpoint):
    _in_float16(checkpoint)
    base = prepare_base(_config(tmp_path, checkpoint, model={"path": str(checkpoint), "dtype": "bfloat16"}))
    assert {tensor.dtype for tensor in load_file(base / "model.safetensors").values()} == {torch.bfloat16}


def test_what_no_run_reads_may_lie_beside_a_checkpoint(tmp_path, checkpoint):
    config = _config(tmp_path, checkpoint)
    base = prepare_base(config)
    write_status(ExperimentFolder.of(config).run("A", 0).path, RunStatus("running"))
    for name in ("LICENSE.txt", "notes.json", "trained_with.json", "model.safetensors.index.json"):
        (checkpoint / name).write_text("{}")
    assert prepare_base(config) == base
    _, others = base_hashes(checkpoint, known=tmp_path / "hashes.json")
    assert sorted(others) == [
        "base/chat_template.jinja", "base/config.json", "base/generation_config.json",
        "base/preprocessor_config.json", "base/tokenizer.json", "base/tokenizer_config.json",
    ]  # fmt: skip
    for name in ("merges.txt", "generation_config.json"):
        path = checkpoint / name
        text_before = path.read_text() if path.is_file() else None
        path.write_text('{"a": 1}')
        with pytest.raises(CheckpointError, match=name):
            prepare_base(config)
        if text_before is None:
            path.unlink()
        else:
            path.write_text(text_before)
        assert prepare_base(config) == base

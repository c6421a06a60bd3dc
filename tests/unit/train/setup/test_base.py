"""A base that does not suit its run is refused before anything is written."""

import json
import shutil

import pytest

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import CheckpointError, TokenizerError
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
    with pytest.raises(TokenizerError, match=r"custom.coord_offset.ids is 1..1000"):
        prepare_base(config)
    assert not ExperimentFolder.of(config).base(config).exists()


def test_files_that_do_not_belong_together(tmp_path, checkpoint):
    _edit(checkpoint / "preprocessor_config.json", patch_size=14)
    with pytest.raises(CheckpointError, match=r"\(14, 2, 2\)"):
        prepare_base(_config(tmp_path, checkpoint))
    shutil.copy(TINY_BASE / "preprocessor_config.json", checkpoint)
    _edit(checkpoint / "config.json", image_token_id=7)
    with pytest.raises(TokenizerError, match=r"but 7 in config.json"):
        prepare_base(_config(tmp_path, checkpoint))


def test_what_no_run_reads_may_lie_beside_a_checkpoint(tmp_path, checkpoint):
    config = _config(tmp_path, checkpoint)
    base = prepare_base(config)
    write_status(ExperimentFolder.of(config).run("A", 0).path, RunStatus("running"))
    for name in ("LICENSE.txt", "notes.json", "trained_with.json", "model.safetensors.index.json"):
        (checkpoint / name).write_text("{}")
    assert prepare_base(config) == base
    stamp = json.loads((base / "base.json").read_text())
    _edit(base / "base.json", source=stamp["source"] | {"eval.json": "of an older version"})
    assert prepare_base(config) == base
    hashes = base_hashes(checkpoint, known=tmp_path / "hashes.json")
    assert sorted(hashes.files) == [
        "base/chat_template.jinja", "base/config.json", "base/generation_config.json",
        "base/preprocessor_config.json", "base/tokenizer.json", "base/tokenizer_config.json",
    ]  # fmt: skip
    for name in ("merges.txt", "generation_config.json"):
        kept = (checkpoint / name).read_text() if (checkpoint / name).is_file() else None
        (checkpoint / name).write_text('{"a": 1}')
        with pytest.raises(CheckpointError, match=rf"{name} changed since"):
            prepare_base(config)
        (checkpoint / name).unlink() if kept is None else (checkpoint / name).write_text(kept)

"""Bases of every kind, and what of them ends up in a merged checkpoint."""

import json
import os
import re
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from coordexp.cli.main import main
from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.stored_model import EMBEDDING, HEAD
from coordexp.model.loading import load
from coordexp.model.merging.merge import merge
from coordexp.model.processor import Processor
from tests.support.checkpoints import WEIGHTS, edit_json, edited


@pytest.fixture
def adapter(make_base, make_adapter) -> Path:
    return make_adapter(make_base(), tuning="lora")


def test_a_tied_base_that_also_stores_its_head(make_base, adapter, tmp_path):
    same = edited(make_base(), tmp_path / "same", lambda weights: weights.update({HEAD: weights[EMBEDDING].clone()}))
    report = merge(adapter, tmp_path / "a", base=same)
    merge(adapter, tmp_path / "b")
    assert (tmp_path / "a" / WEIGHTS).read_bytes() == (tmp_path / "b" / WEIGHTS).read_bytes()
    assert (report.tie_word_embeddings, report.num_unused_weights) == (True, 0)
    other = edited(make_base(), tmp_path / "other", lambda weights: weights.update({HEAD: weights[EMBEDDING] * 2}))
    with pytest.raises(CheckpointError, match="other.*tie_word_embeddings: true"):
        merge(adapter, tmp_path / "c", base=other)


def test_what_the_model_does_not_use_stays_behind(make_base, adapter, sharded, tmp_path, capsys):
    base = sharded(make_base(), tmp_path / "base")
    save_file({"mtp.layers.0.weight": torch.ones(4)}, base / "model-extra.safetensors")
    index = json.loads((base / "model.safetensors.index.json").read_text())
    index["weight_map"]["mtp.layers.0.weight"] = "model-extra.safetensors"
    (base / "model.safetensors.index.json").write_text(json.dumps(index))
    (base / "consolidated.safetensors").write_bytes(b"not listed, so not read")
    arguments = ["--adapter", str(adapter), "--output", str(tmp_path / "merged"), "--base", str(base)]
    assert main(["merge", *arguments]) == 0
    assert re.search(r"left behind +1\b", capsys.readouterr().out)
    assert sorted(path.name for path in (tmp_path / "merged").glob("*.safetensors")) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert load(tmp_path / "merged").vocab is not None


@pytest.mark.parametrize(
    "dtype", ["float16", *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in ("float32", "bfloat16"))]
)
def test_every_dtype_twice_gives_the_same_bytes(make_base, make_adapter, tmp_path, dtype):
    adapter = make_adapter(make_base(dtype=getattr(torch, dtype)), tuning="dora", tie_head=False)
    report = merge(adapter, tmp_path / "a")
    assert report.dtype == dtype
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["dtype"] == dtype
    merge(adapter, tmp_path / "b")
    assert (tmp_path / "a" / WEIGHTS).read_bytes() == (tmp_path / "b" / WEIGHTS).read_bytes()


def test_files_beside_the_weights_travel(make_base, adapter, tmp_path):
    base = Path(shutil.copytree(make_base(), tmp_path / "base"))
    template = (base / "chat_template.jinja").read_text() + "{# mine #}"
    (base / "chat_template.jinja").unlink()
    tokenizer_config = json.loads((base / "tokenizer_config.json").read_text())
    tokenizer_config.pop("chat_template", None)
    (base / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    (base / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    (base / "generation_config.json").write_text('{"temperature": 0.25}')
    (base / "processor_config.json").write_text('{"processor_class": "Qwen3VLProcessor"}')
    (base / "video_preprocessor_config.json").write_text('{"fps": 2}')
    merge(adapter, tmp_path / "merged", base=base)
    for name in ("generation_config.json", "processor_config.json", "video_preprocessor_config.json"):
        assert (tmp_path / "merged" / name).read_text() == (base / name).read_text()
    processor = Processor.from_directory(tmp_path / "merged")
    assert processor.tokenizer.chat_template == template
    before = Processor.from_directory(base)
    assert processor.tokenizer.get_vocab() == before.tokenizer.get_vocab()
    assert processor.image_processor.to_dict() == before.image_processor.to_dict()


def test_a_snapshot_of_links_is_a_base(make_base, adapter, tmp_path):
    """As the hub's cache lays it out: files are links into ``blobs``, named by their hashes."""
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "0123"
    blobs = tmp_path / "models--owner--name" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(make_base(structure=None).iterdir())):
        shutil.copy(file, blobs / str(number))
        (snapshot / file.name).symlink_to(os.path.relpath(blobs / str(number), snapshot))
    merge(adapter, tmp_path / "a", base=snapshot)
    merge(adapter, tmp_path / "b")
    assert (tmp_path / "a" / WEIGHTS).read_bytes() == (tmp_path / "b" / WEIGHTS).read_bytes()
    assert not any(path.is_symlink() for path in (tmp_path / "a").iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "models--owner--name"]


def test_what_peft_warns_of_is_said_once(make_base, adapter, tmp_path, capsys):
    newer = Path(shutil.copytree(adapter, tmp_path / "newer"))
    edit_json(newer / "adapter_config.json", an_option_of_tomorrow=1)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["merge", "--adapter", str(newer), "--output", str(tmp_path / "merged")]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: peft: ")
    assert "an_option_of_tomorrow" in line

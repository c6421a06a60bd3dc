"""Merges that must be refused, and what a merge says."""

import shutil
from pathlib import Path

import pytest
import torch

from coordexp.cli.main import main
from coordexp.errors import CheckpointError, TokenizerError
from coordexp.model.checkpoint import rewrite
from coordexp.model.merging.merge import merge
from tests.support.checkpoints import ADAPTER, LAYER, LORA_B, OFFSET, edited


@pytest.fixture
def adapter(make_base, make_adapter) -> Path:
    return make_adapter(make_base(), tuning="lora")


@pytest.mark.parametrize("place", ["base", "adapter"])
def test_an_output_in_or_around_an_input_is_refused(make_base, adapter, tmp_path, place):
    base = shutil.copytree(make_base(), tmp_path / "outer" / "base")
    copied_adapter = shutil.copytree(adapter, tmp_path / "outer" / "adapter")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=rf"merged.*{tmp_path}/outer/{place}"):
        merge(copied_adapter, tmp_path / "outer" / place / "merged", base=base)
    with pytest.raises(CheckpointError, match=rf"{tmp_path}/outer/(base|adapter)"):
        merge(copied_adapter, tmp_path / "outer", base=base, overwrite=True)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "outer")
    with pytest.raises(CheckpointError, match=rf"{place}"):
        merge(copied_adapter, link / place, base=base, overwrite=True)
    link.unlink()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_disk_leaves_nothing_and_says_one_sentence(make_base, make_adapter, tmp_path, monkeypatch, capsys):
    adapter = make_adapter(make_base(), tuning="lora")
    bare = make_base(structure=None)  # so that the expanded copy is under way as well
    right, calls = rewrite.save_file, 0

    def full(tensors, file, metadata):
        nonlocal calls
        calls += 1
        right(tensors, file, metadata)
        if calls == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(rewrite, "save_file", full)
    capsys.readouterr()  # what making the fixtures drew
    code = main(["merge", "--adapter", str(adapter), "--output", str(tmp_path / "merged"), "--base", str(bare)])
    captured = capsys.readouterr()
    assert (code, calls) == (2, 2)
    assert captured.err.count("\n") == 1
    assert "no space left" in captured.err
    assert list(tmp_path.iterdir()) == []
    calls = 1
    with pytest.raises(CheckpointError, match="merged.*No space left"):
        merge(adapter, tmp_path / "merged")
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_of_another_base_is_refused(make_base, adapter, tmp_path):
    def refused(change, facts, error=CheckpointError):
        other = edited(adapter, tmp_path / "other", change, file=ADAPTER)
        with pytest.raises(error, match=facts):
            merge(other, tmp_path / "merged")
        shutil.rmtree(other)

    refused(
        lambda tensors: tensors.update({LORA_B: torch.ones(100, 4)}),
        rf"{LAYER}\.weight.*\[100, 128\].*\[384, 128\]",
    )
    refused(
        lambda tensors: tensors.update({OFFSET: torch.ones(1000, 64)}),
        r"64 columns.*128",
    )
    refused(
        lambda tensors: tensors.update({LORA_B.replace("layers.1", "layers.9"): tensors.pop(LORA_B)}),
        rf"{LAYER}.*\['lora_A'\].*lora_A and lora_B",
    )
    ids = OFFSET.replace("embed_offset", "coord_ids")
    refused(lambda tensors: tensors.update({ids: tensors[ids] + 1}), r"1641.*1641 rows")
    refused(lambda tensors: tensors.update({ids: tensors[ids] - 1}), r"coord_offset\.ids.*\d+", TokenizerError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("key", [LORA_B, OFFSET])
def test_an_adapter_that_is_no_number_is_refused(adapter, tmp_path, key, value):
    def plant(tensors):
        tensors[key][2, 3] = value

    broken = edited(adapter, tmp_path / "broken", plant, file=ADAPTER)
    with pytest.raises(CheckpointError, match=rf"{key}.*NaN"):
        merge(broken, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_the_command_says_how_exact_it_was_and_what_to_type_next(make_base, adapter, tmp_path, capsys):
    output = tmp_path / "merged"
    assert main(["merge", "--adapter", str(adapter), "--output", str(output)]) == 0
    text = capsys.readouterr().out
    for line in ("largest difference of a logit", "dtype", "embedding and head", "layers merged", "rows changed"):
        assert f"\n  {line}" in text
    assert f"coordexp evaluate --model {output} " in text.splitlines()[-1]

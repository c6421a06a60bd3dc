"""Merging: same logits, right tying, nothing left behind when it fails."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from coordexp.coord_tokens.offset_adapter import active_offset, install_coord_offset_adapter
from coordexp.errors import CheckpointError
from coordexp.model.checkpoint import rewrite
from coordexp.model.checkpoint.adapter import TrainedBase, name_base, read_adapter, save_adapter
from coordexp.model.checkpoint.trained_with import TrainedWith, read_trained_with
from coordexp.model.expand import cast_checkpoint, expand_checkpoint
from coordexp.model.loading import load
from coordexp.model.lora import apply_tuning
from coordexp.model.merging.merge import merge, merge_model
from coordexp.model.merging.proof import answer_logits, default_samples, logits_of
from coordexp.model.processor import Processor
from tests.support.offsets import QUICK, SLOW, TIES

# Two tables can do all that one can go wrong with, and more.
TIE_HEAD = [False, pytest.param(True, marks=pytest.mark.slow)]


@torch.no_grad()
def _logits(model, processor):
    return model(**default_samples(processor)[0], use_cache=False).logits.float()


@pytest.mark.parametrize(("tied", "tie_head", "tuning"), QUICK + SLOW)
def test_merged_logits_are_the_adapters(make_base, make_adapter, tmp_path, tied, tie_head, tuning):
    base = make_base(tied=tied)
    adapter = make_adapter(base, tuning=tuning, tie_head=tie_head)
    report = merge(adapter, tmp_path / "merged")
    trained, merged, plain = load(base, adapter), load(tmp_path / "merged"), load(base)
    expected = _logits(trained.model, trained.processor)
    difference = float((_logits(merged.model, merged.processor) - expected).abs().max())
    assert difference == pytest.approx(report.max_abs_logit_diff, abs=1e-4)
    assert report.lost_at_logits < 1e-3
    assert float((_logits(plain.model, plain.processor) - expected).abs().max()) > 100 * difference  # control

    stays_tied = tied and tie_head
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    weights = load_file(tmp_path / "merged" / "model.safetensors")
    assert report.tie_word_embeddings is config["tie_word_embeddings"] is stays_tied
    assert config["text_config"]["tie_word_embeddings"] is stays_tied
    assert ("lm_head.weight" in weights) is not stays_tied
    assert not any("lora" in name or "offset" in name for name in weights)
    assert report.num_offset_rows == 1000
    assert json.loads((tmp_path / "merged" / "merge_report.json").read_text())["dtype"] == "float32"


def test_only_listed_rows_of_the_tables_change(make_base, make_adapter, tmp_path):
    base = make_base()
    merge(make_adapter(base, tie_head=False), tmp_path / "merged")
    table = load_file(base / "model.safetensors")["model.language_model.embed_tokens.weight"]
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    for name in ("model.language_model.embed_tokens.weight", "lm_head.weight"):
        assert torch.equal(merged[name][:641], table[:641])
        assert not torch.isclose(merged[name][641:], table[641:]).all(dim=1).any()


@pytest.mark.parametrize("tie_head", TIE_HEAD)
def test_bfloat16_stays_bfloat16_within_its_rounding(make_base, make_adapter, tmp_path, tie_head):
    adapter = make_adapter(make_base(dtype=torch.bfloat16), tuning="dora", tie_head=tie_head)
    report = merge(adapter, tmp_path / "merged")
    assert report.dtype == "bfloat16"
    assert {tensor.dtype for tensor in load_file(tmp_path / "merged" / "model.safetensors").values()} == {
        torch.bfloat16
    }
    wide = merge(adapter, tmp_path / "wide", dtype="float32")
    assert (wide.dtype, wide.warning) == ("float32", "")
    assert wide.most_lost < 1e-3 * report.most_lost
    assert wide.lost_at_logits < 0.01 * report.lost_at_logits
    assert load(tmp_path / "wide").model.dtype == torch.float32


ASKED = TrainedWith(prompt="Name all.", min_pixels=2048, max_pixels=4096)


def test_a_merged_checkpoint_keeps_the_image_sizes_and_the_prompt_of_training(make_base, make_adapted, tmp_path):
    base = make_base()
    model = make_adapted(base)
    name_base(model, TrainedBase(str(base), structure="native"), ASKED)
    save_adapter(model, tmp_path / "adapter")
    assert read_adapter(tmp_path / "adapter").trained_with == ASKED
    merge(tmp_path / "adapter", tmp_path / "merged")
    assert read_trained_with(tmp_path / "merged") == ASKED
    stated, before = (
        json.loads((place / "preprocessor_config.json").read_text()) for place in (tmp_path / "merged", base)
    )
    assert stated["size"] == {"shortest_edge": 2048, "longest_edge": 4096}
    assert {key: value for key, value in stated.items() if key != "size"} == {
        key: value for key, value in before.items() if key != "size"
    }
    sizes = Processor.from_directory(tmp_path / "merged").image_processor.size
    assert (sizes["shortest_edge"], sizes["longest_edge"]) == (2048, 4096)
    load(base, tmp_path / "adapter")  # PEFT leaves alone what it does not know


def test_the_image_processor_that_transformers_takes_first_has_them_too(make_base, make_adapted, tmp_path):
    base = Path(shutil.copytree(make_base(), tmp_path / "base"))
    section = json.loads((base / "preprocessor_config.json").read_text()) | {"max_pixels": 9216}
    (base / "processor_config.json").write_text(json.dumps({"image_processor": section, "processor_class": "P"}))
    model = make_adapted(base)
    name_base(model, TrainedBase(str(base), structure="native"), ASKED)
    save_adapter(model, tmp_path / "adapter")
    merge(tmp_path / "adapter", tmp_path / "merged")
    sizes = Processor.from_directory(tmp_path / "merged").image_processor.size
    assert (sizes["shortest_edge"], sizes["longest_edge"]) == (2048, 4096)
    assert json.loads((tmp_path / "merged" / "processor_config.json").read_text())["processor_class"] == "P"


def test_a_checkpoint_that_does_not_say_what_it_was_trained_with_stays_as_it_is(make_base, make_adapter, tmp_path):
    base = make_base()
    merge(make_adapter(base), tmp_path / "merged")
    assert read_trained_with(tmp_path / "merged") is None
    name = "preprocessor_config.json"
    assert (tmp_path / "merged" / name).read_text() == (base / name).read_text()


def test_lora_alone_and_spec_structure(make_base, make_adapter, tmp_path):
    assert merge(make_adapter(make_base(), tie_head=None), tmp_path / "a").num_offset_rows == 0
    report = merge(make_adapter(make_base(structure="spec"), tuning="lora"), tmp_path / "b")
    assert report.num_offset_rows == 1002
    assert load(tmp_path / "b").vocab.structure == "spec"


def test_a_base_without_coord_tokens_is_expanded_first(make_base, make_adapter, tmp_path):
    adapter = make_adapter(make_base(), tuning="lora")
    merge(adapter, tmp_path / "a")
    merge(adapter, tmp_path / "b", base=make_base(structure=None))
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("tie_head", TIE_HEAD)
def test_shards_stay_shards(make_base, make_adapter, sharded, tmp_path, tie_head):
    adapter = make_adapter(make_base(), tuning="lora", tie_head=tie_head)
    base = sharded(make_base(), tmp_path / "base")
    merge(adapter, tmp_path / "merged", base=base)
    merge(adapter, tmp_path / "whole")
    whole = load_file(tmp_path / "whole" / "model.safetensors")
    index = json.loads((tmp_path / "merged" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(whole)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / "merged" / file)[name], whole[name])
    assert not (tmp_path / "merged" / "model.safetensors").exists()


@pytest.mark.parametrize("tie_head", TIE_HEAD)
def test_a_model_in_memory_merges_and_stays_as_it_is(make_base, make_adapted, tmp_path, tie_head):
    base = make_base(dtype=torch.bfloat16)
    processor = Processor.from_directory(base)
    model = make_adapted(base, tuning="dora", tie_head=tie_head).train()
    report = merge_model(torch.nn.Sequential(model), processor, tmp_path / "merged")  # in a wrapper, as DDP is
    assert model.training
    assert active_offset(model) is not None
    assert report.dtype == "bfloat16"
    merged = load(tmp_path / "merged").model
    model.eval()
    samples = default_samples(processor)
    (adapted,), (after,) = answer_logits(model, samples), answer_logits(merged, samples)
    with model.disable_adapter():
        (plain,) = answer_logits(model, samples)
    lost = (after - adapted).square().mean() / (adapted - plain).square().mean()
    assert report.lost_at_logits == pytest.approx(float(lost.sqrt()), rel=1e-3)


def test_a_fully_tuned_model_is_saved_as_it_is(make_base, tmp_path):
    loaded = load(make_base())
    model = apply_tuning(loaded.model, tuning="full", rank=1, alpha=1.0, dropout=0.0, vision=True, seed=0)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.5)
    report = merge_model(model, loaded.processor, tmp_path / "merged", trained_with=ASKED)
    assert read_trained_with(tmp_path / "merged") == ASKED
    assert Processor.from_directory(tmp_path / "merged").image_processor.size["longest_edge"] == 4096
    assert (report.warning, report.num_merged_layers, report.tie_word_embeddings) == ("", 0, True)
    assert torch.equal(_logits(load(tmp_path / "merged").model, loaded.processor), _logits(model, loaded.processor))
    install_coord_offset_adapter(model, coord_ids=loaded.vocab.coord_ids)
    with pytest.raises(CheckpointError, match="PEFT"):
        merge_model(model, loaded.processor, tmp_path / "other")


def test_it_overwrites_only_on_purpose_and_only_checkpoints(make_base, make_adapter, tmp_path):
    adapter = make_adapter(make_base(), tuning="lora")
    output = tmp_path / "merged"
    output.mkdir()
    (output / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=rf"{output}.*--overwrite"):
        merge(adapter, output)
    with pytest.raises(CheckpointError, match=rf"{output}.*not overwritten"):
        merge(adapter, output, overwrite=True)
    assert (output / "notes.txt").read_text() == "mine"
    (output / "notes.txt").unlink()
    merge(adapter, output, overwrite=True)
    (output / "merge_report.json").write_text("{}")
    merge(adapter, output, overwrite=True)
    assert json.loads((output / "merge_report.json").read_text())["num_offset_rows"] == 1000
    for source in (adapter, make_base()):
        with pytest.raises(CheckpointError, match=str(source)):
            merge(adapter, source, overwrite=True)


def test_a_failed_overwrite_keeps_the_old_checkpoint(make_base, make_adapter, tmp_path, monkeypatch):
    adapter = make_adapter(make_base(), tuning="lora")
    merge(adapter, tmp_path / "merged")
    before = (tmp_path / "merged" / "model.safetensors").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rewrite, "save_file", full)
    with pytest.raises(CheckpointError, match="merged.*No space left"):
        merge(adapter, tmp_path / "merged", overwrite=True)
    assert (tmp_path / "merged" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]


@pytest.mark.parametrize("structure", ["spec", None])
def test_a_base_is_made_again_as_training_had_it(make_base, make_adapted, tmp_path, structure):
    """From the checkpoint that was given: cast, and expanded or, for a text arm, not; the same bytes."""
    given, base = make_base(structure=None, dtype=torch.bfloat16), tmp_path / "base"
    base.mkdir()
    if structure is None:
        cast_checkpoint(given, base, dtype="float32")
    else:
        expand_checkpoint(given, base, init="mean", structure=structure, dtype="float32")
    trained = make_adapted(base, tie_head=None)
    name_base(trained, TrainedBase(str(given), None, "float32", "mean", structure))
    save_adapter(trained, tmp_path / "adapter")
    reports = [merge(tmp_path / "adapter", tmp_path / "a"), merge(tmp_path / "adapter", tmp_path / "b", base=base)]
    assert [report.dtype for report in reports] == ["float32", "float32"]
    found, expected = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert (load(tmp_path / "a").vocab is None) is (structure is None)


def test_wrong_inputs(make_base, make_adapter, tmp_path):
    adapter = Path(shutil.copytree(make_adapter(make_base(), tuning="lora"), tmp_path / "adapter"))
    config = json.loads((adapter / "adapter_config.json").read_text())

    def with_config(**changes: object) -> None:
        (adapter / "adapter_config.json").write_text(json.dumps(config | changes))

    cases = [
        ({"base_model_name_or_path": None}, "base"),
        ({"base_model_name_or_path": "/gone/base"}, "/gone/base.*--base"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"bias": "all"}, "bias.*'all'"),
        ({"lora_alpha": None}, "lora_alpha.*None"),
    ]
    for changes, facts in cases:
        with_config(**changes)
        with pytest.raises(CheckpointError, match=facts):
            merge(adapter, tmp_path / "merged")
    with_config()
    weights = load_file(adapter / "adapter_model.safetensors")
    save_file(weights | {"base_model.model.lm_head.weight": torch.ones(1)}, adapter / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=r"base_model\.model\.lm_head\.weight"):
        merge(adapter, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


@pytest.mark.slow
def test_it_loads_without_coordexp(make_base, make_adapter, tmp_path):
    lines = []
    for tied, tie_head in TIES:
        adapter = make_adapter(make_base(tied=tied), tuning="dora", tie_head=tie_head)
        output = tmp_path / f"{tied}-{tie_head}"
        merge(adapter, output)
        loaded = load(make_base(tied=tied), adapter)
        samples = default_samples(loaded.processor)
        save_file({"logits": logits_of(loaded.model, samples)[0], **samples[0]}, output / "expected.st")
        lines.append(str(output))
    script = (
        "import sys; sys.modules['coordexp'] = None\n"
        "import torch; from safetensors.torch import load_file; from transformers import AutoModelForImageTextToText\n"
        "for path in sys.argv[1:]:\n"
        "    model = AutoModelForImageTextToText.from_pretrained(path)\n"
        "    sample = load_file(path + '/expected.st'); expected = sample.pop('logits')\n"
        "    with torch.no_grad(): logits = model(**sample).logits\n"
        "    assert (logits - expected).abs().max() < 1e-3 * expected.abs().max(), path\n"
    )
    subprocess.run([sys.executable, "-c", script, *lines], check=True, timeout=240, cwd=tmp_path)

"""The trainer core on a small Qwen3-VL: counts, ranks, resume, determinism."""

import json
import os

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from coordexp.model.checkpoint.adapter import read_adapter
from coordexp.model.checkpoint.trained_with import TrainedWith, read_trained_with
from coordexp.model.loading import load
from coordexp.model.merging.merge import merge
from coordexp.model.merging.proof import default_samples, logits_of
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.runs.reporter import LocalReporter, committed_checkpoints
from coordexp.train.run import train_run
from tests.support.ranks import environment_of_ranks, run_ranks
from tests.support.tiny_model import weights_hash
from tests.support.training import (
    first_step,
    prepared,
    ranks_worker,
    rows_without_times,
    small_config,
    train_here,
    with_changes,
)


@pytest.fixture(scope="module")
def one_by_eight(base, tmp_path_factory):
    config = prepared(small_config(base, tmp_path_factory.mktemp("runs"), per_device_batch_size=8, max_grad_norm=1e9))
    return config, first_step(config)


def _with_training(config, **changes):
    return with_changes(config, training=changes)


def _assert_equal_gradients(found, expected):
    assert found.keys() == expected.keys()
    assert any("coord_offset_adapter" in name for name in expected)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_accumulation_changes_nothing(one_by_eight):
    config, (expected, loss) = one_by_eight
    accumulated = _with_training(config, per_device_batch_size=2, gradient_accumulation_steps=4)
    found, accumulated_loss = first_step(accumulated)
    assert accumulated_loss == pytest.approx(loss, rel=1e-6)
    _assert_equal_gradients(found, expected)


@pytest.mark.ci
def test_two_ranks_change_nothing(one_by_eight, tmp_path, monkeypatch):
    config, (expected, _) = one_by_eight
    for name, value in environment_of_ranks(2).items():
        monkeypatch.setitem(os.environ, name, value)
    halved = _with_training(config, per_device_batch_size=4)
    args = (str(tmp_path / "store"), halved.model_dump_json(), str(tmp_path / "gradients.pt"))
    run_ranks(ranks_worker, args)
    _assert_equal_gradients(torch.load(tmp_path / "gradients.pt"), expected)


def _with_ids(config, ids):
    return with_changes(config, custom={"coord_offset": config.custom.coord_offset.model_dump() | {"ids": ids}})


SOME = [*range(641, 1641, 3), 642]


@pytest.mark.parametrize(
    ("ids", "rows"),
    [({"start": 1000, "end": 1640}, range(359, 1000)), (SOME, [one - 641 for one in sorted(SOME)])],
    ids=["a last part", "a list"],
)
def test_some_coord_tokens_learn_what_they_learn_among_all(one_by_eight, ids, rows):
    """At zero offsets the loss is the same whatever is adapted, and so is each row's gradient."""
    config, (expected, loss) = one_by_eight
    found, found_loss = first_step(_with_ids(config, ids))
    assert found_loss == pytest.approx(loss, rel=1e-6)
    table = next(name for name in expected if name.endswith("embed_offset"))
    _assert_equal_gradients(found, expected | {table: expected[table][list(rows)]})


@pytest.mark.slow  # each part of it has its own test
def test_a_run_on_some_coord_tokens_moves_their_rows_and_merges(base, tmp_path):
    config = _with_ids(prepared(small_config(base, tmp_path, max_steps=3, checkpoint_steps=3)), SOME)
    train_here(config)
    before = load_file(ExperimentFolder.of(config).base(config) / "model.safetensors")
    after = load_file(RunFolder.of(config).merged / "model.safetensors")
    name = next(name for name in before if name.endswith("embed_tokens.weight"))
    moved = (before[name] != after[name]).any(dim=1).nonzero().flatten().tolist()
    assert set(moved) <= set(SOME)
    assert len(moved) > len(SOME) // 2
    adapter = committed_checkpoints(RunFolder.of(config).path)[-1]
    assert read_adapter(adapter).offset.coord_ids == sorted(SOME)
    loaded = load(ExperimentFolder.of(config).base(config), adapter)
    merged = load(RunFolder.of(config).merged)
    samples = default_samples(loaded.processor)
    for ours, theirs in zip(logits_of(loaded.model, samples), logits_of(merged.model, samples), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def _weights(config):
    newest = committed_checkpoints(RunFolder.of(config).path)[-1]
    return load_file(newest / "adapter_model.safetensors")


@pytest.fixture(scope="module")
def undisturbed(base, tmp_path_factory):
    config = prepared(small_config(base, tmp_path_factory.mktemp("runs")))
    train_here(config)
    return config


def test_a_checkpoint_goes_on_the_base_that_was_given(undisturbed, tmp_path):
    """It names that one, not the run's expanded copy, and on either it is the same model, to load and to merge."""
    newest = committed_checkpoints(RunFolder.of(undisturbed).path)[-1]
    base = read_adapter(newest).base
    assert (base.path, base.vocab_init, base.structure) == (undisturbed.model.path, "numeric", "native")
    copy = ExperimentFolder.of(undisturbed).base(undisturbed)
    mine, theirs = (load(place, newest) for place in (base.path, copy))
    sample = default_samples(mine.processor)
    assert torch.equal(logits_of(mine.model, sample)[0], logits_of(theirs.model, sample)[0])
    merge(newest, tmp_path / "merged")
    merged = RunFolder.of(undisturbed).merged
    assert weights_hash(tmp_path / "merged") == weights_hash(merged)
    with pytest.raises(ValueError, match=r"coord_offsets_need_coordexp_model_load.* not found"):
        PeftModel.from_pretrained(load(copy).model, newest)


def test_a_checkpoint_holds_the_adapter_and_nothing_of_the_base(undisturbed):
    folder = committed_checkpoints(RunFolder.of(undisturbed).path)[-1]
    tensors = load_file(folder / "adapter_model.safetensors")
    assert [path.name for path in folder.glob("*.safetensors")] == ["adapter_model.safetensors"]
    assert all("lora_" in name or "coord_offset_adapter" in name for name in tensors)
    assert max(tensor.shape[0] for tensor in tensors.values()) == 1000  # no table of 1,641 rows


def test_a_run_leaves_its_parts(undisturbed):
    folder = RunFolder.of(undisturbed).path
    assert [path.name for path in committed_checkpoints(folder)] == ["step_000002", "step_000004"]
    assert (folder / "merged" / "model.safetensors").is_file()
    trained_with = read_trained_with(folder / "merged")
    assert trained_with == TrainedWith(undisturbed.data.prompt, min_pixels=1024, max_pixels=9216)
    assert read_adapter(committed_checkpoints(folder)[-1]).trained_with == trained_with
    assert not any(path.joinpath("README.md").exists() for path in committed_checkpoints(folder))  # PEFT's empty card
    for decoding in ("constrained", "free"):
        assert (folder / "eval" / "final" / decoding / "detections.expected.json").is_file()
    assert {step for step, _ in rows_without_times(undisturbed)} == {1, 2, 3, 4}
    groups = json.loads(RunFolder.of(undisturbed).param_groups.read_text())
    assert {row["name"] for row in groups} >= {"llm", "vision", "aligner", "coord_embed_offset"}


LAUNCHERS = {  # each of the first three alone changes the losses, the ranks make a run wait for ever
    "ACCELERATE_MIXED_PRECISION": "bf16",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "3",
    "ACCELERATE_DYNAMO_BACKEND": "EAGER",
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_SHARDING_STRATEGY": "FULL_SHARD",
    "PMI_SIZE": "2",
    **environment_of_ranks(2),
    "RANK": "1",
    "LOCAL_RANK": "1",
}


@pytest.mark.timeout(120)
def test_what_launchers_leave_in_the_environment_changes_no_bit(undisturbed, base, tmp_path, monkeypatch):
    for name, value in LAUNCHERS.items():
        monkeypatch.setenv(name, value)
    again = prepared(small_config(base, tmp_path))
    first, *_ = train_here(again)
    assert all(name in first for name in LAUNCHERS)
    assert rows_without_times(again) == rows_without_times(undisturbed)
    for name, tensor in _weights(undisturbed).items():
        assert torch.equal(_weights(again)[name], tensor), name


def test_a_resumed_run_ends_in_the_same_bits(undisturbed, base, tmp_path):
    config = prepared(small_config(base, tmp_path))
    train_here(config, stop=2)
    assert any("resumes at step 2" in line for line in train_here(config))
    assert rows_without_times(config) == rows_without_times(undisturbed)
    for name, tensor in _weights(undisturbed).items():
        assert torch.equal(_weights(config)[name], tensor), name


@pytest.mark.slow
def test_another_seed_gives_other_weights(undisturbed, base, tmp_path):
    """Negative control of the comparisons above."""
    config = prepared(with_changes(small_config(base, tmp_path), experiment={"seed": 1}))
    train_here(config)
    assert rows_without_times(config) != rows_without_times(undisturbed)


class _DiesBeforeItsFinalRows(LocalReporter):
    """Dies after the last checkpoint, in the final evaluation."""

    def commit(self, rows, *, step, checkpoint, is_final=False):
        if checkpoint is None:
            raise KeyboardInterrupt
        super().commit(rows, step=step, checkpoint=checkpoint, is_final=is_final)


@pytest.mark.ci
def test_a_run_that_died_in_its_final_evaluation_trains_no_further(base, tmp_path):
    config = prepared(small_config(base, tmp_path, lr_schedule="constant", logging_steps=3))
    with pytest.raises(KeyboardInterrupt):
        train_run(config, reporter=_DiesBeforeItsFinalRows(RunFolder.of(config).path), print_line=lambda line: None)
    before = _weights(config)
    train_here(config)
    for name, tensor in before.items():
        assert torch.equal(_weights(config)[name], tensor), name
    metrics = rows_without_times(config)
    assert max(step for step, _ in metrics) == 4
    assert [step for step, values in metrics if "train_total_loss" in values] == [3, 4]
    assert any("constrained/num_objects" in values for _, values in metrics)

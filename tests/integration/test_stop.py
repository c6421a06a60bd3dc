"""A run that is asked to stop, and goes on later as if nothing had been."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import distributed

from coordexp.config.schema import ExperimentConfig
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.runs.reporter import committed_checkpoints
from coordexp.runs.stop import RunStoppedError, agreed_stop_reason, clear_stop, request_stop
from tests.support.ranks import environment_of_ranks, leave_group, run_ranks
from tests.support.training import prepared, rows_without_times, small_config, train_here, with_changes

pytestmark = pytest.mark.timeout(240)


def make_config(base: Path, runs_dir: Path) -> ExperimentConfig:
    """Rows at 3 and 6, a checkpoint at 4: neither is at 5, nor at the first step after row 3."""
    steps = {"max_steps": 6, "checkpoint_steps": 4, "logging_steps": 3, "lora": {"dropout": 0.1}}
    config = prepared(small_config(base, runs_dir, **steps))
    return with_changes(config, evaluation={"decoding": ("constrained",)})


@pytest.fixture(scope="module")
def undisturbed(base, tmp_path_factory):
    config = make_config(base, tmp_path_factory.mktemp("runs"))
    train_here(config)
    return config


def stopped_at(config, step, monkeypatch):
    steps = iter(range(1, step + 1))

    def asked(run_directory):
        if next(steps) == step:
            request_stop(run_directory.parent, "the test says so")
        return agreed_stop_reason(run_directory)

    monkeypatch.setattr("coordexp.train.schedule.agreed_stop_reason", asked)
    with pytest.raises(RunStoppedError, match="the test says so"):
        train_here(config)
    monkeypatch.undo()
    assert committed_checkpoints(RunFolder.of(config).path)[-1].name == f"step_{step:06d}"


@pytest.mark.parametrize("step", [5, *(pytest.param(step, marks=pytest.mark.slow) for step in (1, 3, 6))])
def test_a_stopped_run_goes_on_to_the_same_bits_and_rows(undisturbed, base, tmp_path, monkeypatch, step):
    config = make_config(base, tmp_path)
    stopped_at(config, step, monkeypatch)
    if step == 3:
        assert (
            rows_without_times(config) == rows_without_times(undisturbed)[:1]
        )  # a stop commits the rows up to its step
    clear_stop(ExperimentFolder.of(config).path)
    train_here(config)
    assert rows_without_times(config) == rows_without_times(undisturbed)
    expected = load_file(committed_checkpoints(RunFolder.of(undisturbed).path)[-1] / "adapter_model.safetensors")
    found = load_file(committed_checkpoints(RunFolder.of(config).path)[-1] / "adapter_model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_run_asked_before_it_begins_builds_nothing(base, tmp_path):
    config = make_config(base, tmp_path)
    request_stop(RunFolder.of(config).path, "too late")
    with pytest.raises(RunStoppedError, match="too late"):
        train_here(config)
    # live.json is what a board shows; to lose it costs nothing.
    assert {path.name for path in RunFolder.of(config).path.iterdir()} == {"stop.json", "live.json"}


def _listen(rank: int, store: str, directory: str, output: str) -> None:
    """One of two ranks: rank 1 asks at its 25th step, and both must end at the same."""
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    step, reason = 0, None
    while reason is None:
        step += 1
        if rank == 1 and step == 25:
            request_stop(Path(directory), "enough")
        reason = agreed_stop_reason(Path(directory))
    Path(f"{output}.{rank}").write_text(f"{step} {reason}")
    leave_group()


@pytest.mark.ci
def test_ranks_stop_at_the_same_step(tmp_path, monkeypatch):
    for name, value in environment_of_ranks(2).items():
        monkeypatch.setitem(os.environ, name, value)
    args = (str(tmp_path / "store"), str(tmp_path / "exp" / "A-s0"), str(tmp_path / "said"))
    run_ranks(_listen, args)
    said = [(tmp_path / f"said.{rank}").read_text().split(" ", 1) for rank in (0, 1)]
    assert said[0] == said[1]
    assert int(said[0][0]) >= 25
    assert said[0][1] == "enough"

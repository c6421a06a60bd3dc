"""Runs that stop and go on, and what they read, for the tests of the loader."""

import os
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import distributed

from coordexp.config.schema import ExperimentConfig
from coordexp.data import dataset as dataset_module
from coordexp.data.images.pixels import read_image
from coordexp.runs.folder import RunFolder
from coordexp.runs.reporter import read_rows
from coordexp.train import run as run_module
from tests.support.ranks import leave_group
from tests.support.training import StopsAt, with_changes


def train(config: ExperimentConfig, *, stop: int | None = None, lines: list[str] | None = None) -> None:
    """Train without the final evaluation and merge; with ``stop``, die after that step's checkpoint."""
    config = with_changes(config, training={"checkpoint_steps": stop or config.training.max_steps})
    print_line = (lambda line: None) if lines is None else lines.append
    evaluate, run_module._evaluate = run_module._evaluate, lambda run, step, limits: None
    try:
        reporter = StopsAt(RunFolder.of(config).path, step=stop)
        run_module.train_run(config, reporter=reporter, print_line=print_line, merges=False)
    except KeyboardInterrupt:
        assert stop is not None
    finally:
        run_module._evaluate = evaluate


def numbers(config: ExperimentConfig) -> dict[int, dict[str, float]]:
    """Return by step what was logged, without times."""
    found: dict[int, dict[str, float]] = {}
    for row in read_rows(RunFolder.of(config).metrics):
        named = {name: value for name, value in row.metrics.items() if not name.startswith(("throughput", "final"))}
        found.setdefault(row.step, {}).update(named)
    return found


@contextmanager
def reads_in(log: Path):
    """Have every image read note its name in ``log``, also in loader processes that are forked meanwhile."""

    def noting(path: Path, *, width: int | None = None, height: int | None = None):
        handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, f"{path.name}\n".encode())
        os.close(handle)
        return read_image(path, width=width, height=height)

    dataset_module.read_image = noting
    try:
        yield
    finally:
        dataset_module.read_image = read_image


def names_in(log: Path) -> list[str]:
    """Return the names noted so far."""
    return log.read_text().split() if log.exists() else []


def resuming_rank(rank: int, store: str, configs: list[str], stops: list[int | None], log: str) -> None:
    """One of two gloo processes: the first configuration undisturbed, the others with a stop."""
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    shared = {"cluster": {"num_workers": 2}}
    undisturbed, *stopped = [with_changes(ExperimentConfig.model_validate_json(text), **shared) for text in configs]
    train(undisturbed)
    for config, stop in zip(stopped, stops, strict=True):
        train(config, stop=stop)
        if stop is None:
            continue
        with reads_in(Path(f"{log}-{config.experiment.runs_dir.name}-{rank}")):
            train(config)
    leave_group()

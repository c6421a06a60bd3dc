"""Runs that break on purpose, and what must be the same afterwards: final weights and MLflow points.

The stand-in for the trainer core is a small SGD that remembers nothing but its checkpoint. A group's name
says what happens to it, once, where the directory ``disturbed`` lies beside the experiment.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import ray
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import nn

from coordexp.cli.ablation import run_and_report
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import TrainingError
from coordexp.metrics import BOX_KINDS
from coordexp.runs import ranks
from coordexp.runs.folder import ExperimentFolder, RunFolder, step_of
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.runs.reporter import Row

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS = 6
CHECKPOINT_STEPS = 2


def fault_config(base: Path, runs_dir: Path, groups: tuple[str, ...], **cluster: object) -> ExperimentConfig:
    """Return an ablation whose groups are faults."""
    return ExperimentConfig.model_validate(
        {
            "experiment": {"name": "faults", "runs_dir": str(runs_dir)},
            "model": {"path": str(base)},
            "data": {"shapes": {"num_train": 4, "num_val": 3}},
            "training": {"max_steps": STEPS, "checkpoint_steps": CHECKPOINT_STEPS},
            "cluster": {"max_failures": 1, **cluster},
            "ablation": {"groups": {group: {} for group in groups}},
        }
    )


def with_faults(config: ExperimentConfig) -> ExperimentConfig:
    """Let the faults happen that the groups are named for."""
    (config.experiment.runs_dir / "disturbed").mkdir(parents=True)
    return config


def run(config: ExperimentConfig, function: Callable[..., None] | None = None) -> tuple[int, str]:
    """Run the ablation; return its exit code and what it said."""
    text = io.StringIO()
    console = Console(file=text, width=200)
    return run_and_report(config, console=console, function=function or small_sgd), text.getvalue()


def small_sgd(config, *, reporter, print_line):
    """Train a small network with momentum, a row each step, a checkpoint every second one; rank 0 writes."""
    torch.manual_seed(config.experiment.seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    where, newest, first = RunFolder.of(config).path, reporter.latest_checkpoint(), ranks.rank() == 0
    done = _load(newest, model, optimizer) if newest else 0
    if first:
        with (where / "attempts").open("a") as handle:
            handle.write(f"{done} {os.getpid()}\n")
    for step in range(done + 1, STEPS + 1):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        loss = ((model(x) - x.flip(1)) ** 2).mean()
        if first:
            happens(config, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        row = Row(step=step, time=time.time(), metrics={"train_total_loss": loss.item(), "grad_norm": step / 7})
        due = first and step % CHECKPOINT_STEPS == 0
        reporter.commit([row], step=step, checkpoint=_save(config, model, optimizer, step) if due else None)
        print_line(f"{where.name}  step {step}/{STEPS}")
    final = where / "eval" / "final" / "constrained"
    if first:
        save_file(dict(model.state_dict()), where / "final.safetensors")
        final.mkdir(parents=True, exist_ok=True)
        for kind in BOX_KINDS:
            (final / f"detections.{kind}.json").write_text("[]")
    metrics = {f"constrained/{kind}/AP": 0.25 for kind in BOX_KINDS} | {"final/steps": float(STEPS)}
    reporter.commit([Row(step=STEPS, time=time.time(), metrics=metrics)], step=STEPS, checkpoint=None)


def happens(config, step: int) -> None:
    """Let a group's fault happen in the middle of a step, once."""
    where, group = RunFolder.of(config).path, config.experiment.group
    if not is_due(config):
        return
    newest = sorted((where / "checkpoints").glob("step_*/state.pt"))
    if group == "mid_step" and step == 4:
        die(where)
    if group == "half_upload" and step == 4:
        half = where / "checkpoints" / "step_000004"
        half.mkdir()
        shutil.copy(newest[-1], half / "state.pt")
        die(where)
    if group == "truncated" and step == 5:
        os.truncate(newest[-1], newest[-1].stat().st_size // 2)
        die(where)
    if group == "all_damaged" and step == 5:
        os.truncate(newest[-1], 0)
        newest[0].write_bytes(bytes(newest[0].stat().st_size))
        die(where)
    if group == "fails" and step == 3:
        raise TrainingError("the loss is nan at step 3")
    if group.startswith("disk") and step == 4:
        # The save needs its 4 MiB twice: where it is written, and where Ray copies it to.
        fill_disk(where.parent.parent / "ballast", leave=2**20 if group == "disk_at_save" else 6 * 2**20)


def die(where: Path) -> None:
    """End this worker as the kernel does when memory is out."""
    (where / "happened").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def is_due(config) -> bool:
    """Return whether a run's fault is still to come."""
    where = RunFolder.of(config).path
    return (where.parent.parent / "disturbed").is_dir() and not (where / "happened").exists()


def fill_disk(ballast: Path, *, leave: int) -> None:
    """Write a file until so many bytes are left."""
    room = shutil.disk_usage(ballast.parent).free - leave
    with ballast.open("wb") as handle:
        for _ in range(room // 2**16):
            handle.write(bytes(2**16))


def _save(config, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Path:
    where, group = RunFolder.of(config).path, config.experiment.group
    scratch = Path(tempfile.mkdtemp(dir=where, prefix=".scratch-"))
    try:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, scratch / "state.pt")
        if group.startswith("disk"):
            torch.save(torch.zeros(2**20), scratch / "padding.pt")
    except BaseException:
        shutil.rmtree(scratch)  # as the trainer's own
        raise
    if group == "in_checkpoint" and step == 4 and is_due(config):
        os.truncate(scratch / "state.pt", 100)
        die(where)
    return scratch


def _load(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    state = torch.load(checkpoint / "state.pt", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return step_of(checkpoint)


def wait_for(condition: Callable[[], object], *, what: str, seconds: float = 240) -> None:
    """Wait until something is so; a test that waits in vain fails."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds} seconds"
        time.sleep(0.02)


def attempts(plan: RunPlan) -> list[int]:
    """Return the steps a run's tries began at."""
    return [int(line.split()[0]) for line in (plan.run_dir / "attempts").read_text().splitlines()]


def weights(plan: RunPlan) -> dict[str, torch.Tensor]:
    """Return a run's final weights."""
    return load_file(plan.run_dir / "final.safetensors")


def points(config: ExperimentConfig, plan: RunPlan) -> Counter[tuple[str, int, float]]:
    """Return every point MLflow has of a run, without its time."""
    query = """SELECT m.key, m.step, m.value FROM metrics m JOIN tags t ON t.run_uuid = m.run_uuid
        WHERE t.key = 'run_key' AND t.value = ?"""
    with contextlib.closing(sqlite3.connect(config.experiment.runs_dir / "mlflow.db")) as database:
        return Counter(database.execute(query, (plan.key,)).fetchall())


def mlflow_status(config: ExperimentConfig, plan: RunPlan) -> tuple[str, str]:
    """Return a run's status and its sentence in MLflow."""
    query = """SELECT r.status, coalesce(n.value, '') FROM runs r JOIN tags t ON t.run_uuid = r.run_uuid
        LEFT JOIN tags n ON n.run_uuid = r.run_uuid AND n.key = 'message'
        WHERE t.key = 'run_key' AND t.value = ?"""
    with contextlib.closing(sqlite3.connect(config.experiment.runs_dir / "mlflow.db")) as database:
        (found,) = database.execute(query, (plan.key,)).fetchall()
    return found


def progress(plan: RunPlan) -> str:
    """Return what a run printed."""
    return (plan.run_dir / "progress.log").read_text()


def plans_of(config: ExperimentConfig) -> dict[str, RunPlan]:
    """Return the runs of an experiment that has begun, by name, with the keys that MLflow knows."""
    instance = json.loads((ExperimentFolder.of(config).record).read_text())["instance"]
    return {plan.name: plan for plan in plan_runs(config, instance=instance)}


class Undisturbed:
    """The same runs without a fault, executed inline: what every faulty one must equal."""

    def __init__(self, config: ExperimentConfig, function: Callable[..., None] | None = None) -> None:
        """Run them."""
        self.config = config
        code, text = run(config, function)
        assert code == 0, text
        self.plans = plans_of(config)

    def assert_equals(self, config: ExperimentConfig, name: str) -> None:
        """Compare a run's final weights bit by bit, and its points in MLflow."""
        reference, plan = self.plans[name], plans_of(config)[name]
        assert plan.is_finished(), plan.status()
        expected, found = weights(reference), weights(plan)
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[key], found[key]) for key in expected)
        wanted, there = points(self.config, reference), points(config, plan)
        assert len(wanted) >= 2 * STEPS
        assert there == wanted, f"missing {wanted - there}, doubled or new {there - wanted}"

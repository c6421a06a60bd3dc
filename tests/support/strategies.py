"""Whole runs on several processes, as Ray Train starts them, without Ray."""

import os
from pathlib import Path

import torch
from torch import distributed, multiprocessing
from transformers import TrainerCallback

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import DivergedError
from coordexp.runs import ranks
from coordexp.runs.folder import RunFolder
from coordexp.runs.reporter import LocalReporter
from coordexp.runs.rows import read_rows
from coordexp.train.run import TrainingRun, make_trainer, train_run
from coordexp.train.schedule import Schedule
from coordexp.train.setup.components import build_components
from coordexp.train.trainer import CoordTrainer
from tests.support.ports import free_port
from tests.support.ranks import leave_group
from tests.support.training import StopsAt


def one_of_many(rank: int, world: int, port: int, config_json: str, stop: int | None, output: str) -> None:
    """One process of a run; an error goes to a file."""
    _join(rank, world, port)
    config = ExperimentConfig.model_validate_json(config_json)
    _note_images(RunFolder.of(config).path)
    lines: list[str] = []
    try:
        train_run(config, reporter=StopsAt(RunFolder.of(config).path, step=stop), print_line=lines.append)
    except KeyboardInterrupt:
        pass
    except ValueError as error:
        Path(f"{output}-error-{rank}").write_text(f"{type(error).__name__}: {error}")
    finally:
        Path(f"{output}-lines-{rank}").write_text("\n".join(lines))
    leave_group()


class _Snapshot(TrainerCallback):
    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}

    def on_step_begin(self, args, state, control, *, model, **kwargs):
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def diverging(rank: int, world: int, port: int, config_json: str, stop: int | None, output: str) -> None:
    """One process of a run whose gradients are not finite at step ``stop``; writes what became of its weights."""
    _join(rank, world, port)
    config = ExperimentConfig.model_validate_json(config_json)
    compute_loss = CoordTrainer.compute_loss

    def broken(self, *args, **kwargs):
        loss = compute_loss(self, *args, **kwargs)
        return loss * float("inf") if self.state.global_step + 1 == stop else loss

    CoordTrainer.compute_loss = broken
    reporter = LocalReporter(Path(f"{output}-rows-{rank}"))
    run = TrainingRun.of(config, build_components(config), reporter=reporter, print_line=lambda line: None)
    trainer = make_trainer(run, Path(f"{output}-scratch-{rank}"))
    snapshot = _Snapshot()
    trainer.remove_callback(Schedule)
    trainer.add_callback(snapshot)
    said = "nothing"
    try:
        trainer.train()
    except DivergedError as error:
        now = dict(trainer.model.named_parameters())
        kept = all(torch.equal(now[name], before) for name, before in snapshot.weights.items())
        said = f"{kept} {len(snapshot.weights)} {error}"
    Path(f"{output}-said-{rank}").write_text(said)
    leave_group()


def _join(rank: int, world: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method="env://", rank=rank, world_size=world)


def _note_images(directory: Path) -> None:
    compute_loss = CoordTrainer.compute_loss
    directory.mkdir(parents=True, exist_ok=True)

    def noting(self, model, inputs, *args, **kwargs):
        with (directory / f"images-{ranks.rank()}").open("a") as handle:
            handle.write(f"{self.state.global_step + 1} {' '.join(map(str, inputs.image_ids.tolist()))}\n")
        return compute_loss(self, model, inputs, *args, **kwargs)

    CoordTrainer.compute_loss = noting


def spawn(function, world: int, config: ExperimentConfig, output: Path, *, stop: int | None) -> None:
    """Start ``one_of_many`` or ``diverging`` in so many processes and wait."""
    multiprocessing.spawn(
        function, args=(world, free_port(), config.model_dump_json(), stop, str(output)), nprocs=world
    )


def run_on(world: int, config: ExperimentConfig, output: Path, *, stop: int | None = None) -> list[str]:
    """Run on so many processes, to the end or a stop; return what rank 0 printed."""
    spawn(one_of_many, world, config, output, stop=stop)
    return Path(f"{output}-lines-0").read_text().splitlines()


def losses_of(config: ExperimentConfig) -> list[float]:
    """Return the training loss of each step."""
    rows = read_rows(RunFolder.of(config).metrics)
    return [row.metrics["train_total_loss"] for row in rows if "train_total_loss" in row.metrics]


def images_of(config: ExperimentConfig) -> dict[int, list[int]]:
    """Return the ids of the images that all processes saw at each step."""
    found: dict[int, list[int]] = {}
    for path in RunFolder.of(config).path.glob("images-*"):
        for line in path.read_text().splitlines():
            step, *ids = map(int, line.split())
            found[step] = sorted([*found.get(step, []), *ids])
    return found

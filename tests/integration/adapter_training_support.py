"""CoordTrainer on one process, on DDP and on DeepSpeed ZeRO-2: the same run three ways."""

import os
from pathlib import Path

import torch
from torch import distributed

from coordexp.config.schema import ExperimentConfig
from coordexp.runs.reporter import LocalReporter
from coordexp.train.loop.schedule import Schedule
from coordexp.train.run import Run, make_trainer
from coordexp.train.setup.components import build_components
from tests.integration.ranks_support import leave_group

WORLD_SIZE = 2


def train(config: ExperimentConfig, output: Path) -> dict[str, object]:
    """Train a run, save its adapter on rank 0 and return what it was and how it went."""
    run = Run.of(config, build_components(config), reporter=LocalReporter(output), print_line=lambda line: None)
    trainer = make_trainer(run, output / "scratch")
    trainer.remove_callback(Schedule)
    trainer.train()
    trainer.save_model(str(output / "adapter"))
    engine = trainer.model_wrapped
    return {
        "losses": [row.metrics["train_total_loss"] for row in run.log.rows if "train_total_loss" in row.metrics],
        "world_size": trainer.args.world_size,
        "engine": type(engine).__name__,
        "zero_stage": engine.zero_optimization_stage() if hasattr(engine, "zero_optimization_stage") else 0,
        "micro_batch": engine.train_micro_batch_size_per_gpu() if hasattr(engine, "zero_optimization_stage") else 0,
        "parameter_dtype": {str(p.dtype) for p in trainer.model.parameters() if p.requires_grad},
    }


def worker(rank: int, store: str, config_json: str, zero2: bool, output: str) -> None:
    """One of two processes; each writes what it saw, rank 0 the adapter too."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD_SIZE)
    config = ExperimentConfig.model_validate_json(config_json)
    cluster = config.cluster.model_copy(
        update={"num_workers": WORLD_SIZE, "strategy": "zero2" if zero2 else config.cluster.strategy}
    )
    seen = train(config.model_copy(update={"cluster": cluster}), Path(output))
    torch.save(seen, f"{output}/seen-{rank}.pt")
    leave_group()

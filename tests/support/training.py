"""A small experiment for tests: random Qwen3-VL base, a few generated images."""

from pathlib import Path

import torch
from torch import distributed
from transformers import TrainerCallback

from coordexp.config.schema import ExperimentConfig
from coordexp.model.tiny.parts import build_tokenizer, save_base
from coordexp.runs import ranks
from coordexp.runs.folder import RunFolder
from coordexp.runs.reporter import LocalReporter, read_rows
from coordexp.train.run import TrainingRun, make_trainer, train_run
from coordexp.train.schedule import Schedule
from coordexp.train.setup.components import build_components
from coordexp.train.setup.prepare import prepare_experiment
from tests.support.ranks import leave_group
from tests.support.tiny_model import build_shallow

OBJECTIVES = {
    "A": {"use_coord_ce": True},
    "B": {"use_coord_ce": False, "use_coordexp_loss": True, "use_geom_loss": True},
    "C": {"use_coord_ce": True, "use_coordexp_loss": True, "use_geom_loss": True},
}


def write_base(path: Path) -> Path:
    """Save a random base."""
    tokenizer = build_tokenizer()
    save_base(path, build_shallow(tokenizer), tokenizer)
    return path


def small_config(base: Path, runs_dir: Path, *, group: str = "C", **training: object) -> ExperimentConfig:
    """Return one run's configuration on 24 + 6 images."""
    steps = {"max_steps": 4, "checkpoint_steps": 2, "logging_steps": 1, "per_device_batch_size": 4}
    return ExperimentConfig.model_validate(
        {
            "experiment": {"name": "small", "runs_dir": str(runs_dir), "group": group},
            "model": {"path": str(base), "dtype": "float32"},
            "data": {"shapes": {"num_train": 24, "num_val": 6}},
            "training": {"optimizer": "multimodal_coord_offset", "learning_rate": 1e-3, **steps, **training},
            "custom": {"coord_offset": {"enabled": True, "embed_lr": 1e-2, "head_lr": 1e-2}},
            "objective": OBJECTIVES[group],
            "evaluation": {"batch_size": 6, "max_new_tokens": 24, "loss_images": 4},
        }
    )


def with_changes(config: ExperimentConfig, **sections: dict[str, object]) -> ExperimentConfig:
    """Return a configuration with some keys of some sections changed, validated again."""
    document = config.model_dump()
    for name, changes in sections.items():
        document[name] |= changes
    return ExperimentConfig.model_validate(document)


class StopsAt(LocalReporter):
    """Dies right after the commit of a step's checkpoint, as a killed worker does; with None, never."""

    def __init__(self, run_dir: Path, *, step: int | None) -> None:
        """Stop after ``step``."""
        super().__init__(run_dir, keep_checkpoints=9)
        self._stop = step

    def commit(self, rows, *, step, checkpoint, is_final=False):
        """Commit on all ranks, then perhaps die."""
        super().commit(rows, step=step, checkpoint=checkpoint, is_final=is_final)
        ranks.barrier()
        if step == self._stop and checkpoint is not None:
            raise KeyboardInterrupt


def train_here(config: ExperimentConfig, *, stop: int | None = None) -> list[str]:
    """Train a run in this process, to its end or to the checkpoint of step ``stop``; return what it printed."""
    lines: list[str] = []
    try:
        train_run(config, reporter=StopsAt(RunFolder.of(config).path, step=stop), print_line=lines.append)
    except KeyboardInterrupt:
        assert stop is not None
    else:
        assert stop is None
    return lines


def rows_without_times(config: ExperimentConfig) -> list[tuple[int, dict[str, float]]]:
    """Return the steps and metrics of a run's rows without what the clock says."""
    volatile = ("second", "throughput")
    return [
        (row.step, {name: value for name, value in row.metrics.items() if not any(v in name for v in volatile)})
        for row in read_rows(RunFolder.of(config).metrics)
    ]


class KeepGradients(TrainerCallback):
    """Copies the gradients just before the optimizer moves."""

    def __init__(self) -> None:
        """Start empty."""
        self.gradients: dict[str, torch.Tensor] = {}

    def on_pre_optimizer_step(self, args, state, control, *, model, **kwargs):
        """Copy."""
        named = model.named_parameters()
        self.gradients = {name: p.grad.clone() for name, p in named if p.grad is not None}


def first_step(config: ExperimentConfig) -> tuple[dict[str, torch.Tensor], float]:
    """Train one step and return its gradients and loss."""
    lines: list[str] = []
    reporter = LocalReporter(config.experiment.runs_dir / "unused")
    run = TrainingRun.of(config, build_components(config), reporter=reporter, print_line=lines.append)
    trainer = make_trainer(run, config.experiment.runs_dir / f"scratch-{ranks.rank()}")
    keep = KeepGradients()
    trainer.remove_callback(Schedule)
    trainer.add_callback(keep)
    trainer.args.max_steps = 1
    trainer.train()
    return keep.gradients, run.log.rows[0].metrics["train_total_loss"]


def ranks_worker(rank: int, store: str, config_json: str, output: str) -> None:
    """One of two gloo processes; rank 0 saves its gradients."""
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    config = ExperimentConfig.model_validate_json(config_json)
    gradients, _ = first_step(with_changes(config, cluster={"num_workers": 2}))
    if rank == 0:
        torch.save(gradients, output)
    leave_group()


def prepared(config: ExperimentConfig) -> ExperimentConfig:
    """Prepare the experiment and return its configuration."""
    prepare_experiment(config)
    return config

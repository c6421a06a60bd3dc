"""A small experiment for tests: random Qwen3-VL base, a few generated images."""

from pathlib import Path

import torch
from torch import distributed
from transformers import TrainerCallback

from coordexp.config.schema import ExperimentConfig
from coordexp.model.tiny.parts import build_tokenizer, save_base
from coordexp.runs.reporter import LocalReporter
from coordexp.train.run import Run, make_trainer
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
    run = Run.of(config, build_components(config), reporter=reporter, print_line=lines.append)
    trainer = make_trainer(run, config.experiment.runs_dir / f"scratch-{_rank()}")
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
    gradients, _ = first_step(
        config.model_copy(update={"cluster": config.cluster.model_copy(update={"num_workers": 2})})
    )
    if rank == 0:
        torch.save(gradients, output)
    leave_group()


def prepared(config: ExperimentConfig) -> ExperimentConfig:
    """Prepare the experiment and return its configuration."""
    prepare_experiment(config)
    return config


def _rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0

"""Groups x seeds -> the runs of an experiment, each with a key that tells whether it was done already."""

import json
from dataclasses import dataclass
from pathlib import Path

from coordexp.config import from_json, group_config, group_names, to_json
from coordexp.config.identity.parts import identity
from coordexp.config.schema import ExperimentConfig
from coordexp.files import sha256_of_text
from coordexp.runs.folder import RunFolder
from coordexp.runs.status import RunStatus, read_status


@dataclass(frozen=True)
class RunPlan:
    """One run to be: one group with one seed.

    Attributes:
        key: ``experiment/group/sSEED/hash``; equal keys are the same run.
        group: the arm.
        seed: its seed.
        config: the resolved configuration of this run alone.
        run_dir: absolute path of everything the run writes.
    """

    key: str
    group: str
    seed: int
    config: ExperimentConfig
    run_dir: Path

    @property
    def name(self) -> str:
        """``A-s0``, unique within the experiment."""
        return self.run_dir.name

    @property
    def folder(self) -> RunFolder:
        """The run directory and the names in it."""
        return RunFolder(self.run_dir)

    def status(self) -> RunStatus | None:
        """Return what the run directory says, or None for a run never begun."""
        return read_status(self.run_dir)

    def to_json(self) -> str:
        """Return the plan as it travels to other processes."""
        return json.dumps([self.key, self.group, self.seed, to_json(self.config), str(self.run_dir)])

    @staticmethod
    def from_json(text: str) -> "RunPlan":
        """Read a plan that travelled; its configuration is validated again."""
        key, group, seed, config, run_dir = json.loads(text)
        return RunPlan(key, group, seed, from_json(config), Path(run_dir))

    def is_finished(self) -> bool:
        """Tell whether the run needs no more work."""
        status = self.status()
        return status is not None and status.state == "finished"


def with_absolute_paths(config: ExperimentConfig) -> ExperimentConfig:
    """Return the configuration with an absolute ``runs_dir``: workers have another working directory."""
    runs_dir = config.experiment.runs_dir.expanduser().absolute()
    return config.model_copy(update={"experiment": config.experiment.model_copy(update={"runs_dir": runs_dir})})


def plan_runs(config: ExperimentConfig, *, instance: str = "") -> list[RunPlan]:
    """Return all runs, whole seeds first, so that an early stop leaves a balanced comparison.

    Args:
        config: the experiment.
        instance: which life of the experiment name this is; ``--fresh`` changes it and so every key.

    Raises:
        ConfigError: if a group's changes do not make a valid configuration.
    """
    return [
        _plan(group_config(with_absolute_paths(config), group, seed), instance)
        for seed in config.ablation.seeds
        for group in group_names(config)
    ]


def images_per_step(config: ExperimentConfig) -> int:
    """Return how many images one optimizer step sees, over all workers."""
    training = config.training
    return training.per_device_batch_size * training.gradient_accumulation_steps * config.cluster.num_workers


def _plan(config: ExperimentConfig, instance: str) -> RunPlan:
    experiment = config.experiment
    text = instance + json.dumps(identity(config), sort_keys=True)
    return RunPlan(
        key=f"{experiment.name}/{experiment.group}/s{experiment.seed}/{sha256_of_text(text)[:12]}",
        group=experiment.group,
        seed=experiment.seed,
        config=config,
        run_dir=RunFolder.of(config).path,
    )

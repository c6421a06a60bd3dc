"""Where an experiment and its runs keep their files."""

from pathlib import Path

from coordexp.config.schema import ExperimentConfig


def experiment_dir(config: ExperimentConfig) -> Path:
    """Return the directory of the whole experiment."""
    return config.experiment.runs_dir / config.experiment.name


def run_dir(config: ExperimentConfig) -> Path:
    """Return the directory of one run, ``GROUP-sSEED``."""
    return experiment_dir(config) / f"{config.experiment.group}-s{config.experiment.seed}"


def data_dir(config: ExperimentConfig) -> Path:
    """Return where a generated data set lies."""
    return experiment_dir(config) / "data"


def base_dir(config: ExperimentConfig) -> Path:
    """Return the expanded checkpoint that every run with this target structure starts from."""
    return experiment_dir(config) / f"base-{config.data.structure}"

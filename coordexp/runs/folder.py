"""Where an experiment and its runs keep their files."""

import json
from pathlib import Path

from coordexp.config.schema import ExperimentConfig
from coordexp.files import sha256_of_text


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
    """Return the expanded checkpoint that every run with this model and target structure starts from."""
    model = config.model
    tag = sha256_of_text(json.dumps([model.path, model.revision, model.vocab_init, model.dtype]))[:8]
    return experiment_dir(config) / f"base-{config.data.structure}-{tag}"

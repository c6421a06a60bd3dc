"""The schema of a configuration, one file a section."""

from coordexp.config.schema.experiment import (
    Ablation,
    Cluster,
    Evaluation,
    Experiment,
    ExperimentConfig,
    Model,
    Tracking,
)

__all__ = ["Ablation", "Cluster", "Evaluation", "Experiment", "ExperimentConfig", "Model", "Tracking"]

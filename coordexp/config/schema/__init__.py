"""The schema of a configuration, one file a section."""

from coordexp.config.schema.cluster import Cluster
from coordexp.config.schema.experiment import Ablation, Experiment
from coordexp.config.schema.root import KEYS, ExperimentConfig, RunConfig

__all__ = ["KEYS", "Ablation", "Cluster", "Experiment", "ExperimentConfig", "RunConfig"]

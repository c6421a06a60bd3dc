"""The schema of a configuration, one file a section."""

from coordexp.config.schema.ablation import Ablation
from coordexp.config.schema.cluster import Cluster
from coordexp.config.schema.data import Data
from coordexp.config.schema.evaluation import Evaluation
from coordexp.config.schema.experiment import Experiment
from coordexp.config.schema.model import Model
from coordexp.config.schema.root import KEYS, ExperimentConfig, RunConfig
from coordexp.config.schema.tracking import Tracking
from coordexp.config.schema.training import Training

__all__ = [
    "KEYS",
    "Ablation",
    "Cluster",
    "Data",
    "Evaluation",
    "Experiment",
    "ExperimentConfig",
    "Model",
    "RunConfig",
    "Tracking",
    "Training",
]

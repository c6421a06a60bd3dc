"""The configuration of an experiment and of its runs: load it, fingerprint and compare runs."""

from coordexp.config.identity.differences import (
    KeyDifference,
    check_comparable,
    diff,
    differences_table,
    find_differences,
)
from coordexp.config.identity.fingerprint import Fingerprint, fingerprint
from coordexp.config.load import load_config, to_yaml
from coordexp.config.schema import ExperimentConfig, RunConfig

__all__ = [
    "ExperimentConfig",
    "Fingerprint",
    "KeyDifference",
    "RunConfig",
    "check_comparable",
    "diff",
    "differences_table",
    "find_differences",
    "fingerprint",
    "load_config",
    "to_yaml",
]

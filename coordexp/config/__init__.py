"""The configuration of an experiment: load it, resolve its groups, fingerprint and compare runs."""

from coordexp.config.groups import group_config, group_names, single_run
from coordexp.config.identity.differences import (
    KeyDifference,
    check_comparable,
    diff,
    differences_table,
    find_differences,
    outside_factor,
)
from coordexp.config.identity.fingerprint import Fingerprint, fingerprint
from coordexp.config.load import load_config, to_yaml
from coordexp.config.schema import ExperimentConfig

__all__ = [
    "ExperimentConfig",
    "Fingerprint",
    "KeyDifference",
    "check_comparable",
    "diff",
    "differences_table",
    "find_differences",
    "fingerprint",
    "group_config",
    "group_names",
    "load_config",
    "outside_factor",
    "single_run",
    "to_yaml",
]

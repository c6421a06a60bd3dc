"""The configuration of an experiment and of its runs: load it, fingerprint and compare runs.

- ``schema``: the keys, one file for each section; ``keys``: what they decide, and views of a configuration by it;
- ``load``: from files and overrides to a validated experiment, with ``yaml_file``, ``trees`` and ``groups``;
- ``explain``, ``removed``, ``tuning``: what is wrong with a configuration, in a sentence with its place;
- ``identity``: what a run's numbers depend on, and whether two runs may be compared.
"""

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

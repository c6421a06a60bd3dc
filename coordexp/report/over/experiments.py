"""Experiments that differ in one key of the configuration, in the order of its values; others are refused."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coordexp.config.identity.differences import Differences, diff, outside_factor, shown_value
from coordexp.config.identity.fingerprint import Fingerprint
from coordexp.config.keys import is_key, unknown_key
from coordexp.config.trees import value_at
from coordexp.errors import ComparisonError, ConfigError, counted
from coordexp.files import JsonValue
from coordexp.report.records.artifacts import Artifacts
from coordexp.report.records.data import ExperimentData, RunRecord, by_group
from coordexp.report.study.about import fingerprint_of

STEPS = ("training.max_steps", "training.epochs", "evaluation.every_steps")
"""Keys that are counted in steps or passes, and so follow from the amount of data."""
_NAMED = 4


@dataclass(frozen=True)
class OverExperiment:
    """One of the experiments."""

    name: str
    value: JsonValue  # of the key
    label: str  # the value as a table writes it
    runs: tuple[RunRecord, ...]  # with the names that groups have in their own experiment

    @property
    def groups(self) -> list[str]:
        return list(by_group(self.runs))


def experiments_over(
    key: str, data: ExperimentData, artifacts: Artifacts, *, allow_differences: bool = False
) -> list[OverExperiment]:
    """Divide runs by experiment and order these by their values of a key, numbers from the smallest on.

    Args:
        key: the dotted key.
        data: the runs of all experiments, as ``load_experiments`` reads them.
        artifacts: finds configurations and fingerprints.
        allow_differences: take experiments that differ in more than the key.

    Raises:
        ConfigError: if the key is none, or has not one value in each experiment, another one in each.
        ComparisonError: if runs of one group and seed differ in anything but the key and what follows from it.
    """
    if not is_key(key):
        raise ConfigError(f"--over: {unknown_key(key)}")
    runs_by_experiment: dict[str, list[RunRecord]] = {}
    for run in data.trained:
        group = run.group.removeprefix(f"{run.experiment}/")
        runs_by_experiment.setdefault(run.experiment, []).append(replace(run, group=group))
    if len(runs_by_experiment) < 2:
        raise ConfigError(
            f"--over {key} compares two experiments or more, got {', '.join(runs_by_experiment) or 'none'}"
        )

    experiments: list[OverExperiment] = []
    for name, runs in runs_by_experiment.items():
        value = _value_in(key, name, runs, artifacts)
        experiments.append(OverExperiment(name, value, label_of(value), tuple(runs)))
    _refuse_equal_values(key, experiments)
    if all(_is_number(experiment.value) for experiment in experiments):
        experiments.sort(key=lambda experiment: float(str(experiment.value)))
    if not allow_differences:
        _refuse_other_differences(key, experiments, artifacts)
    return experiments


def label_of(value: JsonValue) -> str:
    """Return a value as a table writes it: ``2,400``, ``0.003``, ``top_left``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value if isinstance(value, str) else shown_value(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value_in(key: str, name: str, runs: Sequence[RunRecord], artifacts: Artifacts) -> JsonValue:
    """Return the one value of a key in the configurations of an experiment's runs."""
    runs_by_label: dict[str, RunRecord] = {}
    value: JsonValue = None
    for run in runs:
        tree = artifacts.config(run)
        if not tree:
            continue  # it has not begun
        value = value_at(tree, key)
        runs_by_label.setdefault(label_of(value), run)
    if not runs_by_label:
        raise ConfigError(f"--over {key}: no run of {name} has its config.yaml, on this machine or in MLflow")
    if isinstance(value, dict):
        raise ConfigError(f"--over {key}: this is a section; name one key of it, such as {key}.{next(iter(value), '')}")
    if len(runs_by_label) > 1:
        values = ", ".join(f"{run.name}: {label}" for label, run in runs_by_label.items())
        raise ConfigError(f"--over {key}: runs of {name} differ in it ({values}); expected one value an experiment")
    return value


def _refuse_equal_values(key: str, experiments: Sequence[OverExperiment]) -> None:
    names_by_label: dict[str, str] = {}
    for experiment in experiments:
        first_name = names_by_label.setdefault(experiment.label, experiment.name)
        if first_name != experiment.name:
            raise ConfigError(
                f"--over {key}: it is {experiment.label} in both {first_name} and {experiment.name}; expected another "
                "value in each experiment"
            )


def _refuse_other_differences(key: str, experiments: Sequence[OverExperiment], artifacts: Artifacts) -> None:
    """Raise a ComparisonError if runs of one group and seed differ in more than the key and what follows from it.

    Each run is compared with that of the first experiment which has its group and seed: experiments need not have the
    same groups, and the groups of one experiment differ from each other in its own factor.
    """
    first_with_run: dict[str, tuple[OverExperiment, Fingerprint]] = {}
    for place, experiment in enumerate(experiments):
        has_counterpart = False
        for run in experiment.runs:
            fingerprint = fingerprint_of(run, artifacts)
            if fingerprint is None:
                continue  # it has not begun
            first, first_fingerprint = first_with_run.setdefault(run.name, (experiment, fingerprint))
            if first is experiment:
                continue
            has_counterpart = True
            differences = _other_differences(key, (first, first_fingerprint), (experiment, fingerprint))
            if differences:
                raise ComparisonError(
                    f"{run.name} of {first.name} and of {experiment.name} differ in more than {key} and the steps that "
                    f"follow from it: {_listed(differences)}; make them equal, or give --allow-differences to see the "
                    "report all the same"
                )
        if place and not has_counterpart:
            names = ", ".join(earlier.name for earlier in experiments[:place])
            raise ComparisonError(
                f"{experiment.name} has no group and seed in common with {names}, so its leads cannot be compared with "
                f"theirs over {key}"
            )


def _other_differences(
    key: str, first: tuple[OverExperiment, Fingerprint], second: tuple[OverExperiment, Fingerprint]
) -> Differences:
    """Return in what two runs differ that neither the key nor the steps explain."""
    (experiment, fingerprint), (other, other_fingerprint) = first, second
    # A key of paths is not in a fingerprint, which has hashes of what lies there. Here it explains those.
    differences = {**diff(fingerprint, other_fingerprint), key: (experiment.value, other.value)}
    went_on = {*fingerprint.went_on, *other_fingerprint.went_on}
    return outside_factor(differences, (key, *STEPS), went_on)


def _listed(differences: Differences) -> str:
    """Return the first differing keys with their values, and how many more there are."""
    named = [f"{key} ({shown_value(a)} and {shown_value(b)})" for key, (a, b) in list(differences.items())[:_NAMED]]
    num_left = len(differences) - len(named)
    more = f" and {counted(num_left, 'more difference')}" if num_left else ""
    return f"{', '.join(named)}{more}"

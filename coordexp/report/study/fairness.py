"""Whether the runs of a report differ in the declared factor only, as a table of what differs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordexp.config.identity.differences import diff, find_differences, flat_values, rounding_only
from coordexp.config.identity.fingerprint import Fingerprint, read_fingerprint
from coordexp.config.keys import is_rounding
from coordexp.config.schema import Ablation
from coordexp.config.trees import value_at, within
from coordexp.errors import ComparisonError
from coordexp.report.study.artifacts import NAMES, Artifacts
from coordexp.report.study.data import ExperimentData, RunData

_NAMED = 12


@dataclass(frozen=True)
class FairnessRow:
    """One thing in which runs differ.

    Attributes:
        key: ``objective.use_coord_ce``, ``data`` and so on.
        declared: whether the declared factor names or explains it, or it changes rounding only.
        values: written values by run name; "" where a run has no such key.
    """

    key: str
    declared: bool
    values: tuple[tuple[str, str], ...]

    @property
    def word(self) -> str:
        """``declared`` as a table says it."""
        return "NO" if not self.declared else "rounding" if is_rounding(self.key) else "yes"


@dataclass(frozen=True)
class Fairness:
    """What the fingerprints say.

    Attributes:
        comparable: no run differs from another outside the factor.
        factor: the keys that were declared to differ.
        rows: what differs, undeclared differences first.
        checked: names of the runs whose fingerprints were read.
        unchecked: names of those without one.
        foreign: groups that are files of detections, of whose training nothing is known.
        hardware: kinds of processors that workers found themselves on, which are not compared.
        rounding: keys that change last digits only and had several values, with those of each run in turn.
    """

    comparable: bool
    factor: tuple[str, ...]
    rows: tuple[FairnessRow, ...]
    checked: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()
    rounding: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """What the table means."""
        parts = [self._of_runs]
        if self.unchecked and self.checked:
            parts.append(f"Without a fingerprint: {', '.join(self.unchecked)}.")
        if self.rounding:
            parts.append(f"Last digits may differ by {'; '.join(self.rounding)}.")
        if len(self.hardware) > 1:
            machines = ", ".join(self.hardware)
            parts.append(f"They ran on different hardware, which can change last digits: {machines}.")
        if self.foreign:
            parts.append(f"Foreign: {', '.join(self.foreign)}, of whose training nothing is known.")
        return " ".join(parts)

    @property
    def _of_runs(self) -> str:
        factor = ", ".join(self.factor)
        if not self.checked:
            return "No run has left a fingerprint yet, so nothing is known about what differs."
        if len(self.checked) == 1:
            return "There is one run, so that nothing can differ."
        if self.comparable and not self.rows:
            return f"The {len(self.checked)} runs differ in nothing, the declared factor ({factor}) included."
        if self.comparable:
            return f"The {len(self.checked)} runs differ in nothing but the declared factor ({factor})."
        undeclared = [row.key for row in self.rows if not row.declared]
        more = f" and {len(undeclared) - _NAMED} more" if len(undeclared) > _NAMED else ""
        return f"Besides the declared factor ({factor}) the runs differ in: {', '.join(undeclared[:_NAMED])}{more}."


def check_fairness(data: ExperimentData, artifacts: Artifacts) -> Fairness:
    """Compare the fingerprints of all runs.

    Runs of one seed must agree outside the factor; a seed explains other weights and another order of samples.
    """
    prints = {run.name: found for run in data.trained if (found := _fingerprint_of(run, artifacts)) is not None}
    factor = _factor(data.trained, artifacts)
    names = list(prints)
    values = {name: flat_values(found) for name, found in prints.items()}
    undeclared = {found.key for found in find_differences(prints, factor)}
    varying = {key for name in names[1:] for key in diff(prints[names[0]], prints[name])}
    rows = [
        FairnessRow(key, is_declared, tuple((name, _written(values[name].get(key))) for name in names))
        for is_declared, keys in ((False, undeclared), (True, varying - undeclared))
        for key in sorted(keys)
    ]
    return Fairness(
        comparable=not undeclared,
        factor=factor,
        rows=tuple(rows),
        checked=tuple(names),
        unchecked=tuple(run.name for run in data.trained if run.name not in prints),
        foreign=tuple(group for group, runs in data.groups.items() if runs[0].foreign is not None),
        rounding=tuple(_rounding(prints, factor)),
        hardware=tuple(dict.fromkeys(_processor(found.machine) for found in prints.values() if found.machine)),
    )


def _rounding(prints: Mapping[str, Fingerprint], factor: Sequence[str]) -> list[str]:
    """Return each rounding key that had several values, such as ``training.num_threads (A-s0: 1, then 2; C-s0: 2)``."""
    first = next(iter(prints.values()), None)
    keys = {key for found in prints.values() for key in found.went_on}
    keys |= {key for found in prints.values() if first is not None for key in rounding_only(diff(first, found))}
    sentences: list[str] = []
    for key in sorted(key for key in keys if not within(key, factor)):
        turns = {name: found.went_on.get(key, [value_at(dict(found.config), key)]) for name, found in prints.items()}
        each = (f"{name}: {', then '.join(map(_written, values))}" for name, values in turns.items())
        sentences.append(f"{key} ({'; '.join(each)})")
    return sentences


def _processor(machine: Mapping[str, str]) -> str:
    """Return what computes in a machine: its GPU, else what its CPU can do."""
    return machine.get("gpu") or f"CPU with {machine.get('cpu', 'unknown instructions')}"


def _fingerprint_of(run: RunData, artifacts: Artifacts) -> Fingerprint | None:
    """Return a run's fingerprint, or None if it has none yet."""
    path = artifacts.file(run, NAMES.fingerprint)
    if path is None:
        return None
    try:
        found = read_fingerprint(path)
        flat_values(found)["experiment.seed"]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ComparisonError(f"{path}: expected the fingerprint of a run ({error})") from error
    return found


def _factor(runs: Sequence[RunData], artifacts: Artifacts) -> tuple[str, ...]:
    found = [value_at(artifacts.config(run), "ablation.factor") for run in runs]
    keys = dict.fromkeys(str(key) for factor in found if isinstance(factor, list) for key in factor)
    return tuple(keys) or Ablation().factor


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).strip('"')

"""What is compared, so that a report stands alone: each group's loss, model, data, machine; and whether it is fair.

It is fair where runs of one seed differ in the declared factor only; a seed explains other weights and another order
of samples.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from coordexp.config.explain import validated
from coordexp.config.identity.differences import diff, find_differences, flat_values, rounding_only
from coordexp.config.identity.fingerprint import Fingerprint, read_fingerprint
from coordexp.config.keys import is_rounding
from coordexp.config.schema import Ablation
from coordexp.config.trees import value_at, within
from coordexp.errors import ComparisonError, ConfigError, DataError, TrackingError, counted
from coordexp.report.study.artifacts import NAMES, Artifacts
from coordexp.report.study.data import ExperimentData, RunRecord, by_group

if TYPE_CHECKING:
    from coordexp.losses.criterion import WeightedTerm

_NAMED = 12


@dataclass(frozen=True)
class About:
    """What is compared, and how it was made, as far as it is on record."""

    groups: Mapping[str, tuple["WeightedTerm", ...]]  # their losses; one whose configuration cannot be read is absent
    facts: tuple[tuple[str, str], ...]  # pairs of a word and what is known of it
    in_digits: tuple[str, ...]  # groups that write their coordinates as digits of plain text


def about(data: ExperimentData, artifacts: Artifacts) -> About | None:
    """Return what is known of the runs; None where there are only files of other detectors."""
    if not data.trained:
        return None
    runs = by_group(data.trained)
    terms = {group: _terms(members[0], artifacts) for group, members in runs.items()}
    facts = {
        "model": _each(data, _model),
        "data": _each(data, _data),
        "training": _training(data.trained),
        "decoding": _each(data, _decoding),
        "date": _dates(data.trained),
        "commit": ", ".join(dict.fromkeys(run.commit[:12] for run in data.trained if run.commit)),
        "hardware": ", ".join(dict.fromkeys(run.hardware for run in data.trained if run.hardware)),
        "hours": _hours(data.trained),
    }
    return About(
        groups={group: found for group, found in terms.items() if found},
        facts=tuple((name, text) for name, text in facts.items() if text),
        in_digits=tuple(group for group in runs if terms[group] and writes_digits(runs[group][0], artifacts)),
    )


def unread_configs(data: ExperimentData, artifacts: Artifacts) -> list[str]:
    """Return a sentence for each reason why configurations of runs are here and do not load.

    Raises:
        ConfigError: if one is not even YAML, so that nobody knows which factor it declares.
    """
    names_by_reason: dict[str, list[str]] = {}
    for run in data.trained:
        tree = artifacts.config(run)
        if not tree:
            continue
        try:
            validated(tree, where=lambda key: key)
        except ConfigError as error:
            names_by_reason.setdefault(str(error), []).append(run.name)
    lines: list[str] = []
    for reason, names in names_by_reason.items():
        more = f" and {counted(len(names) - 1, 'more run')}" if len(names) > 1 else ""
        lines.append(
            f"{names[0]}{more}: config.yaml does not load, so what depends on it is not shown: {reason}. "
            "If another version of coordexp wrote it, make the report with that version."
        )
    return lines


def writes_digits(run: RunRecord, artifacts: Artifacts) -> bool:
    """Return whether a run writes coordinates as digits of plain text, which have no distribution over bins."""
    return value_at(artifacts.config(run), "custom.coord_tokens.enabled") is False


def _terms(run: RunRecord, artifacts: Artifacts) -> "tuple[WeightedTerm, ...]":
    """Return the terms of positive weight; none where a run's configuration is not here, or of another version."""
    try:
        tree = artifacts.config(run)
        if not tree:
            return ()
        from coordexp.train.setup.weighted_terms import weighted_terms  # here: it brings torch, which takes seconds

        return tuple(it for it in weighted_terms(validated(tree, where=lambda key: key)) if it.weight > 0)
    except (ConfigError, DataError, TrackingError):
        return ()


def _each(data: ExperimentData, text_of: Callable[[RunRecord], str]) -> str:
    """Return a text of all runs, or where they differ each with the groups it is of."""
    groups: dict[str, dict[str, None]] = {}
    for run in data.trained:
        if text := text_of(run):
            groups.setdefault(text, {})[run.group] = None
    if len(groups) < 2:
        return "".join(groups)
    return "; ".join(f"{', '.join(named)}: {text}" for text, named in groups.items())


def _model(run: RunRecord) -> str:
    tuning, rank = run.params.get("training.tuning", ""), run.params.get("training.lora.rank", "")
    names = {"full": "all weights trained", "lora": f"LoRA of rank {rank}", "dora": f"DoRA of rank {rank}"}
    return ", ".join(filter(None, (run.params.get("model.path", ""), names.get(tuning, tuning))))


def _data(run: RunRecord) -> str:
    if run.params.get("data.format") == "shapes":
        train, val = run.number("data.shapes.num_train"), run.number("data.shapes.num_val")
        return "" if train is None or val is None else f"drawn shapes: {train:,.0f} images to train, {val:,.0f} to test"
    train, val = (Path(run.params.get(f"data.{split}_annotations", "")).name for split in ("train", "val"))
    return f"trained on {train}, tested on {val}" if train and val else val


def _decoding(run: RunRecord) -> str:
    return " and ".join(run.params.get("evaluation.decoding", "").strip("[]").replace('"', "").split(", "))


def _training(runs: Sequence[RunRecord]) -> str:
    finished = [run for run in runs if run.state == "finished"]
    images = [sum(values) for run in finished if (values := run.values("num_images"))]
    repeats = f", {counted(round(fmean(images)), 'image')} with repeats" if images else ""
    return f"{counted(round(fmean(run.step for run in finished)), 'step')} a run{repeats}" if finished else ""


def _dates(runs: Sequence[RunRecord]) -> str:
    starts = [run.started for run in runs if run.started is not None]
    ends = [run.ended for run in runs if run.ended is not None]
    times = [*sorted(starts)[:1], *sorted(ends)[-1:]] if starts else []
    shown = " to ".join(datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M") for at in times)
    return shown and f"{shown} UTC"


def _hours(runs: Sequence[RunRecord]) -> str:
    train, whole = (
        sum(run.metrics.get(name, 0.0) for run in runs) / 3600 for name in ("final/train_seconds", "final/seconds")
    )
    if not train:
        return ""
    shown = [f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}" for hours in (train, whole)]
    return f"{shown[0]} of training, all runs added up" + (f"; {shown[1]} with evaluation" if whole else "")


@dataclass(frozen=True)
class FairnessRow:
    """One thing in which runs differ."""

    key: str  # ``objective.use_coord_ce``, ``data`` and so on
    declared: bool  # the declared factor names or explains it, or it changes rounding only
    values: tuple[tuple[str, str], ...]  # by run name; "" where a run has no such key

    @property
    def word(self) -> str:
        """``declared`` as a table says it."""
        return "NO" if not self.declared else "rounding" if is_rounding(self.key) else "yes"


@dataclass(frozen=True)
class Fairness:
    """What the fingerprints say."""

    comparable: bool  # no run differs from another outside the factor
    factor: tuple[str, ...]  # the keys that were declared to differ
    rows: tuple[FairnessRow, ...]  # what differs, undeclared differences first
    checked: tuple[str, ...] = ()  # runs whose fingerprints were read
    unchecked: tuple[str, ...] = ()  # runs without one
    foreign: tuple[str, ...] = ()  # groups that are files of detections
    hardware: tuple[str, ...] = ()  # kinds of processors that workers found themselves on, which are not compared
    rounding: tuple[str, ...] = ()  # keys that change last digits only and had several values, with those in turn

    @property
    def undeclared(self) -> tuple[str, ...]:
        return tuple(row.key for row in self.rows if not row.declared)

    @property
    def sentence(self) -> str:
        factor, undeclared = ", ".join(self.factor), self.undeclared
        if not self.checked:
            parts = ["No run has left a fingerprint yet, so nothing is known about what differs."]
        elif len(self.checked) == 1:
            parts = ["There is one run, so that nothing can differ."]
        elif self.comparable and not self.rows:
            parts = [f"The {len(self.checked)} runs differ in nothing, the declared factor ({factor}) included."]
        elif self.comparable:
            parts = [f"The {len(self.checked)} runs differ in nothing but the declared factor ({factor})."]
        else:
            more = f" and {len(undeclared) - _NAMED} more" if len(undeclared) > _NAMED else ""
            keys = f"{', '.join(undeclared[:_NAMED])}{more}"
            parts = [f"Besides the declared factor ({factor}) the runs differ in: {keys}."]
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


def check_fairness(data: ExperimentData, artifacts: Artifacts) -> Fairness:
    prints = {run.name: found for run in data.trained if (found := fingerprint_of(run, artifacts)) is not None}
    declared = [value_at(artifacts.config(run), "ablation.factor") for run in data.trained]
    keys = dict.fromkeys(str(key) for factor in declared if isinstance(factor, list) for key in factor)
    factor, names = tuple(keys) or Ablation().factor, list(prints)
    values = {name: flat_values(found) for name, found in prints.items()}
    undeclared = {found.key for found in find_differences(prints, factor)}
    varying = {key for name in names[1:] for key in diff(prints[names[0]], prints[name])}
    rows = [
        FairnessRow(key, is_declared, tuple((name, _written(values[name].get(key))) for name in names))
        for is_declared, keys in ((False, undeclared), (True, varying - undeclared))
        for key in sorted(keys)
    ]
    machines = [found.machine for found in prints.values() if found.machine]
    processors = (it.get("gpu") or f"CPU with {it.get('cpu', 'unknown instructions')}" for it in machines)
    return Fairness(
        comparable=not undeclared,
        factor=factor,
        rows=tuple(rows),
        checked=tuple(names),
        unchecked=tuple(run.name for run in data.trained if run.name not in prints),
        foreign=tuple(group for group, runs in data.groups.items() if runs[0].foreign is not None),
        rounding=tuple(_rounding(prints, factor)),
        hardware=tuple(dict.fromkeys(processors)),
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


def fingerprint_of(run: RunRecord, artifacts: Artifacts) -> Fingerprint | None:
    path = artifacts.file(run, NAMES.fingerprint)
    if path is None:
        return None  # it has not begun
    try:
        found = read_fingerprint(path)
        flat_values(found)["experiment.seed"]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ComparisonError(f"{path}: expected the fingerprint of a run ({error})") from error
    return found


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).strip('"')

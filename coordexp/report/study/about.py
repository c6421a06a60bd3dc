"""What is compared, so that a report stands alone: each group's loss, model, data, machine; and whether it is fair.

It is fair where runs of one seed differ in the declared factor only; a seed explains other weights and another order
of samples.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
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
from coordexp.report.records.artifacts import NAMES, Artifacts
from coordexp.report.records.data import ExperimentData, RunRecord, by_group

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
    runs_by_group = by_group(data.trained)
    terms_by_group = {group: _terms(runs[0], artifacts) for group, runs in runs_by_group.items()}
    commits = dict.fromkeys(run.commit[:12] for run in data.trained if run.commit)
    machines = dict.fromkeys(run.hardware for run in data.trained if run.hardware)
    facts = {
        "model": _of_all_runs(data, _model),
        "data": _of_all_runs(data, _data),
        "training": _training(data.trained),
        "decoding": _of_all_runs(data, _decoding),
        "date": _dates(data.trained),
        "commit": ", ".join(commits),
        "hardware": ", ".join(machines),
        "hours": _hours(data.trained),
    }
    in_digits = [
        group for group, runs in runs_by_group.items() if terms_by_group[group] and writes_digits(runs[0], artifacts)
    ]
    return About(
        groups={group: terms for group, terms in terms_by_group.items() if terms},
        facts=tuple((name, text) for name, text in facts.items() if text),
        in_digits=tuple(in_digits),
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

        terms = weighted_terms(validated(tree, where=lambda key: key))
    except (ConfigError, DataError, TrackingError):
        return ()
    return tuple(weighted for weighted in terms if weighted.weight > 0)


def _of_all_runs(data: ExperimentData, text_of: Callable[[RunRecord], str]) -> str:
    """Return what ``text_of`` says of all runs; if they differ, each text behind the groups it is of."""
    groups_by_text: dict[str, dict[str, None]] = {}
    for run in data.trained:
        text = text_of(run)
        if text:
            groups_by_text.setdefault(text, {})[run.group] = None
    if len(groups_by_text) < 2:
        return "".join(groups_by_text)
    return "; ".join(f"{', '.join(groups)}: {text}" for text, groups in groups_by_text.items())


def _model(run: RunRecord) -> str:
    tuning = run.params.get("training.tuning", "")
    rank = run.params.get("training.lora.rank", "")
    words = {"full": "all weights trained", "lora": f"LoRA of rank {rank}", "dora": f"DoRA of rank {rank}"}
    return ", ".join(filter(None, (run.params.get("model.path", ""), words.get(tuning, tuning))))


def _data(run: RunRecord) -> str:
    if run.params.get("data.format") == "shapes":
        num_train, num_val = run.number("data.shapes.num_train"), run.number("data.shapes.num_val")
        if num_train is None or num_val is None:
            return ""
        return f"drawn shapes: {num_train:,.0f} images to train, {num_val:,.0f} to test"
    train_name = Path(run.params.get("data.train_annotations", "")).name
    val_name = Path(run.params.get("data.val_annotations", "")).name
    return f"trained on {train_name}, tested on {val_name}" if train_name and val_name else val_name


def _decoding(run: RunRecord) -> str:
    decodings = run.params.get("evaluation.decoding", "").strip("[]").replace('"', "")
    return " and ".join(decodings.split(", "))


def _training(runs: Sequence[RunRecord]) -> str:
    """Return the steps of a run and the images it took, means over finished runs."""
    finished_runs = [run for run in runs if run.state == "finished"]
    if not finished_runs:
        return ""
    steps = counted(round(fmean(run.step for run in finished_runs)), "step")
    image_counts = [sum(run.values("num_images")) for run in finished_runs if run.values("num_images")]
    if not image_counts:
        return f"{steps} a run"
    return f"{steps} a run, {counted(round(fmean(image_counts)), 'image')} in all"


def _dates(runs: Sequence[RunRecord]) -> str:
    """Return when the first run began and the last one ended."""
    starts = [run.started for run in runs if run.started is not None]
    ends = [run.ended for run in runs if run.ended is not None]
    if not starts:
        return ""
    moments = [min(starts), *([max(ends)] if ends else [])]
    written = (datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M") for moment in moments)
    return f"{' to '.join(written)} UTC"


def _hours(runs: Sequence[RunRecord]) -> str:
    """Return the hours of all runs added up: of training, and with evaluation where that is known."""
    training_hours = sum(run.metrics.get("final/train_seconds", 0.0) for run in runs) / 3600
    whole_hours = sum(run.metrics.get("final/seconds", 0.0) for run in runs) / 3600
    if not training_hours:
        return ""
    text = f"{_written_hours(training_hours)} of training, all runs added up"
    return f"{text}; {_written_hours(whole_hours)} with evaluation" if whole_hours else text


def _written_hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"


@dataclass(frozen=True)
class FairnessRow:
    """One thing in which runs differ."""

    key: str  # ``objective.use_coord_ce``, ``data`` and so on
    declared: bool  # the declared factor names or explains it, or it changes rounding only
    values: tuple[tuple[str, str], ...]  # by run name; "" where a run has no such key

    @property
    def word(self) -> str:
        """``declared`` as a table says it."""
        if not self.declared:
            return "NO"
        return "rounding" if is_rounding(self.key) else "yes"


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
        """What differs between the runs, and what is not known of it."""
        sentences = [self._difference_sentence]
        if self.unchecked and self.checked:
            sentences.append(f"Without a fingerprint: {', '.join(self.unchecked)}.")
        if self.rounding:
            sentences.append(f"Last digits may differ by {'; '.join(self.rounding)}.")
        if len(self.hardware) > 1:
            machines = ", ".join(self.hardware)
            sentences.append(f"They ran on different hardware, which can change last digits: {machines}.")
        if self.foreign:
            sentences.append(f"Foreign: {', '.join(self.foreign)}, of whose training nothing is known.")
        return " ".join(sentences)

    @property
    def _difference_sentence(self) -> str:
        factor = ", ".join(self.factor)
        if not self.checked:
            return "No run has left a fingerprint yet, so nothing is known about what differs."
        if len(self.checked) == 1:
            return "There is one run, so that nothing can differ."
        if self.comparable and not self.rows:
            return f"The {len(self.checked)} runs differ in nothing, the declared factor ({factor}) included."
        if self.comparable:
            return f"The {len(self.checked)} runs differ in nothing but the declared factor ({factor})."
        num_left = len(self.undeclared) - _NAMED
        more = f" and {num_left} more" if num_left > 0 else ""
        keys = f"{', '.join(self.undeclared[:_NAMED])}{more}"
        return f"Besides the declared factor ({factor}) the runs differ in: {keys}."


def check_fairness(data: ExperimentData, artifacts: Artifacts) -> Fairness:
    """Compare the fingerprints of all runs, as far as they are there.

    Raises:
        ComparisonError: if a fingerprint cannot be read.
    """
    fingerprints: dict[str, Fingerprint] = {}
    for run in data.trained:
        fingerprint = fingerprint_of(run, artifacts)
        if fingerprint is not None:
            fingerprints[run.name] = fingerprint
    factor = _declared_factor(data, artifacts)
    undeclared = {difference.key for difference in find_differences(fingerprints, factor)}
    machines = [fingerprint.machine for fingerprint in fingerprints.values() if fingerprint.machine]
    processors = [
        machine.get("gpu") or f"CPU with {machine.get('cpu', 'unknown instructions')}" for machine in machines
    ]
    return Fairness(
        comparable=not undeclared,
        factor=factor,
        rows=tuple(_fairness_rows(fingerprints, undeclared)),
        checked=tuple(fingerprints),
        unchecked=tuple(run.name for run in data.trained if run.name not in fingerprints),
        foreign=tuple(group for group, runs in data.groups.items() if runs[0].foreign is not None),
        rounding=tuple(_rounding_sentences(fingerprints, factor)),
        hardware=tuple(dict.fromkeys(processors)),
    )


def _declared_factor(data: ExperimentData, artifacts: Artifacts) -> tuple[str, ...]:
    """Return the keys that any run declares to differ; the default factor if no configuration is here."""
    keys: dict[str, None] = {}
    for run in data.trained:
        factor = value_at(artifacts.config(run), "ablation.factor")
        if isinstance(factor, list):
            keys |= dict.fromkeys(map(str, factor))
    return tuple(keys) or Ablation().factor


def _fairness_rows(fingerprints: Mapping[str, Fingerprint], undeclared: Collection[str]) -> list[FairnessRow]:
    """Return a row for each key in which runs differ, undeclared ones first."""
    values = {name: flat_values(fingerprint) for name, fingerprint in fingerprints.items()}
    varying: set[str] = set()
    for fingerprint in fingerprints.values():
        varying |= diff(next(iter(fingerprints.values())), fingerprint).keys()
    ordered = [(key, False) for key in sorted(undeclared)]
    ordered += [(key, True) for key in sorted(varying.difference(undeclared))]
    return [
        FairnessRow(key, is_declared, tuple((name, _written(of_run.get(key))) for name, of_run in values.items()))
        for key, is_declared in ordered
    ]


def _rounding_sentences(fingerprints: Mapping[str, Fingerprint], factor: Sequence[str]) -> list[str]:
    """Return each rounding key that had several values, such as ``training.num_threads (A-s0: 1, then 2; C-s0: 2)``."""
    if not fingerprints:
        return []
    first = next(iter(fingerprints.values()))
    keys: set[str] = set()
    for fingerprint in fingerprints.values():
        keys |= fingerprint.went_on.keys() | rounding_only(diff(first, fingerprint)).keys()
    sentences: list[str] = []
    for key in sorted(key for key in keys if not within(key, factor)):
        texts: list[str] = []
        for name, fingerprint in fingerprints.items():
            values_in_turn = fingerprint.went_on.get(key, [value_at(dict(fingerprint.config), key)])
            texts.append(f"{name}: {', then '.join(map(_written, values_in_turn))}")
        sentences.append(f"{key} ({'; '.join(texts)})")
    return sentences


def fingerprint_of(run: RunRecord, artifacts: Artifacts) -> Fingerprint | None:
    """Return the fingerprint that a run has stored; None if it has not begun.

    Raises:
        ComparisonError: if the file is there and is no fingerprint of a run.
    """
    path = artifacts.file(run, NAMES.fingerprint)
    if path is None:
        return None
    try:
        fingerprint = read_fingerprint(path)
        flat_values(fingerprint)["experiment.seed"]  # which pairs it with the runs of other groups
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ComparisonError(f"{path}: expected the fingerprint of a run ({error})") from error
    return fingerprint


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).strip('"')

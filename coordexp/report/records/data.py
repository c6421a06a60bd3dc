"""What a report is about, as frozen objects: runs, their last values and their curves."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np

from coordexp.evaluate.generated_by import Generator
from coordexp.metrics import BoxKind, Decoding, MetricName, headline, loss_names

# Metrics whose every value is read.
CURVES = re.compile(
    r"(train|eval)_(\w+_loss|extra/\w+)|subset/constrained/(expected|argmax)/AP|grad_norm|num_images|num_supervised_tokens"
)
State = Literal["waiting", "running", "finished", "failed", "stopped"]


@dataclass(frozen=True)
class Point:
    """One point of a curve."""

    step: int
    value: float


@dataclass(frozen=True)
class ForeignFile:
    """A file of detections that no run of ours made, as a row of a study."""

    path: Path  # the file that was given
    detections: Path  # the same in COCO's results format; another file where the given one is in another frame
    annotations: Path  # what it was measured on, not packed
    analysis: Path  # what was measured on it, as an evaluation leaves it
    num_detections: int
    num_images: int
    scores: str  # their range, or that it has none
    frame: str = "px:xywh"  # how its boxes and categories were read
    image_ids: tuple[int, ...] = ()  # of the images with detections
    written: Path | None = None  # the detections in the order of the file; None where ``detections`` are
    remarks: tuple[str, ...] = ()  # what a reader must know to read its numbers rightly, a sentence each


@dataclass(frozen=True)
class RunRecord:
    """One run of a group and seed; what is not known of it is empty.

    Which source a field comes from is said at the top of ``load.py``.
    """

    run_id: str  # MLflow's
    group: str  # as the report shows it, unique over experiments
    seed: int
    state: State
    step: int = 0
    message: str = ""  # why it failed
    run_dir: str = ""  # on the machine that ran it
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])  # the last value of each, finite ones
    params: Mapping[str, str] = field(default_factory=dict[str, str])  # the resolved configuration, flat
    curves: Mapping[str, tuple[Point, ...]] = field(default_factory=dict[str, tuple[Point, ...]])  # in order of steps
    experiment: str = ""
    parent_id: str = ""  # MLflow's id of the ablation it belongs to
    key: str = ""  # what tells this life of the run from others with its name
    not_finite: tuple[str, ...] = ()  # names of metrics whose last value is infinite or no number
    reading: BoxKind = "expected"  # which of its boxes are the headline
    foreign: ForeignFile | None = None  # the file that stands here for a run, if there was none
    hardware: str = ""  # what generated its final answers
    started: float | None = None  # in seconds since 1970
    ended: float | None = None
    commit: str = ""
    annotations: str = ""  # how the SHA-256 of those it was evaluated on begins
    generator: Generator = field(default_factory=Generator)  # what wrote its final answers
    family: str = ""  # equal seeds of groups of one family are the same seed, those of two are not

    @property
    def headline(self) -> str:
        return headline(self.reading)

    @property
    def name(self) -> str:
        """``A-s0``."""
        return f"{self.group}-s{self.seed}"

    def values(self, metric: str) -> list[float]:
        return [point.value for point in self.curves.get(metric, ())]

    def own(self, decoding: Decoding, metric: str) -> float | None:
        """Return a metric of the boxes that are its headline."""
        return self.metrics.get(str(MetricName(decoding, metric, self.reading)))

    def number(self, key: str) -> float | None:
        """Return a number of its configuration; None where there is none, since anyone may edit parameters."""
        try:
            return float(self.params[key])
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True)
class ExperimentData:
    """What is compared: an experiment, several, or chosen runs."""

    name: str
    uri: str  # where it was read
    runs: tuple[RunRecord, ...]  # by group, then seed
    codec_ceiling: float | None = None  # AP of the ground truth itself after encode and decode, if it was logged
    origin: tuple[str, ...] = ()  # where runs were read that MLflow does not have, a sentence each
    others: tuple[str, ...] = ()  # that MLflow has other experiments of this name, and the command that shows one
    parent_id: str = ""  # MLflow's id of the ablation's own run, or "" where there is none or several
    experiment_id: str = ""  # MLflow's, likewise

    @property
    def trained(self) -> tuple[RunRecord, ...]:
        """The runs, without the rows that are files of other detectors."""
        return tuple(run for run in self.runs if run.foreign is None)

    @property
    def title(self) -> str:
        """``Experiment tiny``; a comparison of files alone has a name that says so itself."""
        return f"Experiment {self.name}" if self.trained else self.name

    @property
    def groups(self) -> dict[str, list[RunRecord]]:
        return by_group(self.runs)

    @property
    def readings(self) -> dict[str, BoxKind]:
        """Which boxes of each group are its headline; those of its first run, which its other runs share."""
        return {group: runs[0].reading for group, runs in self.groups.items()}

    @property
    def loss_names(self) -> tuple[str, ...]:
        """The losses that every run logs, and the further terms of any of them."""
        return loss_names(name for run in self.runs for name in run.metrics)


def read_by(data: ExperimentData, readings: Mapping[str, BoxKind]) -> ExperimentData:
    """Return the same runs, the headline of some groups read otherwise."""
    runs = tuple(replace(run, reading=readings.get(run.group, run.reading)) for run in data.runs)
    return replace(data, runs=runs)


def by_group(runs: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    """Return runs by their groups, both in the order in which they come."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    return groups


def consumption(data: ExperimentData, steps: Mapping[str, Collection[int]]) -> dict[str, dict[str, dict[int, float]]]:
    """Return how many images and supervised tokens groups have consumed by some steps, mean over seeds.

    Args:
        data: the runs; those of the groups of ``steps`` are looked at.
        steps: group -> the steps that are asked for.

    Returns:
        ``num_images`` and ``num_supervised_tokens`` -> group -> step -> the total by then.
    """
    consumed: dict[str, dict[str, dict[int, float]]] = {}
    for quantity in ("num_images", "num_supervised_tokens"):
        consumed[quantity] = {}
        for group, wanted_steps in steps.items():
            totals_by_run = [running_total(run.curves.get(quantity, ()), wanted_steps) for run in data.groups[group]]
            consumed[quantity][group] = _mean_by_step(totals_by_run)
    return consumed


def running_total(rows: Sequence[Point], wanted_steps: Collection[int]) -> dict[int, float]:
    """Return a run's total at each wanted step.

    A row holds what came since the row before it, so the total is known at the rows and a straight line between them.
    A step after the last row is left out: nobody knows what the run consumed by then.
    """
    row_steps = [0, *(row.step for row in rows)]
    totals = [0.0, *accumulate(row.value for row in rows)]
    logged_steps = [step for step in sorted(wanted_steps) if step <= row_steps[-1]]
    return dict(zip(logged_steps, np.interp(logged_steps, row_steps, totals).tolist(), strict=True))


def _mean_by_step(values_by_run: Iterable[Mapping[int, float]]) -> dict[int, float]:
    """Return the mean over the runs that have a step."""
    values_by_step: dict[int, list[float]] = {}
    for values in values_by_run:
        for step, value in values.items():
            values_by_step.setdefault(step, []).append(value)
    return {step: fmean(values) for step, values in sorted(values_by_step.items())}


def finite_values(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics whose value is a finite number."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def missing_runs(data: ExperimentData) -> list[str]:
    """Return a sentence for each run that is not finished, or has numbers that cannot be shown."""
    sentences: list[str] = []
    for run in data.runs:
        if run.state == "failed":
            sentences.append(f"{run.name} FAILED at step {run.step}: {run.message or 'no reason was recorded'}")
        elif run.state != "finished":
            reason = f" ({run.message})" if run.message else ""
            sentences.append(f"{run.name} is not finished: {state_text(run)}{reason}")
        if run.not_finite:
            sentences.append(f"{run.name}: not a finite number, and so not shown: {', '.join(run.not_finite)}")
    return sentences


def state_text(run: RunRecord) -> str:
    """Return where a run stands, e.g. ``running, step 40 of 250``."""
    if run.state in ("waiting", "finished"):
        return run.state
    word = "FAILED" if run.state == "failed" else run.state
    total_steps = run.params.get("training.max_steps")
    return f"{word}, step {run.step} of {total_steps}" if total_steps else f"{word}, step {run.step}"

"""What every part of a study is computed from, and how a part says what it could not have.

A part is a function of :class:`StudyInputs` that returns an :class:`Outcome`: its value, and a sentence for each thing
that is missing from it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from coordexp.data.units import UnitNames, UnitRule, counted_images
from coordexp.detection.tags import Tags
from coordexp.errors import CoordExpError, counted
from coordexp.report.records.artifacts import Artifacts, final_detections
from coordexp.report.records.data import ExperimentData, RunRecord
from coordexp.statistics.readings import ReadingName

T = TypeVar("T")
OnProgress = Callable[[str, int, int], None]
"""Called with what is done, how many steps of it are done, and how many there are."""
Detections = Mapping[str, Mapping[int, Path]]
"""Group -> training seed -> a file of detections."""
_NAMED = 4


@dataclass(frozen=True)
class Settings:
    """How a study is made."""

    resamples: int = 2000  # and at least as many swaps
    seed: int = 0  # of the bootstrap
    num_pictures: int = 24  # in the gallery, at most
    allow_differences: bool = False  # go on where runs differ outside the declared factor
    unit_by: UnitRule | None = None  # which images are not independent; None: as the experiment's set says
    slices: tuple[str, ...] = ()  # fields of images, or CSV files, of which each value is compared by itself; likewise
    image_facts: Path | None = None  # units and tags of the images; None: those of the experiment's set


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What a part of a study has found out."""

    value: T
    missing: tuple[str, ...] = ()  # a sentence for each thing that is not here, and why


@dataclass(frozen=True)
class StudyInputs:
    """The runs of a study with the files and settings that its numbers follow from.

    Attributes:
        data: the runs, unfinished ones included.
        artifacts: finds the files of runs.
        settings: how the study is made.
        annotations: the ground truth that all runs were evaluated on.
        units: what is drawn and swapped in the place of images; None if images are independent.
        tags: the parts of the images that are compared by themselves; None without any.
        on_progress: hears how far a part is.
        own_detections: the detections of each finished run by its own reading.
        compared: the finished runs that have left those.
    """

    data: ExperimentData
    artifacts: Artifacts
    settings: Settings
    annotations: Path
    units: UnitNames | None
    tags: Tags | None
    on_progress: OnProgress
    own_detections: Detections
    compared: tuple[RunRecord, ...]

    @property
    def finished(self) -> list[RunRecord]:
        return [run for run in self.data.runs if run.state == "finished"]

    @property
    def families(self) -> dict[str, str]:
        """The family of each group: seeds of one number are the same seed within a family only."""
        return {run.group: run.family for run in self.data.runs}

    def progress(self, what: str) -> Callable[[int, int], None]:
        """Return a function of (done, total) that reports the progress of ``what``."""
        return partial(self.on_progress, what)

    def counted_images(self, image_ids: Sequence[int]) -> str:
        """Return how many images these are and, if there are units, in how many units they lie."""
        num_units = None if self.units is None else self.units.numbered(image_ids).num_units
        return counted_images(len(image_ids), num_units)


def with_own_detections(inputs: StudyInputs) -> Outcome[StudyInputs]:
    """Return the inputs with ``own_detections`` and ``compared``, and a sentence for each finished run without any."""
    detections, lacking = detections_of_runs(inputs.artifacts, inputs.finished)
    compared = tuple(run for run in inputs.finished if run not in lacking)
    sentences = tuple(f"{run.name}: its detections are neither in its directory nor in MLflow." for run in lacking)
    return Outcome(replace(inputs, own_detections=detections, compared=compared), sentences)


def detections_of_runs(
    artifacts: Artifacts, runs: Sequence[RunRecord], reading: ReadingName = "own"
) -> tuple[dict[str, dict[int, Path]], list[RunRecord]]:
    """Return the detections that a reading takes of runs, and the runs that have none of them."""
    detections: dict[str, dict[int, Path]] = {}
    lacking: list[RunRecord] = []
    for run in runs:
        path = artifacts.file(run, final_detections(run, reading))
        if path is None:
            lacking.append(run)
        else:
            detections.setdefault(run.group, {})[run.seed] = path
    return detections, lacking


def attempt(what: str, compute: Callable[[], Outcome[T]]) -> Outcome[T | None]:
    """Compute a part of a study; a file that is wrong costs that part, not the report.

    Args:
        what: the part, as in "No convergence: ...".
        compute: returns its outcome, or raises a CoordExpError.
    """
    try:
        outcome = compute()
    except CoordExpError as error:
        return Outcome(None, (f"No {what}: {error}",))
    return Outcome(outcome.value, outcome.missing)


def few_names(names: Sequence[str]) -> str:
    """Return the first four names and how many more runs there are."""
    more = f" and {counted(len(names) - _NAMED, 'more run')}" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more

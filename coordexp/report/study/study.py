"""Runs -> a study: statistics on their detections, pictures, curves; whatever cannot be had is named instead."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import TypeAdapter

from coordexp.detection.average_precision import AVERAGE_PRECISIONS
from coordexp.detection.box_evaluation import BoxEvaluation
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import GroundTruth, read_ground_truth
from coordexp.detection.matching import in_fair_order
from coordexp.errors import ComparisonError, CoordExpError, DataError
from coordexp.files import JsonValue, sha256_of_file
from coordexp.metrics import MetricName, subset_headline
from coordexp.report.study.about import About, about
from coordexp.report.study.artifacts import Artifacts, final_detections, image_ids_of
from coordexp.report.study.boxes import Breakdown, group_breakdowns
from coordexp.report.study.cache import StatisticsCache, content_key
from coordexp.report.study.data import ExperimentData, RunData, consumption, missing_runs
from coordexp.report.study.distributions import EdgeDistributions, group_curves
from coordexp.report.study.fairness import Fairness, check_fairness
from coordexp.report.study.gallery import GalleryImage, make_gallery
from coordexp.statistics.readings import READINGS, WORDS, ReadingName, reading_sentence, reads
from coordexp.statistics.resampling import enough_resamples
from coordexp.statistics.results import Comparison, Convergence, Decomposition
from coordexp.statistics.verdict import FILES, has_learned, verdict

_CURVE_RESAMPLES = 1000
DECOMPOSITION_RESAMPLES = 500
"""These say where to look; the differences of AP have four times as many."""
_SAME_AP = 1e-6
_PART = 0.1
"""Of the images: a file without a box on so many that another has may not have seen them."""
_T = TypeVar("_T")
_COMPARISONS = TypeAdapter(dict[ReadingName, Comparison])
_CONVERGENCE, _DECOMPOSITION = TypeAdapter(Convergence), TypeAdapter(Decomposition)
OnProgress = Callable[[str, int, int], None]
_Detections = Mapping[str, Mapping[int, Path]]
"""Group -> training seed -> its file."""


@dataclass(frozen=True)
class Study:
    """An experiment and what was found out about it; every part but the runs may be absent.

    Attributes:
        data: the runs.
        verdict: what the comparison says, in a sentence; "" if there is none.
        fairness: what differs between the runs.
        comparison: groups and pairs with intervals, each group by its own reading.
        readings: the same under every reading whose files are all there, by its name; the own one is among them.
        convergence: how fast groups get better.
        decomposition: what groups lose AP50 to, and how they differ in it, each group by its own reading.
        breakdowns: histograms, calibration and AP by category, size and crowding, by group.
        gallery: pictures with boxes.
        coord_curves: coord distributions of chosen boxes.
        num_images: images of the split the gallery was chosen from.
        missing: what is not here and why, a sentence each.
        about: what the groups are and how they were made.
        cautions: what may decide the comparison beside the detectors; the verdict begins with it.
    """

    data: ExperimentData
    verdict: str = ""
    fairness: Fairness | None = None
    comparison: Comparison | None = None
    readings: Mapping[ReadingName, Comparison] = field(default_factory=dict[ReadingName, Comparison])
    convergence: Convergence | None = None
    decomposition: Decomposition | None = None
    breakdowns: Mapping[str, Breakdown] = field(default_factory=dict[str, Breakdown])
    gallery: tuple[GalleryImage, ...] = ()
    coord_curves: tuple[EdgeDistributions, ...] = ()
    num_images: int = 0
    missing: tuple[str, ...] = ()
    about: About | None = None
    cautions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """How a study is made.

    Attributes:
        resamples: of the bootstrap; None: 2000, or more where so many pairs of groups need it.
        seed: of the bootstrap.
        num_pictures: images in the gallery, at most.
        allow_differences: go on where runs differ outside the declared factor.
    """

    resamples: int | None = None
    seed: int = 0
    num_pictures: int = 24
    allow_differences: bool = False


def make_study(
    data: ExperimentData,
    artifacts: Artifacts,
    cache: StatisticsCache,
    settings: Settings | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> Study:
    """Compute what a report shows. An unfinished experiment gives what it has, and says what it lacks.

    Args:
        data: the runs.
        artifacts: finds their files.
        cache: keeps what takes long.
        settings: how; None: the defaults.
        on_progress: called with (what, done, to do).

    Raises:
        ComparisonError: if runs were evaluated on other validation data, or differ outside the declared factor
            and that was not allowed.
    """
    return _StudyMaker(data, artifacts, cache, settings or Settings(), on_progress).make()


class _StudyMaker:
    """Collects what is there, and the reasons for what is not."""

    def __init__(
        self,
        data: ExperimentData,
        artifacts: Artifacts,
        cache: StatisticsCache,
        settings: Settings,
        on_progress: OnProgress | None,
    ) -> None:
        self._data = data
        self._artifacts = artifacts
        self._cache = cache
        self._settings = settings
        self._on_progress = on_progress
        self._cautions: list[str] = []
        self._families = {run.group: run.family for run in data.runs}
        self._missing = [*data.origin, *missing_runs(data)]
        self._resamples = settings.resamples or enough_resamples(math.comb(len(data.groups), 2))
        self._finished = [run for run in data.runs if run.state == "finished"]

    def make(self) -> Study:
        fairness = check_fairness(self._data, self._artifacts) if self._data.trained else None
        if fairness is not None and not fairness.comparable and not self._settings.allow_differences:
            raise ComparisonError(_refusal(fairness))
        made, annotations = about(self._data, self._artifacts), self._annotations()
        if annotations is None:
            return Study(self._data, fairness=fairness, missing=tuple(self._missing), about=made)
        detections = self._detections()
        readings = self._readings(annotations, detections)
        convergence = self._tried("convergence", lambda: self._convergence(annotations))
        decomposition = self._tried("decomposition", lambda: self._decomposition(annotations, detections))
        breakdowns = self._tried("the analysis of boxes", lambda: group_breakdowns(self._finished, self._artifacts))
        gallery = self._tried("the gallery", lambda: self._gallery(annotations, detections))
        curves = self._tried("coordinate distributions", lambda: self._curves(annotations))
        return Study(
            data=self._data,
            verdict=self._verdict(readings, fairness) if readings else "",
            fairness=fairness,
            comparison=readings.get("own"),
            readings=readings,
            convergence=convergence,
            decomposition=decomposition,
            breakdowns=breakdowns or {},
            gallery=gallery or (),
            coord_curves=curves or (),
            num_images=len(read_ground_truth(annotations).sizes_px),
            missing=tuple(self._missing),
            about=made,
            cautions=tuple(self._cautions),
        )

    def _progress(self, what: str) -> Callable[[int, int], None]:
        return lambda done, total: self._on_progress(what, done, total) if self._on_progress is not None else None

    @property
    def _keyed(self) -> list[JsonValue]:
        return [self._resamples, self._settings.seed, dict(self._families)]

    def _verdict(self, readings: Mapping[ReadingName, Comparison], fairness: Fairness | None) -> str:
        """Put around the sentence what it leaves out: a reader may take it from here alone."""
        comparison, leads = readings["own"], list(self._cautions)
        if fairness is None:
            return " ".join([*leads, verdict(comparison, FILES)])
        undeclared = [row.key for row in fairness.rows if not row.declared]
        if undeclared:
            leads.append(f"These runs differ in more than the declared factor ({', '.join(undeclared)}).")
        compared = {f"{group}-s{seed}" for group, seeds in comparison.seeds.items() for seed in seeds}
        absent = [run.name for run in self._data.runs if run.name not in compared]
        if absent:
            leads.append(f"Without {_few(absent)}:")
        under = reading_sentence(readings) if has_learned(comparison, *comparison.groups) else ""
        return " ".join([*leads, verdict(comparison), under]).rstrip()

    def _tried(self, what: str, make: Callable[[], _T]) -> _T | None:
        """Do one part; a file that is wrong costs that part, not the report."""
        try:
            return make()
        except CoordExpError as error:
            self._missing.append(f"No {what.removeprefix('the ')}: {error}")
            return None

    def _annotations(self) -> Path | None:
        """Return the one annotation file of all runs."""
        found = {run.name: path for run in self._data.runs if (path := self._artifacts.annotations(run)) is not None}
        if not found:
            self._missing.append(
                "No statistics and no images: the annotations of the validation split are not on this machine."
            )
            return None
        hashes = {path: sha256_of_file(path) for path in set(found.values())}
        first, *others = found
        for name in others:
            if hashes[found[name]] != hashes[found[first]]:
                raise ComparisonError(
                    f"{first} and {name} were evaluated on other validation data ({found[first]} and {found[name]} "
                    "differ), so their AP cannot be compared: expected runs on the same annotations"
                )
        return found[first]

    def _detections(self) -> dict[str, dict[int, Path]]:
        found: dict[str, dict[int, Path]] = {}
        for run in self._finished:
            if (path := self._artifacts.file(run, final_detections(run))) is not None:
                found.setdefault(run.group, {})[run.seed] = path
            else:
                self._missing.append(f"{run.name}: its detections are neither in its directory nor in MLflow.")
        return found

    def _readings(self, annotations: Path, own: _Detections) -> dict[ReadingName, Comparison]:
        """Compare the runs whose own detections are there; a reading that lacks one of theirs is left out whole."""
        if not own:
            return {}
        with contextlib.suppress(CoordExpError):  # a file that cannot be read is named where it is compared
            self._cautions = list(self._find_cautions(read_ground_truth(annotations), own))
        try:
            return self._compared(annotations, {"own": own, **self._other_readings(own)})
        except CoordExpError as error:
            found = self._tried("the comparison", lambda: self._compared(annotations, {"own": own})) or {}
            if found:
                self._missing.append(f"No other reading than each group's own: {error}")
            return found

    def _find_cautions(self, truth: GroundTruth, own: _Detections) -> Iterator[str]:
        """Yield what may decide a comparison beside the detectors: images left out, the order of equal scores."""
        runs = {run.name: run for run in self._finished if run.seed in own.get(run.group, {})}
        names = {run.name: run.group if len(own[run.group]) == 1 else run.name for run in runs.values()}
        files = {name: read_detections(own[run.group][run.seed], truth) for name, run in runs.items()}
        images = {name: np.unique(found.image_ids) for name, found in files.items()}
        num, parts = len(truth.sizes_px), list[str]()
        for name, run in runs.items():
            if run.foreign is None and in_fair_order(truth, files[name]) is not files[name]:
                yield (
                    f"{files[name].num_tied} of {len(files[name])} boxes of {names[name]} have the score of another: "
                    "its logged AP depends on the order in which they were written. The comparison takes them by their "
                    "coordinates, so that no order makes a winner."
                )
            others = [other for other in runs if runs[other].group != run.group]
            lacking = {other: len(np.setdiff1d(images[other], images[name])) for other in others}
            most = max(others, key=lambda other: lacking[other], default=name)
            if run.foreign is not None and lacking.get(most, 0) > max(2, _PART * num):
                parts.append(
                    f"{names[name]} has no box on {lacking[most]} of {num} images, which {names[most]} has: was it run "
                    "on a part?"
                )
        if parts:
            common = functools.reduce(np.intersect1d, images.values()).tolist()
            tables = {name: BoxEvaluation(truth, found).table_on_images(common) for name, found in files.items()}
            values = {names[k]: table.average_precision(AVERAGE_PRECISIONS["AP"]) for k, table in tables.items()}
            known = ", ".join(f"{name} {value:.4f}" for name, value in values.items() if value is not None)
            on_common = f"On the {len(common)} images where all have boxes, AP is {known}."
            yield " ".join([*parts, on_common if known else "There is no image on which all have boxes."])

    def _other_readings(self, own: _Detections) -> dict[ReadingName, dict[str, dict[int, Path]]]:
        compared = [run for run in self._finished if run.seed in own.get(run.group, {})]
        if all(run.foreign is not None for run in compared):
            return {}
        found: dict[ReadingName, dict[str, dict[int, Path]]] = {}
        for name in READINGS[1:]:
            files = {run.name: self._artifacts.file(run, final_detections(run, name)) for run in compared}
            lacking = [run for run in compared if files[run.name] is None]
            if lacking:
                decoding, boxes = reads(name, lacking[0].reading)
                self._missing.append(
                    f"No comparison {WORDS[name]}: {_few([run.name for run in lacking])} left no detections of "
                    f"{decoding} decoding and {boxes} boxes."
                )
                continue
            for run in compared:
                if (path := files[run.name]) is not None:
                    found.setdefault(name, {}).setdefault(run.group, {})[run.seed] = path
        return found

    def _compared(
        self, annotations: Path, readings: Mapping[ReadingName, _Detections]
    ) -> dict[ReadingName, Comparison]:
        files = [
            (f"{name}/{group}/{seed}", path)
            for name, groups in readings.items()
            for group, seeds in groups.items()
            for seed, path in seeds.items()
        ]

        def compute() -> dict[ReadingName, Comparison]:
            from coordexp.statistics.comparison import compare_readings

            return compare_readings(
                annotations,
                readings,
                resamples=self._resamples,
                seed=self._settings.seed,
                families=self._families,
                on_progress=self._progress("comparing groups"),
            )

        key = content_key([("annotations", annotations), *files], self._keyed)
        found = self._cache.get("comparison", key, _COMPARISONS, compute)
        truth_hash = sha256_of_file(annotations)
        truth = read_ground_truth(annotations)
        for run in self._data.trained:
            if run.seed in readings["own"].get(run.group, {}):
                self._missing += self._not_recorded(run, truth, truth_hash, readings, found)[:1]
        return {name: found[name] for name in readings}

    def _not_recorded(
        self,
        run: RunData,
        truth: GroundTruth,
        truth_hash: str,
        files: Mapping[ReadingName, _Detections],
        comparisons: Mapping[ReadingName, Comparison],
    ) -> list[str]:
        """Return a sentence for each reading whose detections do not give the AP that the run logged.

        A copy that MLflow sent has to give the very number, or this package has taken one file for another.

        Raises:
            AssertionError: if it does not, and the annotations are those it was measured on.
        """
        lines: list[str] = []
        changed = bool(run.annotations) and not truth_hash.startswith(run.annotations)
        for name, comparison in comparisons.items():
            decoding, boxes = reads(name, run.reading)
            path, logged = files[name][run.group][run.seed], run.metrics.get(str(MetricName(decoding, "AP", boxes)))
            again = comparison.value_by_seed[run.group][run.seed].value
            written = read_detections(path, truth)
            if in_fair_order(truth, written) is not written:
                continue  # the comparison has another order
            if logged is not None and self._artifacts.is_fetched(path):
                # The comparison adds up in another order, and differs in the last digits.
                again = BoxEvaluation(truth, read_detections(path, truth)).average_precision("AP")
                known = bool(run.annotations) and not changed
                assert again == logged or not known, f"{run.name} logged AP {logged}, {path} from MLflow gives {again}"
            if logged is not None and (again is None or abs(logged - again) > _SAME_AP):
                why = f"{truth.path} has changed" if changed else f"{path} is not what was measured"
                lines.append(
                    f"{run.name} logged AP {logged:.4f} under {decoding} decoding, but its detections give "
                    f"{'none' if again is None else f'{again:.4f}'}: {why} since."
                )
        return lines

    def _convergence(self, annotations: Path) -> Convergence | None:
        detections: dict[str, dict[int, dict[int, Path]]] = {}
        lacking: list[str] = []
        for run in self._finished:
            found = self._artifacts.evaluations(run)
            files = {step: path for step, at in found.items() if (path := at.detections(run.reading)).is_file()}
            if files:
                detections.setdefault(run.group, {})[run.seed] = files
            elif run.values(subset_headline(run.reading)):
                lacking.append(run.name)
        if lacking:  # a mean over the seeds that are here would be another number on every machine
            raise DataError(
                f"the detections of {_few(lacking)} during training are not on this machine; they stay in the runs' "
                "folders"
            )
        if not detections:
            return None
        image_ids, truth = self._subset(), read_ground_truth(annotations)
        for run in self._finished:
            steps = detections.get(run.group, {}).get(run.seed)
            final = self._artifacts.file(run, final_detections(run))
            if steps is not None and final is not None:
                # The last checkpoint was evaluated on the whole split, of which the subset is a part.
                steps[run.step] = self._artifacts.only_images(final, truth, image_ids, run)
        files = [
            (f"{group}/{seed}/{step}", path)
            for group, seeds in detections.items()
            for seed, steps in seeds.items()
            for step, path in steps.items()
        ]
        steps = {group: {step for by_step in seeds.values() for step in by_step} for group, seeds in detections.items()}
        used = consumption(self._data, steps)
        resamples = min(self._resamples, _CURVE_RESAMPLES)

        def compute() -> Convergence:
            from coordexp.statistics.convergence import convergence

            return convergence(
                annotations,
                detections,
                image_ids,
                num_images=used["num_images"],
                num_supervised_tokens=used["num_supervised_tokens"],
                resamples=resamples,
                seed=self._settings.seed,
                on_progress=self._progress("comparing curves"),
            )

        settings = [resamples, self._settings.seed, image_ids, repr(used)]
        key = content_key([("annotations", annotations), *files], settings)
        return self._cache.get("convergence", key, _CONVERGENCE, compute)

    def _decomposition(self, annotations: Path, detections: _Detections) -> Decomposition | None:
        if not detections:
            return None
        files = [(f"{group}/{seed}", path) for group, seeds in detections.items() for seed, path in seeds.items()]

        def compute() -> Decomposition:
            from coordexp.statistics.decomposition import decompose

            return decompose(
                annotations,
                detections,
                resamples=min(self._resamples, DECOMPOSITION_RESAMPLES),
                seed=self._settings.seed,
                families=self._families,
                on_progress=self._progress("finding errors"),
            )

        key = content_key([("annotations", annotations), *files], self._keyed)
        return self._cache.get("decomposition", key, _DECOMPOSITION, compute)

    def _subset(self) -> list[int]:
        """Return the images that are evaluated during training, which are the same in all runs."""
        evaluations = (at for run in self._finished for at in self._artifacts.evaluations(run).values())
        path = next((at.objects for at in evaluations if at.objects.is_file()), None)
        if path is None:
            raise DataError("no evaluation during training has left its objects.jsonl, which names the subset's images")
        return image_ids_of(path)

    def _gallery(self, annotations: Path, detections: _Detections) -> tuple[GalleryImage, ...]:
        self._progress("drawing images")(0, 1)
        images = next((found for run in self._data.runs if (found := self._artifacts.images(run))), {})
        if not images and not self._data.trained:
            return ()  # nobody has asked for pictures
        first = {group: seeds[min(seeds)] for group, seeds in detections.items()}
        found = make_gallery(annotations, first, images, count=self._settings.num_pictures)
        without = sum(not image.picture for image in found)
        if without:
            self._missing.append(f"{without} of {len(found)} pictures: their files are not on this machine.")
        return found

    def _curves(self, annotations: Path) -> tuple[EdgeDistributions, ...]:
        trained = [run for run in self._finished if run.foreign is None]
        curves, missing = group_curves(trained, annotations, artifacts=self._artifacts, cache=self._cache)
        self._missing += missing
        return curves


def _few(names: Sequence[str], *, most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more runs"


def _refusal(fairness: Fairness) -> str:
    lines = [
        f"  {row.key}  " + "  ".join(f"{name}: {value}" for name, value in row.values)
        for row in fairness.rows
        if not row.declared
    ]
    return (
        f"runs differ in more than the declared factor ({', '.join(fairness.factor)}), so they cannot be compared "
        "(--allow-differences shows the report all the same):\n" + "\n".join(lines)
    )

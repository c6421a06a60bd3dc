"""Runs -> a study, the one object that holds every number of a report; whatever cannot be had is named instead."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from coordexp.config.trees import value_at
from coordexp.data.chosen import chosen_sentence
from coordexp.data.image_facts import ImageFacts, read_image_facts
from coordexp.data.units import UnitNames, UnitRule, counted_images, read_unit_names, units_of_set
from coordexp.detection.average_precision import AVERAGE_PRECISIONS
from coordexp.detection.box_evaluation import BoxEvaluation
from coordexp.detection.boxes import Bools
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.matching import in_fair_order
from coordexp.detection.protocols import PROTOCOLS
from coordexp.detection.tags import Tags, read_tags, tags_of_set
from coordexp.errors import ComparisonError, CoordExpError, DataError, counted
from coordexp.evaluate.answers import unknown_sentence
from coordexp.files import read_json_lines, sha256_of_file
from coordexp.metrics import DECODINGS, MetricName, subset_headline
from coordexp.report.study.about import About, Fairness, about, check_fairness, unread_configs, writes_digits
from coordexp.report.study.artifacts import FINAL_CONSTRAINED, Artifacts, final_detections
from coordexp.report.study.boxes import Breakdown, group_breakdowns
from coordexp.report.study.data import ExperimentData, RunRecord, by_group, consumption, missing_runs
from coordexp.report.study.examples import EdgeDistributions, GalleryImage, choose_curves, make_gallery
from coordexp.runs.folder import RunFolder
from coordexp.statistics.comparison import compare_readings
from coordexp.statistics.convergence import convergence
from coordexp.statistics.decomposition import decompose
from coordexp.statistics.protocols import Protocols, compare_protocols, contrary_sentences
from coordexp.statistics.readings import READINGS, WORDS, ReadingName, reading_sentence, reads
from coordexp.statistics.resampling import enough_swaps
from coordexp.statistics.results import Comparison, Convergence, CurvePair, Decomposition, PairParts, PairResult
from coordexp.statistics.slices import SlicePair, Slices, compare_slices
from coordexp.statistics.verdict import FILES, has_learned, verdict

_CURVE_RESAMPLES = 1000
DECOMPOSITION_RESAMPLES = 500  # these say where to look; the differences of AP have four times as many
_SAME_AP = 1e-6
_PART = 0.1  # of the images: a file without a box on so many that another has may not have seen them
_T = TypeVar("_T")
_Pair = TypeVar("_Pair", PairResult, PairParts, CurvePair, SlicePair)
OnProgress = Callable[[str, int, int], None]
_Detections = Mapping[str, Mapping[int, Path]]  # group -> training seed -> its file


@dataclass(frozen=True)
class Study:
    """An experiment and what was found out about it; every part but the runs may be absent."""

    data: ExperimentData
    verdict: str = ""  # what the comparison says, in a sentence
    fairness: Fairness | None = None  # what differs between the runs
    comparison: Comparison | None = None  # groups and pairs with intervals, each group by its own reading
    readings: Mapping[ReadingName, Comparison] = field(default_factory=dict[ReadingName, Comparison])  # own first
    convergence: Convergence | None = None  # how fast groups get better
    decomposition: Decomposition | None = None  # what groups lose AP50 to, each by its own reading
    breakdowns: Mapping[str, Breakdown] = field(default_factory=dict[str, Breakdown])  # parts of AP, by group
    gallery: tuple[GalleryImage, ...] = ()
    coord_curves: tuple[EdgeDistributions, ...] = ()  # coord distributions of chosen boxes
    num_images: int = 0  # of the split the gallery was chosen from
    missing: tuple[str, ...] = ()  # what is not here and why, a sentence each
    about: About | None = None  # what the groups are and how they were made
    cautions: tuple[str, ...] = ()  # what may decide the comparison beside the detectors; the verdict begins so
    units: UnitNames | None = None  # what is drawn and swapped in the place of images
    slices: Slices | None = None  # groups on parts of the images, where tags were asked for
    protocols: Protocols | None = None  # the same detections as published tables measure them


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


def better_first(study: Study) -> Study:
    """Return the study in reading order: the better group of each pair first, and the best group's pairs first.

    Which group is better is decided once, by the pair's difference under each group's own reading: a pair has the
    same name in every table, and a negative difference there says that it comes out the other way round. Files for
    programs keep the experiment's order.
    """
    if study.comparison is None:
        return study
    value = {group: -estimate.value for group, estimate in study.comparison.value.items()}
    couples = [(p.a, p.b) if p.difference.value >= 0 else (p.b, p.a) for p in study.comparison.pairs]
    couples.sort(key=lambda couple: (value[couple[0]], value[couple[1]]))

    def ordered(pairs: tuple[_Pair, ...]) -> tuple[_Pair, ...]:
        there = {(pair.b, pair.a): pair.reversed() for pair in pairs} | {(pair.a, pair.b): pair for pair in pairs}
        return tuple(there[couple] for couple in couples if couple in there)

    parts, curves, slices = study.decomposition, study.convergence, study.slices
    return replace(
        study,
        comparison=replace(study.comparison, pairs=ordered(study.comparison.pairs)),
        readings={name: replace(found, pairs=ordered(found.pairs)) for name, found in study.readings.items()},
        decomposition=parts and replace(parts, pairs=ordered(parts.pairs)),
        convergence=curves and replace(curves, pairs=ordered(curves.pairs)),
        slices=slices and replace(slices, slices=tuple(replace(it, pairs=ordered(it.pairs)) for it in slices.slices)),
    )


def make_study(
    data: ExperimentData,
    artifacts: Artifacts,
    settings: Settings,
    *,
    on_progress: OnProgress = lambda what, done, total: None,
) -> Study:
    """Compute what a report shows. An unfinished experiment gives what it has, and says what it lacks.

    ``on_progress`` is called with (what, done, to do).

    Raises:
        ComparisonError: if runs were evaluated on other validation data, or differ outside the declared factor
            and that was not allowed.
        DataError: if the units or slices asked for cannot be found in the annotations.
    """
    fairness = check_fairness(data, artifacts) if data.trained else None
    if fairness is not None and not fairness.comparable and not settings.allow_differences:
        rows = (row for row in fairness.rows if not row.declared)
        lines = [f"  {row.key}  " + "  ".join(f"{name}: {value}" for name, value in row.values) for row in rows]
        raise ComparisonError(
            f"runs differ in more than the declared factor ({', '.join(fairness.factor)}), so they cannot be compared "
            "(--allow-differences shows the report all the same):\n" + "\n".join(lines)
        )
    missing = [*data.origin, *missing_runs(data), *unread_configs(data, artifacts)]
    annotations = _annotations(data, artifacts)
    study = Study(data, fairness=fairness, about=about(data, artifacts))
    if annotations is None:
        missing.append("No statistics and no images: the annotations of the validation split are not on this machine.")
        return replace(study, missing=tuple(missing))
    try:
        facts = _facts(data, artifacts, settings)
    except CoordExpError as error:
        # The runs are finished: a report by image is worth more than none, as long as it says so.
        missing.append(f"No units and tags of the experiment's set: {error}")
        facts = None
    units, tags = _units(settings, annotations, facts), _tags(settings, annotations, facts)
    return _Measuring(data, artifacts, settings, annotations, units, tags, missing, on_progress).added_to(study)


def _facts(data: ExperimentData, artifacts: Artifacts, settings: Settings) -> ImageFacts | None:
    """Return what the experiment's set knows of its validation images; None for files, and for runs before sets."""
    path = settings.image_facts
    if path is None:
        found = (artifacts.image_facts(run) for run in data.trained)
        path = next((each for each in found if each is not None and each.is_file()), None)
    return None if path is None else read_image_facts(path)


def _units(settings: Settings, annotations: Path, facts: ImageFacts | None) -> UnitNames | None:
    """Return the units of the validation images: those asked for, else those of the experiment's set."""
    if settings.unit_by is not None:
        return read_unit_names(annotations, settings.unit_by, facts)
    if facts is None or facts.unit_by is None:
        return None
    return units_of_set(list(read_ground_truth(annotations).sizes_px), facts, facts.unit_by)


def _tags(settings: Settings, annotations: Path, facts: ImageFacts | None) -> Tags | None:
    """Return the tags of the validation images: those asked for, else those of the experiment's set."""
    truth = read_ground_truth(annotations)
    if settings.slices:
        return read_tags(truth, settings.slices, facts=facts)
    tags = None if facts is None else tags_of_set(truth, facts)
    return None if tags is None or not tags.tags else tags


def _annotations(data: ExperimentData, artifacts: Artifacts) -> Path | None:
    found = {run.name: path for run in data.runs if (path := artifacts.annotations(run)) is not None}
    if not found:
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


@dataclass(frozen=True)
class _Image:
    image_id: int  # of a line of objects.jsonl


@dataclass
class _Measuring:
    """Computes the numbers that follow from detections, and collects the reasons for what cannot be had."""

    data: ExperimentData
    artifacts: Artifacts
    settings: Settings
    annotations: Path
    units: UnitNames | None
    tags: Tags | None
    missing: list[str]
    on_progress: OnProgress
    compared: list[RunRecord] = field(
        default_factory=list[RunRecord]
    )  # the finished runs whose own detections are there

    @property
    def _finished(self) -> list[RunRecord]:
        return [run for run in self.data.runs if run.state == "finished"]

    @property
    def _families(self) -> dict[str, str]:
        return {run.group: run.family for run in self.data.runs}

    def added_to(self, study: Study) -> Study:
        own, lacking = self._files(self._finished)
        self.compared = [run for run in self._finished if run not in lacking]
        self.missing += [f"{run.name}: its detections are neither in its directory nor in MLflow." for run in lacking]
        cautions: tuple[str, ...] = ()
        with contextlib.suppress(CoordExpError):  # a file that cannot be read is named where it is compared
            cautions = tuple(self._cautions(own))
        readings = self._readings(own) if own else {}
        protocols = self._tried("protocols", lambda: self._protocols(own, readings["own"])) if readings else None
        study = replace(
            study,
            verdict=self._verdict(readings, study.fairness, cautions, protocols) if readings else "",
            comparison=readings.get("own"),
            readings=readings,
            convergence=self._tried("convergence", self._convergence),
            decomposition=self._tried("decomposition", lambda: self._decomposition(own)),
            breakdowns=self._tried("analysis of boxes", lambda: group_breakdowns(self._finished, self.artifacts)) or {},
            gallery=self._tried("gallery", lambda: self._gallery(own)) or (),
            coord_curves=self._tried("coordinate distributions", self._curves) or (),
            num_images=len(read_ground_truth(self.annotations).sizes_px),
            cautions=cautions,
            units=self.units,
            protocols=protocols,
            slices=self._tried("slices", lambda: self._slices(own)),
        )
        return replace(study, missing=tuple(self.missing))

    def _tried(self, what: str, make: Callable[[], _T]) -> _T | None:
        """Do one part; a file that is wrong costs that part, not the report."""
        try:
            return make()
        except CoordExpError as error:
            self.missing.append(f"No {what}: {error}")
            return None

    def _files(
        self, runs: Sequence[RunRecord], reading: ReadingName = "own"
    ) -> tuple[dict[str, dict[int, Path]], list[RunRecord]]:
        """Return the detections that a reading takes of runs, and the runs that have none of them."""
        found: dict[str, dict[int, Path]] = {}
        lacking: list[RunRecord] = []
        for run in runs:
            if (path := self.artifacts.file(run, final_detections(run, reading))) is not None:
                found.setdefault(run.group, {})[run.seed] = path
            else:
                lacking.append(run)
        return found, lacking

    def _verdict(
        self,
        readings: Mapping[ReadingName, Comparison],
        fairness: Fairness | None,
        cautions: Sequence[str],
        protocols: Protocols | None,
    ) -> str:
        """Put around the sentence what it leaves out: a reader may take it from here alone."""
        comparison = readings["own"]
        contrary = [] if protocols is None else contrary_sentences(protocols)
        if fairness is None:
            return " ".join([*cautions, verdict(comparison, FILES), *contrary])
        leads = list(cautions)
        if chosen := chosen_sentence(self.annotations):
            leads.append(f"{chosen}.")
        if fairness.undeclared:
            leads.append(f"These runs differ in more than the declared factor ({', '.join(fairness.undeclared)}).")
        compared = {f"{group}-s{seed}" for group, seeds in comparison.seeds.items() for seed in seeds}
        if absent := [run.name for run in self.data.runs if run.name not in compared]:
            leads.append(f"Without {_few(absent)}:")
        under = reading_sentence(readings) if has_learned(comparison, *comparison.groups) else ""
        return " ".join(filter(None, [*leads, verdict(comparison), under, *contrary, *self._unknown_names()]))

    def _unknown_names(self) -> Iterator[str]:
        """Yield, for each decoding, what a run writes in place of categories where that is why its AP is low."""
        for way in DECODINGS:
            for run in self.compared:
                local = self.artifacts.run_dir(run)
                written = None if local is None else RunFolder(local).evaluation("final").decoding(way)
                if written is None or not written.unknown.is_file():
                    continue
                if sentence := unknown_sentence(written, way, run.metrics):
                    yield f"{run.name}, {sentence}."
                    break

    def _cautions(self, own: _Detections) -> Iterator[str]:
        """Yield what may decide a comparison beside its losses: digits, images left out, the order of equal scores."""
        in_digits = {run.group: writes_digits(run, self.artifacts) for run in self.compared if run.foreign is None}
        if len(set(in_digits.values())) == 2:
            named = ", ".join(group for group, is_so in in_digits.items() if is_so)
            yield (
                f"{named} writes coordinates in digits, which the base may have learned before this training: a "
                "ceiling, and no finding about a loss."
            )
        truth = read_ground_truth(self.annotations)
        runs = {run.name: run for run in self.compared}
        names = {name: run.group if len(own[run.group]) == 1 else name for name, run in runs.items()}
        files = {name: read_detections(own[run.group][run.seed], truth) for name, run in runs.items()}
        images = {name: np.unique(found.image_ids) for name, found in files.items()}
        num, parts = len(truth.sizes_px), list[str]()
        for name, run in runs.items():
            if run.foreign is None and in_fair_order(truth, files[name]) is not files[name]:
                yield (
                    f"{files[name].num_tied} of {len(files[name])} boxes of {names[name]} share a score with another: "
                    "its logged AP depends on the order in which they were written. The comparison takes them by their "
                    "coordinates, so that no order makes a winner."
                )
            others = [other for other in runs if runs[other].group != run.group]
            lacking = {other: len(np.setdiff1d(images[other], images[name])) for other in others}
            most = max(others, key=lambda other: lacking[other], default=name)
            if run.foreign is not None and lacking.get(most, 0) > max(2, _PART * num):
                parts.append(
                    f"{names[name]} has no box on {lacking[most]} of {self._counted(list(truth.sizes_px))}, which "
                    f"{names[most]} has: was it run on a part?"
                )
        if parts:
            common = functools.reduce(np.intersect1d, images.values()).tolist()
            tables = {name: BoxEvaluation(truth, found).table_on_images(common) for name, found in files.items()}
            values = {names[k]: table.average_precision(AVERAGE_PRECISIONS["AP"]) for k, table in tables.items()}
            known = ", ".join(f"{name} {value:.4f}" for name, value in values.items() if value is not None)
            on_common = f"On the {self._counted(common)} where all have boxes, AP is {known}."
            yield " ".join([*parts, on_common if known else "There is no image on which all have boxes."])

    def _counted(self, image_ids: Sequence[int]) -> str:
        """Return how many images these are, and in how many units."""
        num_units = None if self.units is None else self.units.numbered(image_ids).num_units
        return counted_images(len(image_ids), num_units)

    def _readings(self, own: _Detections) -> dict[ReadingName, Comparison]:
        """Compare the runs under every reading; one that lacks a file of theirs is left out whole."""
        wanted: dict[ReadingName, _Detections] = {"own": own}
        for name in READINGS[1:] if any(run.foreign is None for run in self.compared) else ():
            found, lacking = self._files(self.compared, name)
            if lacking:
                decoding, boxes = reads(name, lacking[0].reading)
                self.missing.append(
                    f"No comparison {WORDS[name]}: {_few([run.name for run in lacking])} left no detections of "
                    f"{decoding} decoding and {boxes} boxes."
                )
            else:
                wanted[name] = found
        try:
            return self._comparisons(wanted)
        except CoordExpError as error:
            comparisons = self._tried("comparison", lambda: self._comparisons({"own": own})) or {}
            if comparisons:
                self.missing.append(f"No other reading than each group's own: {error}")
            return comparisons

    def _comparisons(self, readings: Mapping[ReadingName, _Detections]) -> dict[ReadingName, Comparison]:
        found = compare_readings(
            self.annotations,
            readings,
            resamples=self.settings.resamples,
            swaps=enough_swaps(math.comb(len(self.data.groups), 2), resamples=self.settings.resamples),
            seed=self.settings.seed,
            families=self._families,
            units=self.units,
            on_progress=functools.partial(self.on_progress, "comparing groups"),
        )
        for run in self.compared:
            if run.foreign is None:
                self.missing += list(self._not_recorded(run, readings, found))[:1]
        return found

    def _not_recorded(
        self, run: RunRecord, files: Mapping[ReadingName, _Detections], comparisons: Mapping[ReadingName, Comparison]
    ) -> Iterator[str]:
        """Yield a sentence for each reading whose detections do not give the AP that the run logged.

        Raises:
            AssertionError: if they are a copy that MLflow sent, and the annotations those that the run was measured
                on: this package has taken one file for another.
        """
        truth, is_known = read_ground_truth(self.annotations), bool(run.annotations)
        has_changed = is_known and not sha256_of_file(self.annotations).startswith(run.annotations)
        for name, comparison in comparisons.items():
            decoding, boxes = reads(name, run.reading)
            path, logged = files[name][run.group][run.seed], run.metrics.get(str(MetricName(decoding, "AP", boxes)))
            again = comparison.value_by_seed[run.group][run.seed].value
            if logged is None or logged == again:
                continue
            written = read_detections(path, truth)
            if in_fair_order(truth, written) is not written:
                continue  # the comparison has another order
            if self.artifacts.is_fetched(path) and is_known and not has_changed:
                # The comparison adds up in another order, and differs in the last digits.
                exact = BoxEvaluation(truth, written).average_precision("AP")
                assert exact == logged, f"{run.name} logged AP {logged}, {path} from MLflow gives {exact}"
            if abs(logged - again) <= _SAME_AP:
                continue
            why = f"{truth.path} has changed" if has_changed else f"{path} is not what was measured"
            yield (
                f"{run.name} logged AP {logged:.4f} under {decoding} decoding, but its detections give {again:.4f}: "
                f"{why} since."
            )

    def _convergence(self) -> Convergence | None:
        detections: dict[str, dict[int, dict[int, Path]]] = {}
        lacking: list[str] = []
        for run in self._finished:
            found = self.artifacts.evaluations(run)
            if files := {step: path for step, at in found.items() if (path := at.detections(run.reading)).is_file()}:
                detections.setdefault(run.group, {})[run.seed] = files
            elif any(point.step < run.step for point in run.curves.get(subset_headline(run.reading), ())):
                lacking.append(run.name)
        if lacking:  # a mean over the seeds that are here would be another number on every machine
            raise DataError(
                f"the detections of {_few(lacking)} during training are not on this machine; they stay in the runs' "
                "folders"
            )
        if not detections:
            return None
        evaluations = (at for run in self._finished for at in self.artifacts.evaluations(run).values())
        objects = next((at.objects for at in evaluations if at.objects.is_file()), None)
        if objects is None:
            raise DataError("no evaluation during training has left its objects.jsonl, which names the subset's images")
        image_ids = sorted(line.image_id for line in read_json_lines(_Image, objects))  # the same in all runs
        truth = read_ground_truth(self.annotations)
        for run in self._finished:
            steps = detections.get(run.group, {}).get(run.seed)
            final = self.artifacts.file(run, final_detections(run))
            if steps is not None and final is not None:
                # The last checkpoint was evaluated on the whole split, of which the subset is a part.
                steps[run.step] = self.artifacts.only_images(final, truth, image_ids, run)
        by_step = {group: {step for steps in seeds.values() for step in steps} for group, seeds in detections.items()}
        used, resamples = consumption(self.data, by_step), min(self.settings.resamples, _CURVE_RESAMPLES)
        return convergence(
            self.annotations,
            detections,
            image_ids,
            num_images=used["num_images"],
            num_supervised_tokens=used["num_supervised_tokens"],
            resamples=resamples,
            seed=self.settings.seed,
            units=self.units,
            on_progress=functools.partial(self.on_progress, "comparing curves"),
        )

    def _decomposition(self, own: _Detections) -> Decomposition | None:
        if not own:
            return None
        return decompose(
            self.annotations,
            own,
            resamples=min(self.settings.resamples, DECOMPOSITION_RESAMPLES),
            seed=self.settings.seed,
            families=self._families,
            units=self.units,
            on_progress=functools.partial(self.on_progress, "finding errors"),
        )

    def _protocols(self, own: _Detections, comparison: Comparison) -> Protocols:
        runs = {(run.group, run.seed): run for run in self.compared}

        def before_repeat(group: str, seed: int) -> Bools | None:
            from coordexp.evaluate.results import detections_before_repeat  # here: it brings torch, few need it

            path = self.artifacts.file(runs[group, seed], FINAL_CONSTRAINED.objects)
            return None if path is None else detections_before_repeat(path)

        written: dict[str, dict[int, Path]] = {group: {} for group in own}
        logged: dict[str, dict[str, dict[int, float]]] = {protocol.name: {} for protocol in PROTOCOLS}
        for (group, seed), run in runs.items():
            in_file_order = None if run.foreign is None else run.foreign.written
            written[group][seed] = in_file_order or own[group][seed]
            for name, groups in logged.items():
                if (value := run.own("constrained", name)) is not None:
                    groups.setdefault(group, {})[seed] = value
        return compare_protocols(
            self.annotations,
            written,
            comparison,
            logged=logged,
            before_repeat=before_repeat,
            families=self._families,
            resamples=min(self.settings.resamples, DECOMPOSITION_RESAMPLES),
            seed=self.settings.seed,
            units=self.units,
            on_progress=functools.partial(self.on_progress, "measuring by other protocols"),
        )

    def _slices(self, own: _Detections) -> Slices | None:
        if self.tags is None or not own:
            return None
        return compare_slices(
            self.annotations,
            own,
            self.tags,
            resamples=min(self.settings.resamples, DECOMPOSITION_RESAMPLES),
            seed=self.settings.seed,
            families=self._families,
            units=self.units,
            on_progress=functools.partial(self.on_progress, "comparing slices"),
        )

    def _gallery(self, own: _Detections) -> tuple[GalleryImage, ...]:
        images = next((found for run in self.data.runs if (found := self.artifacts.images(run))), {})
        if not self.settings.num_pictures or (not images and not self.data.trained):
            return ()  # nobody has asked for pictures
        self.on_progress("drawing images", 0, 1)
        first = {group: seeds[min(seeds)] for group, seeds in own.items()}
        found = make_gallery(self.annotations, first, images, count=self.settings.num_pictures)
        self.on_progress("drawing images", 1, 1)
        if without := sum(not image.picture for image in found):
            self.missing.append(f"{without} of {len(found)} pictures: their files are not on this machine.")
        return found

    def _curves(self) -> tuple[EdgeDistributions, ...]:
        trained = [run for run in self._finished if run.foreign is None]
        every = {group: runs[0] for group, runs in by_group(trained).items()}
        first = {group: run for group, run in every.items() if not writes_digits(run, self.artifacts)}
        kept = {group: self.artifacts.file(run, FINAL_CONSTRAINED.distributions) for group, run in first.items()}
        files = {group: path for group, path in kept.items() if path is not None}
        given = value_at(self.artifacts.config(trained[0]), "evaluation.aliases") if trained else None
        aliases = {str(key): str(value) for key, value in given.items()} if isinstance(given, dict) else {}
        found = choose_curves(self.annotations, files, aliases=aliases)
        if lacking := ", ".join(group for group in first if group not in files):
            self.missing.append(f"Coordinate distributions of {lacking}: their first runs have not kept any.")
        return found


def _few(names: Sequence[str]) -> str:
    more = f" and {counted(len(names) - 4, 'more run')}" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more

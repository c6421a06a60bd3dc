"""Groups on parts of the images or objects: AP by the values of tags, by size, by category and by objects an image.

Slices are looked at after the fact, and there are many: they say where to look. Draws are those of the whole sample, so
that a slice has as many images in a draw as happen to be drawn, and slices of one draw can be compared.

Legend of shapes: ``N`` images, ``R`` resamples, ``K`` categories.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from coordexp.data.units import UnitNames, Units
from coordexp.detection.boxes import AREA_RANGES_PX2, IOU_THRESHOLDS, OBJECT_COUNTS, Bools, Floats
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import GroundTruth, read_ground_truth
from coordexp.detection.matching.matcher import Matcher
from coordexp.detection.matching.matches import Matches, Weights, on_images
from coordexp.detection.precision.average_precision import mean_of_numbers, precisions, unit_weights
from coordexp.detection.precision.fair_order import in_fair_order
from coordexp.detection.tags import Tags
from coordexp.statistics.bootstrap import FilePath, check_groups, numbered_units
from coordexp.statistics.intervals import FEWEST_IMAGES, Drawn, Total, difference_total, group_total
from coordexp.statistics.permutation import holm
from coordexp.statistics.resampling import OnProgress, blocks_of, image_weights
from coordexp.statistics.results import Estimate

FEWEST_OF_SLICE = 10
"""Units, or images, below which a slice has values alone."""

MAX_CATEGORIES = 100
"""Categories that are slices: those with most objects."""

SIZE, CATEGORY, OBJECTS = "size", "category", "objects"
_AP, _AP50 = 0, 1


@dataclass(frozen=True)
class SlicePair:
    """How two groups differ on a slice in AP, ``a - b``."""

    a: str
    b: str
    difference: Estimate | None  # None where AP is not defined there
    p_holm: float | None = None  # corrected for all values of tags x pairs; None where nothing is tested
    beyond: Estimate | None = None  # the difference minus that on the largest slice of the tag

    def reversed(self) -> "SlicePair":
        return SlicePair(
            a=self.b,
            b=self.a,
            difference=None if self.difference is None else self.difference.reversed(),
            p_holm=self.p_holm,
            beyond=None if self.beyond is None else self.beyond.reversed(),
        )


@dataclass(frozen=True)
class Slice:
    """Some of the images, or of the objects."""

    tag: str  # ``light``, or what is a slice of every data set: size, category, objects
    value: str
    is_tested: bool  # whether it is a value of a tag that was asked for
    num_images: int
    num_units: int | None
    num_objects: int  # crowds not counted
    ap: Mapping[str, Estimate | None]  # group -> mean over seeds
    ap50: Mapping[str, Estimate | None]
    pairs: tuple[SlicePair, ...]  # every pair of groups, the earlier one first

    @property
    def name(self) -> str:
        return f"{self.tag} = {self.value}"


@dataclass(frozen=True)
class Slices:
    """All slices: the values of tags, then sizes, numbers of objects, and categories."""

    slices: tuple[Slice, ...]
    largest: Mapping[str, str]  # tag -> its value with most images, which the others are held against
    num_tests: int  # that p is corrected for
    resamples: int
    seed: int = 0
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Part:
    """A slice before anything is measured on it: which images it has and what is counted there."""

    tag: str
    value: str
    is_tested: bool
    images: Bools  # [N] those that it has objects in, or that have the value of the tag
    num_objects: int
    num_units: int
    area: str = "all"
    category: int | None = None  # place among the categories


def compare_slices(
    annotations_json: FilePath,
    detections: Mapping[str, Mapping[int, FilePath]],
    tags: Tags,
    *,
    families: Mapping[str, str] | None = None,
    resamples: int = 500,
    seed: int = 0,
    units: UnitNames | None = None,
    on_progress: OnProgress | None = None,
) -> Slices:
    """Compare groups on every value of some tags, and by size, category and number of objects.

    Arguments and errors are those of :func:`coordexp.statistics.comparison.compare_readings`, for one reading. With the
    same ``seed``, the resamples are those of the decomposition.
    """
    check_groups(detections)
    truth = read_ground_truth(Path(annotations_json))
    numbered = numbered_units(annotations_json, units, None)
    drawn_units = numbered or Units.single(len(truth.sizes_px))
    parts = _parts(truth, tags, drawn_units)
    draws = drawn_units.spread(image_weights(drawn_units.num_units, resamples=resamples, seed=seed))
    weights = np.vstack([unit_weights(len(truth.sizes_px)), draws])  # the first row is the images as they are
    files = [(group, number, path) for group, seeds in detections.items() for number, path in sorted(seeds.items())]
    measured: list[dict[str, dict[int, Floats]]] = [{group: {} for group in detections} for _ in parts]
    for done, (group, number, path) in enumerate(files):
        matcher = Matcher(truth, in_fair_order(truth, read_detections(Path(path), truth)))
        for at, values in enumerate(_measure(matcher, parts, weights)):
            measured[at][group][number] = values
        if on_progress is not None:
            on_progress(done + 1, len(files))
    has_units = drawn_units.has_several
    slices = [
        _described(part, runs, families or {}, has_units=has_units, with_units=numbered is not None)
        for part, runs in zip(parts, measured, strict=True)
    ]
    slices = _with_contrasts(slices, parts, measured, families or {}, has_units=has_units)
    slices, num_tests = _corrected(slices)
    return Slices(
        slices=tuple(slices),
        largest={tag: parts[at].value for tag, at in _largest(parts).items()},
        num_tests=num_tests,
        resamples=resamples,
        seed=seed,
        remarks=tags.remarks,
    )


def _parts(truth: GroundTruth, tags: Tags, units: Units) -> list[_Part]:
    image_ids = np.array(sorted(truth.sizes_px), np.int64)
    is_object = ~truth.is_crowd
    image_of_object = np.searchsorted(image_ids, truth.image_ids)
    objects_of_image = np.bincount(image_of_object[is_object], minlength=len(image_ids))

    def part(tag: str, value: str, images: Bools, *, num_objects: int, is_tested: bool = False) -> _Part:
        num_units = len(np.unique(units.of_image[images]))
        return _Part(tag, value, is_tested, images, num_objects, num_units)

    def of_objects(tag: str, value: str, is_in: Bools) -> _Part:
        images = np.zeros(len(image_ids), np.bool_)
        images[image_of_object[is_in]] = True
        return part(tag, value, images, num_objects=int(np.count_nonzero(is_in)))

    parts: list[_Part] = []
    for tag in tags.tags:
        for value in tag.values:
            images = np.array([tag.of_image.get(image_id) == value for image_id in image_ids.tolist()], np.bool_)
            num_objects = int(objects_of_image[images].sum())
            parts.append(part(tag.name, value, images, num_objects=num_objects, is_tested=True))
    for size, (low, high) in AREA_RANGES_PX2.items():
        if size != "all":
            is_in = is_object & (truth.areas_px2 >= low) & (truth.areas_px2 <= high)
            parts.append(replace(of_objects(SIZE, size, is_in), area=size))
    for low, high in OBJECT_COUNTS:
        images = (objects_of_image >= low) & (objects_of_image <= (np.inf if high is None else high))
        parts.append(part(OBJECTS, _count_name(low, high), images, num_objects=int(objects_of_image[images].sum())))
    category_ids = sorted(truth.categories)
    of_category = [is_object & (truth.category_ids == key) for key in category_ids]
    most = sorted(range(len(category_ids)), key=lambda at: -np.count_nonzero(of_category[at]))[:MAX_CATEGORIES]
    for at in sorted(most):
        name = truth.categories[category_ids[at]]
        parts.append(replace(of_objects(CATEGORY, name, of_category[at]), category=at))
    return [part for part in parts if part.is_tested or part.num_objects]


def _count_name(low: int, high: int | None) -> str:
    if high is None:
        return f"{low} or more"
    return str(low) if low == high else f"{low} to {high}"


def _measure(matcher: Matcher, parts: Sequence[_Part], weights: Weights) -> list[Floats]:
    """Return ``[1 + R, 2]`` AP and AP50 of each part: on the images as they are, and on each resample."""
    matches = {area: matcher.matches(area) for area in {part.area for part in parts} | {"all"}}
    by_category = _precisions(matches["all"], weights)
    values: list[Floats] = []
    for part in parts:
        if part.category is not None:
            values.append(by_category[:, :, part.category])
        elif part.area != "all":
            values.append(mean_of_numbers(_precisions(matches[part.area], weights)))
        else:
            values.append(mean_of_numbers(_precisions(on_images(matches["all"], part.images), weights)))
    return values


def _precisions(matches: Matches, weights: Weights) -> Floats:
    """Return ``[1 + R, 2, K]`` AP and AP50 by category, NaN where none is drawn."""
    by_category = np.empty((len(weights), 2, len(matches.start) - 1))
    for block in blocks_of(len(weights), None):
        by_threshold = precisions(matches, 0, len(IOU_THRESHOLDS), weights[block])
        by_category[block, _AP], by_category[block, _AP50] = by_threshold.mean(axis=1), by_threshold[:, 0]
    return by_category


def _drawn(values: Floats, metric: int, num_units: int | None) -> Drawn:
    return Drawn(float(values[0, metric]), values[1:, metric], num_units)


def _described(
    part: _Part,
    runs: Mapping[str, Mapping[int, Floats]],
    families: Mapping[str, str],
    *,
    has_units: bool,
    with_units: bool,
) -> Slice:
    """Return a slice with what was measured on it; p is not corrected yet."""
    drawn_units = part.num_units if has_units else None
    has_intervals = part.num_units >= max(FEWEST_OF_SLICE, FEWEST_IMAGES)

    def values(metric: int) -> dict[str, Estimate | None]:
        totals = {
            group: group_total({n: _drawn(measured, metric, drawn_units) for n, measured in seeds.items()})
            for group, seeds in runs.items()
        }
        estimates: dict[str, Estimate | None] = {}
        for group, total in totals.items():
            estimate = _estimate(total, has_intervals=has_intervals)
            estimates[group] = None if estimate is None else estimate.of_precision()
        return estimates

    pairs: list[SlicePair] = []
    for a, b in combinations(runs, 2):
        total = _difference(runs[a], runs[b], drawn_units, paired=families.get(a) == families.get(b))
        estimate = _estimate(total, has_intervals=has_intervals)
        is_tested = part.is_tested and estimate is not None and estimate.low is not None
        difference = None if estimate is None else estimate.of_difference()
        pairs.append(SlicePair(a, b, difference, total.p if is_tested else None))
    return Slice(
        tag=part.tag,
        value=part.value,
        is_tested=part.is_tested,
        num_images=int(np.count_nonzero(part.images)),
        num_units=part.num_units if with_units else None,
        num_objects=part.num_objects,
        ap=values(_AP),
        ap50=values(_AP50),
        pairs=tuple(pairs),
    )


def _difference(a: Mapping[int, Floats], b: Mapping[int, Floats], num_units: int | None, *, paired: bool) -> Total:
    first, second = ({n: _drawn(values, _AP, num_units) for n, values in runs.items()} for runs in (a, b))
    return difference_total(first, second, paired=paired)


def _estimate(total: Total, *, has_intervals: bool) -> Estimate | None:
    """Return a value with its interval, the value alone of a small slice, or None where it is not defined."""
    if np.isnan(total.value):
        return None
    return total.estimate if has_intervals else Estimate(total.value)


def _largest(parts: Sequence[_Part]) -> dict[str, int]:
    """Return for each tag the place of its part with most images, if it has intervals."""
    largest: dict[str, int] = {}
    for at, part in enumerate(parts):
        if not part.is_tested or part.num_units < FEWEST_OF_SLICE:
            continue
        before = largest.get(part.tag)
        if before is None or np.count_nonzero(part.images) > np.count_nonzero(parts[before].images):
            largest[part.tag] = at
    return largest


def _with_contrasts(
    slices: Sequence[Slice],
    parts: Sequence[_Part],
    measured: Sequence[Mapping[str, Mapping[int, Floats]]],
    families: Mapping[str, str],
    *,
    has_units: bool,
) -> list[Slice]:
    """Add by how much each pair differs otherwise on a slice than on the largest one of its tag, on the same draws."""
    largest = _largest(parts)
    contrasted: list[Slice] = []
    for at, (current, part) in enumerate(zip(slices, parts, strict=True)):
        other = largest.get(part.tag) if part.is_tested else None
        if other is None or other == at or part.num_units < FEWEST_OF_SLICE:
            contrasted.append(current)
            continue
        num_units = min(part.num_units, parts[other].num_units) if has_units else None
        pairs: list[SlicePair] = []
        for pair in current.pairs:
            beyond = {
                group: {n: values - measured[other][group][n] for n, values in measured[at][group].items()}
                for group in (pair.a, pair.b)
            }
            paired = families.get(pair.a) == families.get(pair.b)
            total = _difference(beyond[pair.a], beyond[pair.b], num_units, paired=paired)
            estimate = _estimate(total, has_intervals=True)
            pairs.append(replace(pair, beyond=None if estimate is None else estimate.within(-2.0, 2.0)))
        contrasted.append(replace(current, pairs=tuple(pairs)))
    return contrasted


def _corrected(slices: Sequence[Slice]) -> tuple[list[Slice], int]:
    """Correct p by Holm for all values of tags x pairs, and return for how many."""
    tested = [pair.p_holm for current in slices for pair in current.pairs if pair.p_holm is not None]
    adjusted = iter(holm(tested))
    corrected: list[Slice] = []
    for current in slices:
        pairs = [pair if pair.p_holm is None else replace(pair, p_holm=next(adjusted)) for pair in current.pairs]
        corrected.append(replace(current, pairs=tuple(pairs)))
    return corrected, len(tested)

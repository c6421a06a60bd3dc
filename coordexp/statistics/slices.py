"""Groups on parts of the images or objects: AP by the values of tags, by size, by category and by objects an image.

Slices are looked at after the fact, and there are many: they say where to look. Draws are those of the whole sample, so
the number of a slice's images differs from draw to draw, and slices of one draw can be compared.

    tags, sizes, ...  -> _Selection: which images, which objects  before anything is measured
                      -> [1 + R, 2] AP and AP50 of each file      _measure
                      -> Slice: estimates and pairs               _described, then _with_contrasts, _corrected

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
"""With fewer units, or images, a slice has values without intervals."""

MAX_CATEGORIES = 100
"""So many categories are slices: those with most objects."""

SIZE = "size"
CATEGORY = "category"
OBJECTS = "objects"
_AP = 0
_AP50 = 1
"""Columns of what is measured."""


@dataclass(frozen=True)
class SlicePair:
    """How two groups differ on a slice in AP, ``a - b``.

    Attributes:
        a: a group.
        b: another group.
        difference: None if AP is not defined on the slice.
        p_holm: corrected for all values of tags x pairs; None if it is not tested.
        beyond: the difference minus the difference on the largest slice of the tag.
    """

    a: str
    b: str
    difference: Estimate | None
    p_holm: float | None = None
    beyond: Estimate | None = None

    def reversed(self) -> "SlicePair":
        """Return the pair with its groups exchanged, so that differences change their sign."""
        return SlicePair(
            a=self.b,
            b=self.a,
            difference=None if self.difference is None else self.difference.reversed(),
            p_holm=self.p_holm,
            beyond=None if self.beyond is None else self.beyond.reversed(),
        )


@dataclass(frozen=True)
class Slice:
    """Groups on some of the images, or on some of the objects.

    Attributes:
        tag: such as ``light``, or one of :data:`SIZE`, :data:`CATEGORY` and :data:`OBJECTS`, which every data set has.
        value: of the tag.
        is_tested: whether it is a value of a tag that was asked for.
        num_images: of the slice.
        num_units: of the slice; None without units.
        num_objects: of the slice, crowds not counted.
        ap: group -> mean over seeds; None if not defined.
        ap50: likewise.
        pairs: every pair of groups, the earlier group first.
    """

    tag: str
    value: str
    is_tested: bool
    num_images: int
    num_units: int | None
    num_objects: int
    ap: Mapping[str, Estimate | None]
    ap50: Mapping[str, Estimate | None]
    pairs: tuple[SlicePair, ...]

    @property
    def name(self) -> str:
        return f"{self.tag} = {self.value}"


@dataclass(frozen=True)
class Slices:
    """All slices.

    Attributes:
        slices: the values of tags, then sizes, numbers of objects, and categories.
        largest: tag -> its value with most images, with which the others are compared.
        num_tests: for which p is corrected.
        resamples: how many.
        seed: of the resamples.
        remarks: what a reader must know of how the tags were read.
    """

    slices: tuple[Slice, ...]
    largest: Mapping[str, str]
    num_tests: int
    resamples: int
    seed: int = 0
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Selection:
    """A slice before anything is measured on it: which images it has and what is counted there.

    Attributes:
        tag: as of :class:`Slice`.
        value: likewise.
        is_tested: likewise.
        is_in: ``[N]`` which images have the value of the tag, or have objects of the slice.
        num_objects: crowds not counted.
        num_units: units of its images.
        area: the area range of its objects.
        category: the index of its category; None for all.
    """

    tag: str
    value: str
    is_tested: bool
    is_in: Bools
    num_objects: int
    num_units: int
    area: str = "all"
    category: int | None = None

    @property
    def num_images(self) -> int:
        return int(np.count_nonzero(self.is_in))


RunsOfGroups = Mapping[str, Mapping[int, Floats]]
"""Group -> training seed -> ``[1 + R, 2]`` AP and AP50 on a slice: on the images as they are, and on each resample."""


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

    With the same ``seed``, the resamples are those of the decomposition.

    Args:
        annotations_json: ground truth in COCO format.
        detections: group -> training seed -> detections in COCO's results format.
        tags: of the images.
        families: as of ``compare_readings``.
        resamples: number of resamples.
        seed: of the resamples.
        units: which images are not independent; units are then drawn in the place of images.
        on_progress: called with the number of files measured and their total.

    Raises:
        DataError: if a file or an entry is malformed.
        ComparisonError: if there is nothing to compare.
    """
    check_groups(detections)
    truth = read_ground_truth(Path(annotations_json))
    numbered = numbered_units(annotations_json, units, None)
    drawn_units = numbered or Units.single(len(truth.sizes_px))
    selections = _selections(truth, tags, drawn_units)
    draws = drawn_units.spread(image_weights(drawn_units.num_units, resamples=resamples, seed=seed))
    weights = np.vstack([unit_weights(len(truth.sizes_px)), draws])  # The first row is the images as they are.

    files = [(group, number, path) for group, seeds in detections.items() for number, path in sorted(seeds.items())]
    runs_of_selections: list[dict[str, dict[int, Floats]]] = [{group: {} for group in detections} for _ in selections]
    for num_done, (group, number, path) in enumerate(files, start=1):
        matcher = Matcher(truth, in_fair_order(truth, read_detections(Path(path), truth)))
        for runs, values in zip(runs_of_selections, _measure(matcher, selections, weights), strict=True):
            runs[group][number] = values
        if on_progress is not None:
            on_progress(num_done, len(files))

    has_units = drawn_units.has_several
    slices = [
        _described(selection, runs, families or {}, has_units=has_units, shows_units=numbered is not None)
        for selection, runs in zip(selections, runs_of_selections, strict=True)
    ]
    slices = _with_contrasts(slices, selections, runs_of_selections, families or {}, has_units=has_units)
    slices, num_tests = _corrected(slices)
    return Slices(
        slices=tuple(slices),
        largest={tag: selections[index].value for tag, index in _largest(selections).items()},
        num_tests=num_tests,
        resamples=resamples,
        seed=seed,
        remarks=tags.remarks,
    )


def _selections(truth: GroundTruth, tags: Tags, units: Units) -> list[_Selection]:
    """Return all slices of a ground truth; those without objects only if they are values of a tag."""
    image_ids = np.array(sorted(truth.sizes_px), np.int64)
    is_object = ~truth.is_crowd
    image_of_object = np.searchsorted(image_ids, truth.image_ids)
    num_objects_of_image = np.bincount(image_of_object[is_object], minlength=len(image_ids))

    def of_images(tag: str, value: str, is_in: Bools, *, is_tested: bool = False) -> _Selection:
        """Return the slice of whole images ``[N]``."""
        num_objects = int(num_objects_of_image[is_in].sum())
        num_units = len(np.unique(units.of_image[is_in]))
        return _Selection(tag, value, is_tested, is_in, num_objects, num_units)

    def of_objects(tag: str, value: str, is_chosen: Bools) -> _Selection:
        """Return the slice of some objects ``[G]``, in the images that have any."""
        has_chosen = np.zeros(len(image_ids), np.bool_)
        has_chosen[image_of_object[is_chosen]] = True
        return replace(of_images(tag, value, has_chosen), num_objects=int(np.count_nonzero(is_chosen)))

    selections: list[_Selection] = []
    for tag in tags.tags:
        value_of_image = [tag.of_image.get(image_id) for image_id in image_ids.tolist()]
        for value in tag.values:
            has_value = np.array([image_value == value for image_value in value_of_image], np.bool_)
            selections.append(of_images(tag.name, value, has_value, is_tested=True))
    for size, (smallest_px2, largest_px2) in AREA_RANGES_PX2.items():
        if size != "all":
            has_size = is_object & (truth.areas_px2 >= smallest_px2) & (truth.areas_px2 <= largest_px2)
            selections.append(replace(of_objects(SIZE, size, has_size), area=size))
    for fewest, most in OBJECT_COUNTS:
        has_count = num_objects_of_image >= fewest
        if most is not None:
            has_count &= num_objects_of_image <= most
        selections.append(of_images(OBJECTS, _count_name(fewest, most), has_count))
    category_ids = sorted(truth.categories)
    is_of_category = [is_object & (truth.category_ids == category_id) for category_id in category_ids]
    by_objects = sorted(range(len(category_ids)), key=lambda index: -np.count_nonzero(is_of_category[index]))
    for index in sorted(by_objects[:MAX_CATEGORIES]):
        selection = of_objects(CATEGORY, truth.categories[category_ids[index]], is_of_category[index])
        selections.append(replace(selection, category=index))
    return [selection for selection in selections if selection.is_tested or selection.num_objects]


def _count_name(low: int, high: int | None) -> str:
    if high is None:
        return f"{low} or more"
    return str(low) if low == high else f"{low} to {high}"


def _measure(matcher: Matcher, selections: Sequence[_Selection], weights: Weights) -> list[Floats]:
    """Measure one file on every selection.

    Args:
        matcher: of the file, on all images.
        selections: the slices.
        weights: ``[1 + R, N]`` copies of each image, the first row the images as they are.

    Returns:
        ``[1 + R, 2]`` AP and AP50 of each selection.
    """
    areas = {"all", *(selection.area for selection in selections)}
    matches = {area: matcher.matches(area) for area in areas}
    by_category = _precisions(matches["all"], weights)
    measured: list[Floats] = []
    for selection in selections:
        if selection.category is not None:
            measured.append(by_category[:, :, selection.category])
        elif selection.area != "all":
            measured.append(mean_of_numbers(_precisions(matches[selection.area], weights)))
        else:
            measured.append(mean_of_numbers(_precisions(on_images(matches["all"], selection.is_in), weights)))
    return measured


def _precisions(matches: Matches, weights: Weights) -> Floats:
    """Return ``[1 + R, 2, K]`` AP and AP50 by category, NaN for a category of which nothing is drawn."""
    by_category = np.empty((len(weights), 2, len(matches.start) - 1))
    for block in blocks_of(len(weights), None):
        by_threshold = precisions(matches, 0, len(IOU_THRESHOLDS), weights[block])
        by_category[block, _AP] = by_threshold.mean(axis=1)
        by_category[block, _AP50] = by_threshold[:, 0]
    return by_category


def _drawn(runs: Mapping[int, Floats], metric: int, num_units: int | None) -> dict[int, Drawn]:
    """Return training seed -> AP or AP50 with its draws."""
    return {number: Drawn(float(values[0, metric]), values[1:, metric], num_units) for number, values in runs.items()}


def _described(
    selection: _Selection, runs: RunsOfGroups, families: Mapping[str, str], *, has_units: bool, shows_units: bool
) -> Slice:
    """Return a slice with what was measured on it; p is not corrected yet.

    Args:
        selection: the slice.
        runs: what was measured.
        families: group -> family; equal numbers of groups of two families are not the same training seed.
        has_units: whether any unit has several images.
        shows_units: whether units were asked for.
    """
    num_drawn_units = selection.num_units if has_units else None
    has_intervals = selection.num_units >= max(FEWEST_OF_SLICE, FEWEST_IMAGES)

    def estimates(metric: int) -> dict[str, Estimate | None]:
        by_group: dict[str, Estimate | None] = {}
        for group, runs_of_group in runs.items():
            total = group_total(_drawn(runs_of_group, metric, num_drawn_units))
            estimate = _estimate(total, has_intervals=has_intervals)
            by_group[group] = None if estimate is None else estimate.of_precision()
        return by_group

    pairs: list[SlicePair] = []
    for a, b in combinations(runs, 2):
        is_one_family = families.get(a) == families.get(b)
        total = _difference(runs[a], runs[b], num_drawn_units, paired=is_one_family)
        estimate = _estimate(total, has_intervals=has_intervals)
        if estimate is None:
            pairs.append(SlicePair(a, b, None))
            continue
        is_tested = selection.is_tested and estimate.low is not None
        pairs.append(SlicePair(a, b, estimate.of_difference(), total.p if is_tested else None))
    return Slice(
        tag=selection.tag,
        value=selection.value,
        is_tested=selection.is_tested,
        num_images=selection.num_images,
        num_units=selection.num_units if shows_units else None,
        num_objects=selection.num_objects,
        ap=estimates(_AP),
        ap50=estimates(_AP50),
        pairs=tuple(pairs),
    )


def _difference(a: Mapping[int, Floats], b: Mapping[int, Floats], num_units: int | None, *, paired: bool) -> Total:
    """Return the difference of two groups in AP."""
    return difference_total(_drawn(a, _AP, num_units), _drawn(b, _AP, num_units), paired=paired)


def _estimate(total: Total, *, has_intervals: bool) -> Estimate | None:
    """Return a value with its interval, the value alone on a small slice, None if it is not defined."""
    if np.isnan(total.value):
        return None
    return total.estimate if has_intervals else Estimate(total.value)


def _largest(selections: Sequence[_Selection]) -> dict[str, int]:
    """Return tag -> index of its selection with most images; a tag of which no selection has intervals is absent."""
    largest: dict[str, int] = {}
    for index, selection in enumerate(selections):
        if not selection.is_tested or selection.num_units < FEWEST_OF_SLICE:
            continue
        if selection.tag not in largest or selection.num_images > selections[largest[selection.tag]].num_images:
            largest[selection.tag] = index
    return largest


def _with_contrasts(
    slices: Sequence[Slice],
    selections: Sequence[_Selection],
    runs_of_selections: Sequence[RunsOfGroups],
    families: Mapping[str, str],
    *,
    has_units: bool,
) -> list[Slice]:
    """Add how much each pair differs on a slice beyond its difference on the largest slice of the tag.

    Both are measured on the same draws, so what the two slices share does not widen the interval.

    Args:
        slices: without contrasts.
        selections: of each slice.
        runs_of_selections: of each slice what was measured on it.
        families: group -> family.
        has_units: whether any unit has several images.
    """
    largest = _largest(selections)
    contrasted: list[Slice] = []
    for index, (current, selection) in enumerate(zip(slices, selections, strict=True)):
        index_of_largest = largest.get(selection.tag) if selection.is_tested else None
        if index_of_largest is None or index_of_largest == index or selection.num_units < FEWEST_OF_SLICE:
            contrasted.append(current)
            continue
        runs_beyond = _runs_beyond(runs_of_selections[index], runs_of_selections[index_of_largest])
        num_units = min(selection.num_units, selections[index_of_largest].num_units) if has_units else None
        pairs: list[SlicePair] = []
        for pair in current.pairs:
            is_one_family = families.get(pair.a) == families.get(pair.b)
            total = _difference(runs_beyond[pair.a], runs_beyond[pair.b], num_units, paired=is_one_family)
            estimate = _estimate(total, has_intervals=True)
            # A difference of two differences of AP lies between -2 and 2.
            pairs.append(replace(pair, beyond=None if estimate is None else estimate.within(-2.0, 2.0)))
        contrasted.append(replace(current, pairs=tuple(pairs)))
    return contrasted


def _runs_beyond(runs: RunsOfGroups, runs_on_largest: RunsOfGroups) -> RunsOfGroups:
    """Return what was measured on a slice minus what was measured on the largest slice, run by run."""
    return {
        group: {number: values - runs_on_largest[group][number] for number, values in runs_of_group.items()}
        for group, runs_of_group in runs.items()
    }


def _corrected(slices: Sequence[Slice]) -> tuple[list[Slice], int]:
    """Correct p by Holm for all values of tags x pairs; return the slices and the number of tests."""
    tested = [pair.p_holm for current in slices for pair in current.pairs if pair.p_holm is not None]
    adjusted = iter(holm(tested))
    corrected: list[Slice] = []
    for current in slices:
        pairs = [pair if pair.p_holm is None else replace(pair, p_holm=next(adjusted)) for pair in current.pairs]
        corrected.append(replace(current, pairs=tuple(pairs)))
    return corrected, len(tested)

"""Average precision from matches, also under integer image weights: an image of weight 3 counts as three copies of it.

The value is what COCOeval gives when the copies are really there, each copy's id next to the original's.

Legend of shapes: ``N`` images, ``K`` categories, ``T`` thresholds, ``L`` = 101 recall levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordexp.detection.boxes import IOU_THRESHOLDS, RECALL_LEVELS, Floats, Ints

if TYPE_CHECKING:
    from coordexp.detection.kernels import Matches, Weights


_FEWEST_LANES = 8


@dataclass(frozen=True)
class AveragePrecision:
    """Which matches an average precision counts.

    Attributes:
        area: key of :data:`~coordexp.detection.boxes.AREA_RANGES_PX2`.
        first: index of the first IoU threshold.
        last: index after the last.
    """

    area: str
    first: int
    last: int


AVERAGE_PRECISIONS: dict[str, AveragePrecision] = {
    "AP": AveragePrecision("all", 0, 10),
    "AP50": AveragePrecision("all", 0, 1),
    "AP75": AveragePrecision("all", 5, 6),
    "AP_small": AveragePrecision("small", 0, 10),
    "AP_medium": AveragePrecision("medium", 0, 10),
    "AP_large": AveragePrecision("large", 0, 10),
}


@dataclass(frozen=True, eq=False)
class PrecisionTable:
    """What COCOeval accumulates for one area range; -1 where a category has no ground truth.

    Attributes:
        precision: ``[T, L, K]`` the best precision at each recall level or above.
        recall: ``[T, K]`` reached with all detections.
    """

    precision: Floats
    recall: Floats

    @classmethod
    def of(cls, matches: "Matches", weights: "Weights") -> "PrecisionTable":
        """Count matches, under ``[N]`` copies of each image."""
        from coordexp.detection.kernels import fill_curves  # here: numba takes half a second

        num_categories = len(matches.start) - 1
        precision = np.empty((len(IOU_THRESHOLDS), len(RECALL_LEVELS), num_categories))
        recall = np.empty((len(IOU_THRESHOLDS), num_categories))
        fill_curves(matches, weights, precision, recall)
        return cls(precision, recall)

    def average_precision(self, which: AveragePrecision, *, category: int | None = None) -> float | None:
        """Return the mean over thresholds, levels and categories, or one category; None without ground truth."""
        chosen = self.precision[which.first : which.last]
        return mean_of_defined(chosen if category is None else chosen[:, :, category])

    def average_recall(self) -> float | None:
        """Return the mean over thresholds and categories; None without ground truth."""
        return mean_of_defined(self.recall)


def tied_precision(matches: "Matches") -> float | None:
    """Return AP if all detections had one score; it does not depend on their order.

    COCO orders ties by image id and then as they come, so its AP with a constant score says where true positives
    happen to stand. With one score there is one operating point: all detections are taken, with precision P and
    recall R. COCO's interpolated precision is then P at each of the 101 recall levels up to R and 0 above, so
    AP = P x (levels up to R) / 101, averaged over thresholds and categories as ever.
    """
    thresholds = np.arange(len(IOU_THRESHOLDS), dtype=np.uint16)
    values: list[Floats] = []
    for k in range(len(matches.start) - 1):
        rows = slice(matches.start[k], matches.start[k + 1])
        num_gt = int(matches.gt_count[matches.gt_start[k] : matches.gt_start[k + 1]].sum())
        if num_gt == 0:
            continue
        hits_T, ignored_T = (
            ((bits[rows, None] >> thresholds) & np.uint16(1)).sum(axis=0, dtype=np.int64)
            for bits in (matches.hit, matches.ignored)
        )
        counted_T = rows.stop - rows.start - ignored_T
        precision_T = hits_T / (counted_T + np.spacing(1))
        levels_T = np.searchsorted(RECALL_LEVELS, hits_T / num_gt, side="right")
        values.append(precision_T * levels_T / len(RECALL_LEVELS))
    return float(np.mean(values)) if values else None


def precision_by_category(matches: "Matches", which: AveragePrecision, weights: "Weights") -> Floats:
    """Return ``[K]`` average precisions, NaN for a category without ground truth under these weights.

    Args:
        matches: of one file of detections, made in the area range of ``which``.
        which: what to count.
        weights: ``[N]`` copies of each image.
    """
    from coordexp.detection.kernels import fill_precisions

    values = np.full((which.last - which.first, len(matches.start) - 1), np.nan)
    fill_precisions(matches, which.first, weights, values)
    return values.mean(axis=0)


@dataclass(frozen=True, eq=False)
class Weightings:
    """Many weightings of the same images, laid out once for all files that are counted under them.

    Attributes:
        in_lanes: ``[N * R]`` copies of each image, those of an image beside each other; None where a byte cannot hold
            them, and where they are so few that it is faster to count one after the other.
        one_by_one: ``[R, N]`` the same, a weighting after the other.
    """

    in_lanes: NDArray[np.uint8] | None
    one_by_one: "Weights"
    _objects: "list[tuple[Matches, Ints]]" = field(default_factory=list, init=False)

    @classmethod
    def of(cls, weights_NR: NDArray[np.unsignedinteger]) -> "Weightings":
        """Lay out ``[N, R]`` copies of each image."""
        use_lanes = weights_NR.shape[1] >= _FEWEST_LANES and int(weights_NR.max(initial=0)) <= np.iinfo(np.uint8).max
        in_lanes = np.ascontiguousarray(weights_NR, np.uint8).ravel() if use_lanes else None
        return cls(in_lanes, np.ascontiguousarray(weights_NR.T, np.uint16))

    def objects(self, matches: "Matches", lanes: NDArray[np.uint8]) -> Ints:
        """Return ``[K, R]`` how many objects count in each of the lanes, counted once for files that have the same."""
        from coordexp.detection.kernels import fill_objects

        for known, found in self._objects:
            if (
                np.array_equal(matches.gt_start, known.gt_start)
                and np.array_equal(matches.gt_image, known.gt_image)
                and np.array_equal(matches.gt_count, known.gt_count)
            ):
                return found
        found = np.empty((len(matches.start) - 1, len(self.one_by_one)), np.int64)
        fill_objects(matches, lanes, found)
        self._objects[:] = [(matches, found)]
        return found


def precisions(matches: "Matches", first: int, last: int, weightings: Weightings) -> Floats:
    """Return ``[R, T, K]`` average precisions at thresholds ``first`` to ``last - 1``, NaN without ground truth."""
    from coordexp.detection.kernels import fill_lanes, fill_rest  # here: numba takes half a second

    values = np.full((len(weightings.one_by_one), last - first, len(matches.start) - 1), np.nan)
    if matches.num_images == 0:
        return values
    if weightings.in_lanes is not None:
        objects = weightings.objects(matches, weightings.in_lanes)
        fill_lanes(matches, first, weightings.in_lanes, objects, values)
    fill_rest(matches, first, weightings.one_by_one, values)
    return values


def mean_precisions(
    files: "Sequence[Matches]", which: AveragePrecision, weights_NR: NDArray[np.unsignedinteger]
) -> Floats:
    """Return ``[R, F]`` what :func:`mean_precision` returns for each file under each of many weightings.

    Args:
        files: of detections on the same images, made in the area range of ``which``.
        which: what to count.
        weights_NR: ``[N, R]`` copies of each image.
    """
    from coordexp.detection.kernels import DRAWS_AT_ONCE

    found = np.empty((weights_NR.shape[1], len(files)))
    for first in range(0, len(found), DRAWS_AT_ONCE):
        weightings = Weightings.of(weights_NR[:, first : first + DRAWS_AT_ONCE])
        for column, matches in enumerate(files):
            by_category = precisions(matches, which.first, which.last, weightings).mean(axis=1)
            found[first : first + DRAWS_AT_ONCE, column] = means_of_numbers(by_category)
    return found


def mean_precision(matches: "Matches", which: AveragePrecision, weights: "Weights") -> float:
    """Return the mean over categories that have ground truth, NaN if none has; see :func:`precision_by_category`."""
    return mean_of_numbers(precision_by_category(matches, which, weights))


def mean_of_numbers(values: Floats) -> float:
    """Return the mean of what is not NaN, NaN if nothing is left."""
    numbers = values[~np.isnan(values)]
    return float(numbers.mean()) if len(numbers) else float("nan")


def means_of_numbers(values: Floats) -> Floats:
    """Return ``[...]`` what :func:`mean_of_numbers` returns for each row of ``[..., K]``."""
    is_number = ~np.isnan(values)
    sums, counts = np.where(is_number, values, 0.0).sum(axis=-1), is_number.sum(axis=-1)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def unit_weights(num_images: int) -> "Weights":
    """Return ``[N]`` ones: the images as they are."""
    return np.ones(num_images, np.uint16)


def mean_of_defined(values: NDArray[np.float64]) -> float | None:
    """Return the mean of what COCOeval defines (-1 is undefined), added up in its order so that it rounds alike."""
    defined = values[values > -1]
    return float(np.mean(defined)) if defined.size else None

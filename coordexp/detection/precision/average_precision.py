"""Average precision from matches, as it is and under integer image weights.

The loops that count it are :mod:`coordexp.detection.precision.kernels`.

Legend of shapes: ``R`` weightings, ``N`` images, ``K`` categories, ``D`` detections, ``T`` thresholds, ``L`` = 101
recall levels.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from coordexp.cpus import usable_cpus
from coordexp.detection.boxes import IOU_THRESHOLDS, RECALL_LEVELS, Floats
from coordexp.detection.matching.matches import Matches, Weights, totals


@dataclass(frozen=True)
class AveragePrecision:
    """Which matches an average precision counts: an area range, and IoU thresholds ``first`` to ``last - 1``."""

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
    """What COCOeval accumulates for one area range; -1 for a category without ground truth.

    Attributes:
        precision: ``[T, L, K]`` the best precision at each recall level or above.
        recall: ``[T, K]`` the recall that all detections reach.
    """

    precision: Floats
    recall: Floats

    @classmethod
    def of(cls, matches: Matches, weights: Weights | None = None) -> "PrecisionTable":
        """Count matches, under ``[N]`` copies of each image; None takes each image once."""
        from coordexp.detection.precision.kernels import fill_curves  # Here: numba takes half a second.

        if weights is None:
            weights = unit_weights(matches.num_images)
        num_categories = len(matches.start) - 1
        precision = np.empty((len(IOU_THRESHOLDS), len(RECALL_LEVELS), num_categories))
        recall = np.empty((len(IOU_THRESHOLDS), num_categories))
        fill_curves(matches, weights, precision, recall)
        return cls(precision, recall)

    def average_precision(self, which: AveragePrecision, *, category: int | None = None) -> float | None:
        """Return the mean over thresholds, recall levels and categories; None without ground truth.

        Args:
            which: the thresholds. Its area range is that of the matches from which the table was counted.
            category: the index of one category; None takes all.
        """
        precision = self.precision[which.first : which.last]
        if category is not None:
            precision = precision[:, :, category]
        return mean_of_defined(precision)


def tied_precision(matches: Matches) -> float | None:
    """Return AP if all detections had one score; it does not depend on their order.

    With one score there is one operating point, of precision P and recall R. COCO's interpolated precision is then P
    at each of the 101 recall levels up to R and 0 above: AP = P x (levels up to R) / 101.
    """
    hits_TK, ignored_TK, num_K, num_gt_K = totals(matches)
    has_gt_K = num_gt_K > 0
    if not has_gt_K.any():
        return None
    precision_TK = hits_TK / (num_K - ignored_TK + np.spacing(1))
    recall_TK = hits_TK[:, has_gt_K] / num_gt_K[has_gt_K]
    levels_TK = np.searchsorted(RECALL_LEVELS, recall_TK, side="right")
    values_TK = precision_TK[:, has_gt_K] * levels_TK / len(RECALL_LEVELS)
    return float(np.mean(values_TK.T.copy()))  # Summed by category: the order decides the last digit.


def precisions(matches: Matches, first: int, last: int, weights_RN: Weights) -> Floats:
    """Return average precisions by threshold and category under image weights.

    Counted in Python threads on all cores, since the compiled loop releases the GIL. numba's own parallel loops are not
    used: they set OpenMP's number of threads for the calling thread, and torch reads it too. The forward passes of a
    run that evaluates in between would then round otherwise.

    Args:
        matches: of all images.
        first: index of the lowest threshold.
        last: index behind the highest threshold.
        weights_RN: ``[R, N]`` copies of each image, one row a weighting.

    Returns:
        ``[R, T, K]``, NaN for a category without ground truth.
    """
    from coordexp.detection.precision.kernels import fill_average_precisions  # Here: numba takes half a second.

    values_RTK = np.empty((len(weights_RN), last - first, len(matches.start) - 1))
    num_threads = max(1, min(len(weights_RN), usable_cpus()))
    weights_of_threads = np.array_split(weights_RN, num_threads)
    values_of_threads = np.array_split(values_RTK, num_threads)  # Views: each thread fills its rows in place.
    with ThreadPoolExecutor(num_threads) as pool:
        tasks = [
            pool.submit(fill_average_precisions, matches, first, weights, values)
            for weights, values in zip(weights_of_threads, values_of_threads, strict=True)
        ]
        for task in tasks:
            task.result()  # Raises what the thread raised.
    return values_RTK


def mean_precisions(matches: Matches, which: AveragePrecision, weights_RN: Weights) -> Floats:
    """Return ``[R]`` average precisions under ``[R, N]`` copies of each image, NaN if no category has ground truth."""
    return mean_of_numbers(precisions(matches, which.first, which.last, weights_RN).mean(axis=1))


def mean_of_numbers(values: Floats) -> Floats:
    """Return ``[...]`` means along the last axis of ``[..., K]``, leaving out NaN; NaN where nothing is left."""
    is_number = ~np.isnan(values)
    sums = np.where(is_number, values, 0.0).sum(axis=-1)
    counts = is_number.sum(axis=-1)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def unit_weights(num_images: int) -> Weights:
    return np.ones(num_images, np.uint16)


def mean_of_defined(values: Floats) -> float | None:
    """Return the mean of what COCOeval defines (-1 is undefined), added up in its order, to round as it does."""
    defined = values[values > -1]
    return float(np.mean(defined)) if defined.size else None

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
    """What COCOeval accumulates for one area range; -1 where a category has no ground truth.

    Attributes:
        precision: ``[T, L, K]`` the best precision at each recall level or above.
        recall: ``[T, K]`` reached with all detections.
    """

    precision: Floats
    recall: Floats

    @classmethod
    def of(cls, matches: Matches, weights: Weights | None = None) -> "PrecisionTable":
        """Count matches, under ``[N]`` copies of each image; None: the images as they are."""
        from coordexp.detection.precision.kernels import fill_curves  # here: numba takes half a second

        num_categories = len(matches.start) - 1
        precision = np.empty((len(IOU_THRESHOLDS), len(RECALL_LEVELS), num_categories))
        recall = np.empty((len(IOU_THRESHOLDS), num_categories))
        fill_curves(matches, unit_weights(matches.num_images) if weights is None else weights, precision, recall)
        return cls(precision, recall)

    def average_precision(self, which: AveragePrecision, *, category: int | None = None) -> float | None:
        """Return the mean over thresholds, levels and categories, or one category; None without ground truth."""
        chosen = self.precision[which.first : which.last]
        return mean_of_defined(chosen if category is None else chosen[:, :, category])


def tied_precision(matches: Matches) -> float | None:
    """Return AP if all detections had one score; it does not depend on their order.

    With one score there is one operating point, of precision P and recall R. COCO's interpolated precision is then P
    at each of the 101 recall levels up to R and 0 above: AP = P x (levels up to R) / 101.
    """
    hits_TK, ignored_TK, num_K, num_gt_K = totals(matches)
    there = num_gt_K > 0
    precision_TK = hits_TK / (num_K - ignored_TK + np.spacing(1))
    levels_TK = np.searchsorted(RECALL_LEVELS, hits_TK[:, there] / num_gt_K[there], side="right")
    values_TK = precision_TK[:, there] * levels_TK / len(RECALL_LEVELS)
    return float(np.mean(values_TK.T.copy())) if there.any() else None  # summed up by category


def precisions(matches: Matches, first: int, last: int, weights_RN: Weights) -> Floats:
    """Return ``[R, T, K]`` average precisions at thresholds ``first`` to ``last - 1``, NaN without ground truth.

    Counted in Python threads on all cores, since the compiled loop releases the GIL. numba's own parallel loops would
    set OpenMP's number of threads for the calling thread, and with it torch's: in a run, the forward passes behind
    them rounded otherwise.

    ``weights_RN``: copies of each image, one row a weighting.
    """
    from coordexp.detection.precision.kernels import fill_average_precisions  # here: numba takes half a second

    values = np.empty((len(weights_RN), last - first, len(matches.start) - 1))
    num = max(1, min(len(weights_RN), usable_cpus()))
    with ThreadPoolExecutor(num) as pool:
        parts = zip(np.array_split(weights_RN, num), np.array_split(values, num), strict=True)
        for done in [pool.submit(fill_average_precisions, matches, first, *part) for part in parts]:
            done.result()
    return values


def mean_precisions(matches: Matches, which: AveragePrecision, weights_RN: Weights) -> Floats:
    """Return ``[R]`` means over categories that have ground truth, NaN if none has; the same arguments otherwise."""
    return mean_of_numbers(precisions(matches, which.first, which.last, weights_RN).mean(axis=1))


def mean_of_numbers(values: Floats) -> Floats:
    """Return ``[...]`` the means of what is not NaN along the last axis of ``[..., K]``, NaN where nothing is left."""
    is_number = ~np.isnan(values)
    sums, counts = np.where(is_number, values, 0.0).sum(axis=-1), is_number.sum(axis=-1)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def unit_weights(num_images: int) -> Weights:
    return np.ones(num_images, np.uint16)


def mean_of_defined(values: Floats) -> float | None:
    """Return the mean of what COCOeval defines (-1 is undefined), added up in its order, to round as it does."""
    defined = values[values > -1]
    return float(np.mean(defined)) if defined.size else None

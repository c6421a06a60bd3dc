"""Average precision from matches under integer image weights: an image of weight 3 counts as three copies of it.

The value is what COCOeval gives when the copies are really there, each copy's id next to the original's.

Legend of shapes: ``N`` images, ``K`` categories, ``D`` detections, ``T`` thresholds.
"""

from dataclasses import dataclass

import numpy as np

from coordexp.detection.arrays import Floats, Ints
from coordexp.detection.kernels import Bits, Index, Weights, precisions
from coordexp.detection.matching import Matches


@dataclass(frozen=True)
class Metric:
    """Which matches a metric counts.

    Attributes:
        area: key of :data:`~coordexp.detection.matching.AREA_RANGES_PX`.
        first: index of the first IoU threshold.
        last: index after the last.
    """

    area: str
    first: int
    last: int


METRICS: dict[str, Metric] = {
    "AP": Metric("all", 0, 10),
    "AP50": Metric("all", 0, 1),
    "AP75": Metric("all", 5, 6),
    "AP_small": Metric("small", 0, 10),
    "AP_medium": Metric("medium", 0, 10),
    "AP_large": Metric("large", 0, 10),
}


@dataclass(frozen=True)
class Ledger:
    """Matches laid out for counting one metric.

    Attributes:
        num_images: ``N``.
        start: ``[K + 1]`` where each category's detections begin.
        image: ``[D]``.
        run: ``[D]`` at the first of several equal scores in one image their number, else 1.
        hit: ``[D]`` bits of the metric's thresholds, bit 0 its first.
        ignored: ``[D]`` the same.
        num_thresholds: ``T``.
        gt_start: ``[K + 1]``.
        gt_image: index of an image with ground truth.
        gt_count: its number.
    """

    num_images: int
    start: Ints
    image: Index
    run: Index
    hit: Bits
    ignored: Bits
    num_thresholds: int
    gt_start: Ints
    gt_image: Index
    gt_count: Index


def ledger(matches: Matches, metric: Metric) -> Ledger:
    """Lay matches out for counting a metric; they must have been made in its area range."""
    num_thresholds = metric.last - metric.first
    mask = np.uint16((1 << num_thresholds) - 1)
    return Ledger(
        num_images=matches.num_images,
        start=matches.start,
        image=matches.image,
        run=_runs(matches),
        hit=((matches.hit >> metric.first) & mask).astype(np.uint16),
        ignored=((matches.ignored >> metric.first) & mask).astype(np.uint16),
        num_thresholds=num_thresholds,
        gt_start=matches.gt_start,
        gt_image=matches.gt_image,
        gt_count=matches.gt_count,
    )


def precision_by_category(book: Ledger, weights: Weights) -> Floats:
    """Return ``[K]`` average precisions, NaN for a category without ground truth under these weights.

    Args:
        book: the ledger of one file of detections.
        weights: ``[N]`` copies of each image.
    """
    out = np.empty(len(book.start) - 1)
    precisions(
        book.start,
        book.image,
        book.run,
        book.hit,
        book.ignored,
        book.num_thresholds,
        book.gt_start,
        book.gt_image,
        book.gt_count,
        weights,
        out,
    )
    return out


def mean_precision(book: Ledger, weights: Weights) -> float:
    """Return the mean over categories that have ground truth, NaN if none has; see :func:`precision_by_category`."""
    return mean_of_defined(precision_by_category(book, weights))


def mean_of_defined(values: Floats) -> float:
    """Return the mean of what is not NaN, NaN if nothing is left."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


def unit_weights(num_images: int) -> Weights:
    """Return ``[N]`` ones: the images as they are."""
    return np.ones(num_images, np.uint16)


def _runs(matches: Matches) -> Index:
    """Copies of an image repeat its tied detections as a block: d1 d2 d1 d2, not d1 d1 d2 d2."""
    num = len(matches.image)
    run = np.ones(num, np.int32)
    if num == 0:
        return run
    new = np.ones(num, np.bool_)
    new[1:] = (matches.score[1:] != matches.score[:-1]) | (matches.image[1:] != matches.image[:-1])
    starts = matches.start[matches.start < num]
    new[starts] = True
    first = np.flatnonzero(new)
    run[first] = np.diff(np.append(first, num))
    return run

"""What average precision is counted from: detections sorted by score, with what each of them matched.

Legend of shapes: ``N`` images, ``K`` categories, ``D`` detections, ``E`` events, ``G`` rows of ground truth, ``T`` IoU
thresholds. Sets of thresholds are bits of an integer, bit 0 being the lowest.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordexp.detection.boxes import IOU_THRESHOLDS, Bools, Floats, Ints

Bits = NDArray[np.uint16]
Index = NDArray[np.int32]
Weights = NDArray[np.uint16]


class Matches(NamedTuple):
    """Detections by category and falling score, and what each of them matched.

    Equal scores stand in order of image, then of rank, as pycocotools' stable sort leaves them. A *run* is several
    detections of one category and image with one score: when an image is repeated, its copies repeat the run as a
    block. An *event* is a run that changes precision at a threshold, because a detection of it is a hit or ignored.

    It is a named tuple because numba compiles loops over those.

    Attributes:
        num_images: ``N``.
        start: ``[K + 1]`` where each category's detections begin.
        image: ``[D]`` index of the image.
        rank: ``[D]`` place within its image and category.
        score: ``[D]``.
        run: ``[D]`` at the first detection of a run how many it has, else 1.
        hit: ``[D]`` thresholds at which it matches ground truth that counts.
        ignored: ``[D]`` thresholds at which it counts neither for nor against.
        event: ``[E]`` first detections of the runs that are events: by threshold, then in order of detections.
        event_start: ``[T, K + 1]`` where the events of each threshold and category begin.
        gt_start: ``[K + 1]`` where each category's rows of ground truth begin.
        gt_image: ``[G]`` index of an image that has ground truth of the category that counts.
        gt_count: ``[G]`` how many boxes of it the image has.
    """

    num_images: int
    start: Ints
    image: Index
    rank: Index
    score: Floats
    run: Index
    hit: Bits
    ignored: Bits
    event: Index
    event_start: Ints
    gt_start: Ints
    gt_image: Index
    gt_count: Index

    @staticmethod
    def of(
        *, num_images: int, num_categories: int, category: Ints, image: Ints | Index, rank: Ints | Index,
        score: Floats, hit: Bits, ignored: Bits, gt_category: Ints, gt_image: Ints | Index,
        gt_count: Ints | Index,
    ) -> "Matches":  # fmt: skip
        """Sort detections, and find their runs and events.

        Args:
            num_images: ``N``.
            num_categories: ``K``.
            category: ``[D]`` index of the category, detections in any order, as in the columns that follow.
            image: ``[D]`` index of the image.
            rank: ``[D]`` place within its image and category.
            score: ``[D]``.
            hit: ``[D]`` thresholds at which it matches ground truth that counts.
            ignored: ``[D]`` thresholds at which it counts neither for nor against.
            gt_category: ``[G]`` ascending; within a category, rows stand by image.
            gt_image: ``[G]`` index of the image.
            gt_count: ``[G]`` how many boxes of the category the image has.
        """
        order = np.lexsort((rank, image, -score, category))  # The last key is the primary one.
        category = category[order]
        image = image[order]
        score = score[order]
        hit = hit[order]
        ignored = ignored[order]

        starts_run = np.ones(len(order), np.bool_)
        starts_run[1:] = (category[1:] != category[:-1]) | (score[1:] != score[:-1]) | (image[1:] != image[:-1])
        first_of_run = np.flatnonzero(starts_run)
        run = np.ones(len(order), np.int32)
        run[first_of_run] = np.diff(first_of_run, append=len(order))

        category_bounds = np.arange(num_categories + 1)
        start = np.searchsorted(category, category_bounds)
        bits_of_run = np.bitwise_or.reduceat(hit | ignored, first_of_run) if len(first_of_run) else hit
        events = [first_of_run[(bits_of_run >> t) & 1 == 1] for t in range(len(IOU_THRESHOLDS))]
        event_start = np.empty((len(events), num_categories + 1), np.int64)
        num_before = 0
        for t, events_of_threshold in enumerate(events):
            event_start[t] = num_before + np.searchsorted(events_of_threshold, start)
            num_before += len(events_of_threshold)

        return Matches(
            num_images=num_images,
            start=start,
            image=image.astype(np.int32),
            rank=rank[order].astype(np.int32),
            score=score,
            run=run,
            hit=hit,
            ignored=ignored,
            event=np.concatenate(events).astype(np.int32),
            event_start=event_start,
            gt_start=np.searchsorted(gt_category, category_bounds),
            gt_image=gt_image.astype(np.int32),
            gt_count=gt_count.astype(np.int32),
        )


def on_images(matches: Matches, is_chosen: Bools) -> Matches:
    """Return matches as if all images but the chosen ones were empty; images keep their indices.

    Args:
        matches: of all images.
        is_chosen: ``[N]``.
    """
    num_categories = len(matches.start) - 1
    category = np.repeat(np.arange(num_categories), np.diff(matches.start))
    gt_category = np.repeat(np.arange(num_categories), np.diff(matches.gt_start))
    rows = is_chosen[matches.image]
    gt_rows = is_chosen[matches.gt_image]
    return Matches.of(
        num_images=matches.num_images,
        num_categories=num_categories,
        category=category[rows],
        image=matches.image[rows],
        rank=matches.rank[rows],
        score=matches.score[rows],
        hit=matches.hit[rows],
        ignored=matches.ignored[rows],
        gt_category=gt_category[gt_rows],
        gt_image=matches.gt_image[gt_rows],
        gt_count=matches.gt_count[gt_rows],
    )


def totals(matches: Matches) -> tuple[Ints, Ints, Ints, Ints]:
    """Count detections and objects of each category.

    Returns:
        Hits and ignored detections, ``[T, K]`` each; all detections and all objects, ``[K]`` each.
    """
    num_K = np.diff(matches.start)
    category = np.repeat(np.arange(len(num_K)), num_K)

    def count(bits: Bits) -> Ints:
        """Return ``[T, K]`` how many detections have the bit of each threshold."""
        counts = [
            np.bincount(category[(bits >> t) & 1 == 1], minlength=len(num_K))
            for t in np.arange(len(IOU_THRESHOLDS), dtype=np.uint16)
        ]
        return np.stack(counts)

    num_gt_before = np.append(0, np.cumsum(matches.gt_count))
    num_gt_K = np.diff(num_gt_before[matches.gt_start])
    return count(matches.hit), count(matches.ignored), num_K, num_gt_K

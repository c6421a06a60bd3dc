"""What average precision is counted from: detections sorted by score, with what each of them matched.

Legend of shapes: ``N`` images, ``K`` categories, ``D`` detections, ``T`` IoU thresholds. Sets of thresholds are bits of
an integer, bit 0 being the lowest.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordexp.detection.boxes import IOU_THRESHOLDS, Bools, Floats, Ints

Bits = NDArray[np.uint16]
Index = NDArray[np.int32]
Weights = NDArray[np.uint16]


class Matches(NamedTuple):
    """What AP is counted from: detections in order of falling score per category, and what each of them matched.

    Equal scores stand in order of image, then of rank, as pycocotools' stable sort leaves them.

    Attributes:
        num_images: ``N``.
        start: ``[K + 1]`` where each category's detections begin.
        image: ``[D]`` index of the image.
        rank: ``[D]`` place within its image and category.
        score: ``[D]``.
        run: ``[D]`` at the first of several equal scores of one image their number, else 1.
        hit: ``[D]`` thresholds at which it matches ground truth that counts.
        ignored: ``[D]`` thresholds at which it counts neither for nor against.
        event: detections, or first ones of a run, with a hit or something ignored: by threshold, then as above.
        event_start: ``[T, K + 1]`` where the events of each threshold and category begin.
        gt_start: ``[K + 1]`` where each category's rows below begin.
        gt_image: index of an image with ground truth that counts.
        gt_count: its number.
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
        """Sort detections, given in any order as columns ``[D]``; ``gt_...`` are by category, then by image."""
        order = np.lexsort((rank, image, -score, category))
        category, image, score = category[order], image[order], score[order]
        hit, ignored = hit[order], ignored[order]
        is_new = np.ones(len(order), np.bool_)
        is_new[1:] = (category[1:] != category[:-1]) | (score[1:] != score[:-1]) | (image[1:] != image[:-1])
        first = np.flatnonzero(is_new)
        run = np.ones(len(order), np.int32)
        run[first] = np.diff(first, append=len(order))
        bounds = np.arange(num_categories + 1)
        start = np.searchsorted(category, bounds)
        any_of_run = np.bitwise_or.reduceat(hit | ignored, first) if len(first) else hit
        events = [first[(any_of_run >> t) & 1 == 1] for t in range(len(IOU_THRESHOLDS))]
        before = np.cumsum([0, *map(len, events)])[:-1]
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
            event_start=np.stack([at + np.searchsorted(own, start) for at, own in zip(before, events, strict=True)]),
            gt_start=np.searchsorted(gt_category, bounds),
            gt_image=gt_image.astype(np.int32),
            gt_count=gt_count.astype(np.int32),
        )


def on_images(matches: Matches, is_chosen: Bools) -> Matches:
    """Return what is in some images, ``[N]``, as if the others were empty: images keep their numbers."""
    category = np.repeat(np.arange(len(matches.start) - 1), np.diff(matches.start))
    gt_category = np.repeat(np.arange(len(matches.gt_start) - 1), np.diff(matches.gt_start))
    rows, gt_rows = is_chosen[matches.image], is_chosen[matches.gt_image]
    return Matches.of(
        num_images=matches.num_images,
        num_categories=len(matches.start) - 1,
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
    """Return of each category hits and ignored detections, ``[T, K]``, all detections and objects, ``[K]``."""
    num_K = np.diff(matches.start)
    category, thresholds = np.repeat(np.arange(len(num_K)), num_K), np.arange(len(IOU_THRESHOLDS), dtype=np.uint16)
    hits_TK, ignored_TK = (
        np.stack([np.bincount(category[(bits >> t) & 1 == 1], minlength=len(num_K)) for t in thresholds])
        for bits in (matches.hit, matches.ignored)
    )
    num_gt_K = np.diff(np.append(0, np.cumsum(matches.gt_count))[matches.gt_start])
    return hits_TK, ignored_TK, num_K, num_gt_K

"""Two groups in one order of score, and how their difference changes with each image on which they change places.

Legend of shapes: ``N`` images, ``K`` categories, ``D`` detections of both groups. Sets of thresholds are bits of an
integer, bit 0 being the lowest.
"""

import numpy as np
from numpy.typing import NDArray

from coordexp.detection.boxes import Floats, Ints
from coordexp.detection.kernels import Bits, Hits, Index, Matches, Pool, compiled


def pooled(a: Matches, b: Matches) -> Pool:
    """Put the detections of two checkpoints on the same images into one order of score."""
    num, start = len(a.image) + len(b.image), a.start + b.start
    image, side = np.empty(num, np.int32), np.empty(num, np.uint8)
    hit, ignored = np.empty(num, np.uint16), np.empty(num, np.uint16)
    first, second = ((m.start, m.image, m.rank, m.score, m.hit, m.ignored) for m in (a, b))
    _merge(first, second, image, side, hit, ignored)
    counted = np.concatenate(([0], np.cumsum(a.gt_count)))
    return Pool(
        start=start,
        image=image,
        side=side,
        hit=hit,
        ignored=ignored,
        num_gt=counted[a.gt_start[1:]] - counted[a.gt_start[:-1]],
        hits=Hits.of(start, hit, ignored),
    )


_Sorted = tuple[Ints, Index, Index, Floats, Bits, Bits]
"""Of one group: start, image, rank, score, hit and ignored, as :class:`Matches` has them."""


@compiled
def _merge(a: _Sorted, b: _Sorted, image: Index, side: NDArray[np.uint8], hit: Bits, ignored: Bits) -> None:
    """Merge two groups by score, then image, then rank."""
    at = 0
    for k in range(len(a[0]) - 1):
        i, j = a[0][k], b[0][k]
        while i < a[0][k + 1] or j < b[0][k + 1]:
            if j == b[0][k + 1]:
                of_second = False
            elif i == a[0][k + 1]:
                of_second = True
            elif a[3][i] != b[3][j]:
                of_second = a[3][i] < b[3][j]
            elif a[1][i] != b[1][j]:
                of_second = a[1][i] > b[1][j]
            else:
                of_second = a[2][i] > b[2][j]
            if of_second:
                image[at], side[at], hit[at], ignored[at] = b[1][j], 1, b[4][j], b[5][j]
                j += 1
            else:
                image[at], side[at], hit[at], ignored[at] = a[1][i], 0, a[4][i], a[5][i]
                i += 1
            at += 1


@compiled
def _best_of_hits(pool: Pool, k: int, t: int, room: Floats) -> None:
    """Set the rows of ``room`` ``[4, D]``: hits and detections up to each, best precision from a hit on, its weight.

    The weight of a place is how many hits have their best precision there. Every detection counts one half.
    """
    begin, size = pool.start[k], pool.start[k + 1] - pool.start[k]
    num_hits, num_seen = 0.0, 0.0
    for n in range(size):
        if not (pool.ignored[begin + n] >> t) & 1:
            num_seen += 0.5
            num_hits += 0.5 * ((pool.hit[begin + n] >> t) & 1)
        room[0, n], room[1, n], room[3, n] = num_hits, num_seen, 0.0
    top, where = -1.0, 0
    for n in range(size - 1, -1, -1):
        if (pool.hit[begin + n] >> t) & 1:
            here = room[0, n] / room[1, n]
            if here > top:
                top, where = here, n
            room[2, n] = top
            room[3, where] += 0.5


@compiled
def _add_slopes(pool: Pool, k: int, t: int, scale: float, room: Floats, slopes: Floats) -> None:
    """Add what the detections of one category do to the difference at one threshold."""
    begin, size = pool.start[k], pool.start[k + 1] - pool.start[k]
    _best_of_hits(pool, k, t, room)
    of_hit, of_any = 0.0, 0.0
    for n in range(size - 1, -1, -1):
        if room[3, n] > 0.0:
            of_hit += room[3, n] / room[1, n]
            of_any += room[3, n] * room[0, n] / (room[1, n] * room[1, n])
        if (pool.ignored[begin + n] >> t) & 1:
            continue
        slope = -of_any
        if (pool.hit[begin + n] >> t) & 1:
            slope += of_hit + room[2, n]
        slopes[pool.image[begin + n]] += (-slope if pool.side[begin + n] else slope) * scale


@compiled
def _fill_slopes(pool: Pool, first: int, last: int, slopes: Floats) -> None:
    """Set ``slopes`` ``[N]``; see :func:`swap_slopes`."""
    num_defined, widest = 0, 0
    for k in range(len(pool.num_gt)):
        num_defined += pool.num_gt[k] > 0
        widest = max(widest, pool.start[k + 1] - pool.start[k])
    room = np.empty((4, widest))
    slopes[:] = 0.0
    for k in range(len(pool.num_gt)):
        if pool.num_gt[k] > 0:
            for t in range(first, last):
                _add_slopes(pool, k, t, 1.0 / (pool.num_gt[k] * num_defined * (last - first)), room, slopes)


def swap_slopes(pool: Pool, first: int, last: int, num_images: int) -> Floats:
    """Return ``[N]`` by how much each image carries the difference of the groups, to first order.

    With ``x`` of 1 for an image as it is and -1 for one that is swapped, the difference is about ``slopes @ x``. It is
    the derivative where each group has half of every detection. AP is there the mean over objects of the best precision
    from a hit on: a hit adds its own, and like every detection it moves the precision at each later place that is the
    best of some hit. (COCO reads that curve at 101 levels instead of at every hit.)

    Args:
        pool: detections of both groups.
        first: index of the first threshold.
        last: index after the last.
        num_images: ``N``.
    """
    slopes = np.empty(num_images)
    _fill_slopes(pool, first, last, slopes)
    return slopes

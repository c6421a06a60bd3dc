"""Stable orders of rows by whole numbers, and what is read off them: compiled, without the interpreter's lock.

numpy's stable sort of 50,000 numbers of 64 bits compares some 800,000 pairs. Here rows are dealt out by eleven bits
at a time, the lowest first; bits that all rows share are passed over. Only kernels of this file are called, since
numba's cache does not see a change in another one.

Legend of shapes: ``G`` ground-truth boxes, ``C`` cells with detections.
"""

import numpy as np
from numpy.typing import NDArray

from coordexp.detection.boxes import Floats, Ints
from coordexp.detection.kernels import compiled

_BITS, _NUM_DIGITS = 11, 6
_MASK = np.uint64(2**_BITS - 1)

Keys = NDArray[np.uint64]


@compiled
def _dealt(keys: Keys, order: Ints) -> Ints:
    """Return rows by ascending key; those of equal keys stay in the order given."""
    counts = np.zeros((_NUM_DIGITS, 2**_BITS), np.int64)
    for row in order:
        for digit in range(_NUM_DIGITS):
            counts[digit, (keys[row] >> np.uint64(_BITS * digit)) & _MASK] += 1
    source, target = order.copy(), np.empty_like(order)
    for digit in range(_NUM_DIGITS):
        shift, places = np.uint64(_BITS * digit), counts[digit]
        if places.max() == len(order):
            continue
        before = 0
        for value in range(len(places)):
            count = places[value]
            places[value] = before
            before += count
        for row in source:
            value = (keys[row] >> shift) & _MASK
            target[places[value]] = row
            places[value] += 1
        source, target = target, source
    return source


def order_by(keys: Ints | Keys, order: Ints | None = None) -> Ints:
    """Return rows by ascending key, none of which is negative; those of equal keys stay in the order given.

    Args:
        keys: one a row.
        order: the rows to sort; None: all of them, as they stand.
    """
    rows = np.arange(len(keys)) if order is None else order
    return _dealt(np.ascontiguousarray(keys).view(np.uint64), rows)


def rising(values: Floats) -> Keys:
    """Return keys that ascend as finite values do, and are equal where those are."""
    bits = (values + 0.0).view(np.uint64)  # of a zero, whatever its sign, those of a positive one
    sign = np.uint64(1 << 63)
    return np.where(bits & sign, ~bits, bits | sign)


def counted(ascending: Ints) -> tuple[Ints, Ints]:
    """Return the distinct ones of some numbers and how often each is there."""
    begin = begins(ascending)
    return ascending[begin[:-1]], np.diff(begin)


def begins(ascending: Ints) -> Ints:
    """Return where each distinct number begins, none of which is negative, and the end."""
    return np.concatenate([np.flatnonzero(np.diff(ascending, prepend=-1)), [len(ascending)]])


@compiled
def ground_truth_of(cells: Ints, gt_cell: Ints) -> tuple[Ints, Ints]:
    """Return ``[C]`` where the ground truth of each cell begins, and where it ends.

    Args:
        cells: ``[C]`` ascending, each once.
        gt_cell: ``[G]`` of ground truth, ascending.
    """
    begin, end, g = np.empty_like(cells), np.empty_like(cells), 0
    for c in range(len(cells)):
        while g < len(gt_cell) and gt_cell[g] < cells[c]:
            g += 1
        begin[c] = g
        while g < len(gt_cell) and gt_cell[g] == cells[c]:
            g += 1
        end[c] = g
    return begin, end

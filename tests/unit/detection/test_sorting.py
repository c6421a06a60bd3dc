"""Stable orders: numpy's own, and ties as they stood."""

import numpy as np
import pytest

from coordexp.detection.boxes import Floats, Ints
from coordexp.detection.sorting import begins, counted, ground_truth_of, order_by, rising

RNG = np.random.default_rng(0)
FLOATS = {
    "scores": RNG.random(5000),
    "ties of both signs": RNG.integers(-3, 4, 5000) / 4,
    "zeros of both signs": RNG.choice([0.0, -0.0, 1e-300, -1e-300, 1.0], 300),
    "of all sizes": RNG.normal(size=3000) * 10.0 ** RNG.integers(-300, 300, 3000),
    "equal": np.full(100, 0.5),
    "one": np.array([-2.0]),
    "none": np.zeros(0),
}


@pytest.mark.parametrize("values", FLOATS.values(), ids=FLOATS.keys())
def test_floats_stand_as_numpys_stable_sort_puts_them(values: Floats) -> None:
    assert order_by(rising(values)).tolist() == np.argsort(values, kind="stable").tolist()
    assert order_by(rising(-values)).tolist() == np.argsort(-values, kind="stable").tolist()


@pytest.mark.parametrize("most", [1, 2, 2047, 2048, 2049, 2**22, 2**40, 2**63 - 1])
def test_whole_numbers_of_any_number_of_digits(most: int) -> None:
    keys = RNG.integers(0, most, 4000)
    assert order_by(keys).tolist() == np.argsort(keys, kind="stable").tolist()
    assert order_by(keys[::2]).tolist() == np.argsort(keys[::2], kind="stable").tolist()


def test_the_last_key_is_the_first_to_decide() -> None:
    first, second, third = (RNG.integers(0, 20, 3000) for _ in range(3))
    found = order_by(first, order_by(second, order_by(rising(third / 7))))
    assert found.tolist() == np.lexsort((third, second, first)).tolist()


def test_only_the_rows_given_are_sorted() -> None:
    assert order_by(np.array([5, 1, 9, 1]), np.array([3, 0, 1])).tolist() == [3, 1, 0]


def test_cells_and_their_number() -> None:
    numbers = np.array([0, 0, 2, 5, 5, 5])
    assert begins(numbers).tolist() == [0, 2, 3, 6]
    assert [found.tolist() for found in counted(numbers)] == [[0, 2, 5], [2, 1, 3]]
    nothing: Ints = np.zeros(0, np.int64)
    assert begins(nothing).tolist() == [0]
    assert [len(found) for found in counted(nothing)] == [0, 0]


def test_ground_truth_of_cells_with_detections() -> None:
    cells, gt_cell = np.array([1, 3, 4, 9]), np.array([0, 1, 1, 2, 4, 10])
    begin, end = ground_truth_of(cells, gt_cell)
    assert begin.tolist() == np.searchsorted(gt_cell, cells, side="left").tolist()
    assert end.tolist() == np.searchsorted(gt_cell, cells, side="right").tolist()

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordexp.detection.average_precision import METRICS, ledger, mean_precision, unit_weights
from coordexp.detection.coco_files import Detection, GroundTruth
from coordexp.statistics import permutation
from coordexp.statistics.permutation import holm, swap_test
from tests.unit.statistics.statistics_support import our_matches, random_case

AP = METRICS["AP"]


def two_groups(number: int) -> tuple[GroundTruth, list[Detection], list[Detection]]:
    """One case's detections dealt out to two groups, so that both find some objects."""
    rng = np.random.default_rng([number, 9])
    while True:
        truth, found = random_case(rng)
        if any(not box.is_crowd for box in truth.boxes):
            side = rng.random(len(found)) < 0.5
            return truth, *([dt for dt, mine in zip(found, side == s, strict=True) if mine] for s in (True, False))


def ap(truth: GroundTruth, found: list[Detection]) -> float:
    return mean_precision(ledger(our_matches(truth, found), AP), unit_weights(len(truth.sizes_px)))


@pytest.mark.parametrize("number", range(25))
def test_swapping_equals_evaluating_swapped_files(number: int) -> None:
    truth, a, b = two_groups(number)
    images = sorted(truth.sizes_px)
    swapped = np.random.default_rng(number).integers(0, 2, len(images)).astype(np.uint8)
    flag = dict(zip(images, swapped.tolist(), strict=True))
    after_a = [dt for dt in a if not flag[dt.image_id]] + [dt for dt in b if flag[dt.image_id]]
    after_b = [dt for dt in b if not flag[dt.image_id]] + [dt for dt in a if flag[dt.image_id]]
    pool = permutation._pool(our_matches(truth, a), our_matches(truth, b), AP)
    expected = ap(truth, after_a) - ap(truth, after_b)
    assert permutation._difference([pool], swapped) == pytest.approx(expected, abs=1e-12)


def test_p_is_that_of_all_swaps_listed() -> None:
    """Six images: all 64 swaps can be listed, and the drawn p comes near their share."""
    cases = (two_groups(number) for number in range(100))
    truth, a, b = next(case for case in cases if len(case[0].sizes_px) == 6 and len(case[1]) > 20)
    pool = permutation._pool(our_matches(truth, a), our_matches(truth, b), AP)
    swaps = (np.array(flags, np.uint8) for flags in product((0, 1), repeat=6))
    every = np.array([abs(permutation._difference([pool], flags)) for flags in swaps])
    assert len(set(np.round(every, 9))) > 10
    share = float(np.mean(every >= every[0] - 1e-12))
    p = swap_test([(our_matches(truth, a), our_matches(truth, b))], AP, resamples=4000, seed=1)
    assert p == pytest.approx(share, abs=0.03)


def test_identical_groups_have_p_one_and_the_order_does_not_matter() -> None:
    truth, a, b = two_groups(3)
    first, second = our_matches(truth, a), our_matches(truth, b)
    assert swap_test([(first, first)], AP, resamples=50, seed=0) == 1.0
    forth, back = (swap_test([pair], AP, resamples=200, seed=0) for pair in ((first, second), (second, first)))
    assert forth == back


def test_p_does_not_depend_on_threads() -> None:
    truth, a, b = two_groups(2)
    pair = (our_matches(truth, a), our_matches(truth, b))
    assert len({swap_test([pair, pair], AP, resamples=203, seed=5, threads=n) for n in (1, 2, 7)}) == 1


def test_draws_end_early_only_where_nothing_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    original = permutation._difference

    def counted(pools, swapped) -> float:
        drawn.append(1)
        return original(pools, swapped)

    monkeypatch.setattr(permutation, "_difference", counted)

    def p_value(number: int) -> tuple[float, int]:
        truth, a, b = two_groups(number)
        drawn.clear()
        told: list[tuple[int, int]] = []
        pair = (our_matches(truth, a), our_matches(truth, b))
        p = swap_test([pair], AP, resamples=2000, seed=5, on_progress=lambda done, of: told.append((done, of)))
        assert told[-1] == (2000, 2000)
        return p, len(drawn) - 1  # one is the observed difference

    found = [p_value(number) for number in range(12)]
    assert {num for _, num in found} > {250, 2000}
    assert all(num == 2000 for p, num in found if p < 0.05)
    assert all(p > 0.04 for p, num in found if num < 2000)
    # The draws are the same ones whether they end early or not, in rounds or at once.
    monkeypatch.setattr(permutation, "_ENOUGH_AS_FAR", 10**9)
    whole = [p_value(number) for number in range(12)]
    assert all(p == pytest.approx(early, abs=0.1) for (p, _), (early, _) in zip(whole, found, strict=True))
    monkeypatch.setattr(permutation, "_ROUND", 10**9)
    assert [p_value(number) for number in range(12)] == whole


def test_holm_by_hand() -> None:
    # Sorted .01 .02 .04: times 3, 2, 1 = .03 .04 .04; the order of the input is kept.
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_lies_between_plain_and_bonferroni(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(q >= p for p, q in zip(p_values, adjusted, strict=True))
    assert min(adjusted) == min(1.0, len(p_values) * min(p_values))
    assert max(adjusted) <= min(1.0, len(p_values) * max(p_values))
    in_order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert [adjusted[i] for i in in_order] == sorted(adjusted)

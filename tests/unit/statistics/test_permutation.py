from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordexp.detection.matching.matches import Matches
from coordexp.detection.precision.average_precision import AVERAGE_PRECISIONS, PrecisionTable, unit_weights
from coordexp.statistics import permutation
from coordexp.statistics.permutation import holm, pooled, swap_slopes, swap_test, swapped_differences
from coordexp.statistics.resampling import swapped_images
from tests.support.detections import SIZE, DtRow, GtRow, Scene, matches_of, random_case

AP = AVERAGE_PRECISIONS["AP"]


def two_groups(number: int) -> tuple[Scene, list[DtRow], list[DtRow]]:
    """One case's detections dealt out to two groups, so that both find some objects."""
    rng = np.random.default_rng([number, 9])
    while True:
        truth, found = random_case(rng)
        if any(not box.is_crowd for box in truth.boxes):
            side = rng.random(len(found)) < 0.5
            return truth, *([dt for dt, mine in zip(found, side == s, strict=True) if mine] for s in (True, False))


def ap(truth: Scene, found: list[DtRow]) -> float:
    """Count as COCOeval accumulates, by other loops than those that swap."""
    value = PrecisionTable.of(matches_of(truth, found), unit_weights(len(truth.sizes_px))).average_precision(AP)
    assert value is not None
    return value


def difference_of_files(truth: Scene, a: list[DtRow], b: list[DtRow], swapped: np.ndarray) -> float:
    """Swap the detections themselves and evaluate both files again."""
    flag = dict(zip(sorted(truth.sizes_px), swapped.tolist(), strict=True))
    after_a = [dt for dt in a if not flag[dt.image_id]] + [dt for dt in b if flag[dt.image_id]]
    after_b = [dt for dt in b if not flag[dt.image_id]] + [dt for dt in a if flag[dt.image_id]]
    return ap(truth, after_a) - ap(truth, after_b)


def swapped_difference(pair: tuple[Matches, Matches], swapped: np.ndarray) -> float:
    return float(swapped_differences([pooled(*pair)], AP, swapped[None])[0])


def p_of(pairs: list[tuple[Matches, Matches]], *, resamples: int, seed: int) -> float:
    return swap_test(pairs, AP, swapped_images(pairs[0][0].num_images, resamples=resamples, seed=seed))


@pytest.mark.parametrize("number", range(8))
def test_swapping_equals_evaluating_swapped_files(number: int) -> None:
    truth, a, b = two_groups(number)
    swapped = np.random.default_rng(number).integers(0, 2, len(truth.sizes_px)).astype(np.uint8)
    found = swapped_difference((matches_of(truth, a), matches_of(truth, b)), swapped)
    assert found == pytest.approx(difference_of_files(truth, a, b, swapped), abs=1e-12)


def test_p_is_that_of_all_swaps_listed() -> None:
    """Six images: all 64 swaps can be listed, and the drawn p comes near their share."""
    cases = (two_groups(number) for number in range(100))
    truth, a, b = next(case for case in cases if len(case[0].sizes_px) == 6 and len(case[1]) > 20)
    swaps = (np.array(flags, np.uint8) for flags in product((0, 1), repeat=6))
    every = np.array([abs(difference_of_files(truth, a, b, flags)) for flags in swaps])
    assert len(set(np.round(every, 9))) > 10
    share = float(np.mean(every >= every[0] - 1e-12))
    p = p_of([(matches_of(truth, a), matches_of(truth, b))], resamples=4000, seed=1)
    assert p == pytest.approx(share, abs=0.03)


def test_identical_groups_have_p_one_and_the_order_does_not_matter() -> None:
    truth, a, b = two_groups(3)
    first, second = matches_of(truth, a), matches_of(truth, b)
    assert p_of([(first, first)], resamples=50, seed=0) == 1.0
    forth, back = (p_of([pair], resamples=200, seed=0) for pair in ((first, second), (second, first)))
    assert forth == back


def test_draws_end_early_only_where_nothing_differs() -> None:
    """All 2000 draws are listed, and the rule applied by hand: rounds of 250, until 100 are as far as the observed."""
    early = 0
    for number in range(12):
        truth, a, b = two_groups(number)
        pair = matches_of(truth, a), matches_of(truth, b)
        reported: list[int] = []
        draws = swapped_images(len(truth.sizes_px), resamples=2000, seed=5)
        p = swap_test([pair], AP, draws, on_progress=lambda done, of, reported=reported: reported.append(done))
        assert reported[-1] == 2000
        observed = abs(swapped_difference(pair, np.zeros_like(draws[0])))
        as_far = np.abs(swapped_differences([pooled(*pair)], AP, draws)) >= observed - 1e-12
        end = next((n for n in range(250, 2000, 250) if as_far[:n].sum() >= 100), 2000)
        assert p == (1 + as_far[:end].sum()) / (1 + end)
        assert p == pytest.approx((1 + as_far.sum()) / 2001, abs=0.1)
        assert p > 0.04 or end == 2000
        early += end < 2000
    assert 0 < early < 12


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


def many_images(number: int) -> tuple[Scene, tuple[Matches, Matches]]:
    """400 images with crowds among their objects, and two groups that find most of them, one a little better."""
    rng = np.random.default_rng([number, 7])
    boxes = [
        GtRow(image_id, int(rng.integers(3)), (*rng.uniform(0, 50, 2), *rng.uniform(20, 50, 2)), 900.0, n == 40)
        for n, image_id in enumerate(np.repeat(np.arange(400), 3).tolist())
    ]
    truth = Scene(dict.fromkeys(range(400), SIZE), dict.fromkeys(range(3), "name"), boxes)

    def found(off: float) -> list[DtRow]:
        objects = [
            DtRow(box.image_id, box.category_id, tuple(np.array(box.box) + rng.normal(0, off, 4)), rng.random())
            for box in boxes
            if rng.random() < 0.8
        ]
        false = [objects[n]._replace(image_id=int(rng.integers(400))) for n in range(0, len(objects), 4)]
        return [*objects, *(row._replace(score=0.9 * rng.random()) for row in false)]

    return truth, (matches_of(truth, found(2.0)), matches_of(truth, found(2.0 + 0.03 * number)))


@pytest.mark.parametrize("number", range(2))
def test_what_is_judged_by_the_sum_over_images_is_judged_as_by_counting(number: int) -> None:
    truth, pair = many_images(number)
    draws, pool = swapped_images(len(truth.sizes_px), resamples=1000, seed=2), pooled(*pair)
    counted = swapped_differences([pool], AP, draws)
    assert np.corrcoef(draws @ swap_slopes(pool, AP), counted)[0, 1] < -0.99
    observed = abs(swapped_difference(pair, np.zeros_like(draws[0])))
    as_far = np.abs(counted) >= observed - 1e-12
    end = next((n for n in range(250, 1000, 250) if as_far[:n].sum() >= 100), 1000)
    assert swap_test([pair], AP, draws) == (1 + as_far[:end].sum()) / (1 + end)


def test_few_draws_are_counted_where_groups_clearly_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    count = permutation.swapped_differences
    monkeypatch.setattr(permutation, "swapped_differences", lambda *x: (counted.append(len(x[2])), count(*x))[1])
    _, pair = many_images(100)
    assert p_of([pair], resamples=2000, seed=2) == 1 / 2001
    assert sum(counted) < 100

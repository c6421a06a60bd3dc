import math

import numpy as np
import pytest

from coordexp.errors import ComparisonError
from coordexp.statistics.intervals import Total, degrees_of_freedom
from coordexp.statistics.power import Further, detectable, further, planned_detectable
from coordexp.statistics.results import Estimate, PairResult


def test_one_seed_by_hand() -> None:
    assert detectable(0.01, None, 1) == pytest.approx(1.05 * (1.959964 + 0.841621) * 0.01, abs=1e-7)


def test_many_seeds_are_as_good_as_known_and_the_unit_does_not_matter() -> None:
    assert detectable(0.3, 0.4, 300) == pytest.approx(1.05 * (1.959964 + 0.841621) * 0.5, rel=0.01)
    assert detectable(1.0, 0.7, 3) == pytest.approx(1000 * detectable(0.001, 0.0007, 3))
    assert detectable(0.0, 0.0, 3) == 0.0


@pytest.mark.parametrize(("num_seeds", "seeds"), [(2, 0.5), (3, 0.2), (3, 2.0), (5, 6.0)])
def test_what_is_stated_is_found_four_times_in_five(num_seeds: int, seeds: float) -> None:
    """With what is stated on average planted; images vary by 1, ``seeds`` is the variance between them."""
    rng = np.random.default_rng(0)

    def experiment(shift: float) -> Total:
        values = shift + rng.normal(0, 1) + rng.normal(0, math.sqrt(seeds), num_seeds)
        shown = float(values.var(ddof=1)) / num_seeds
        return Total(float(values.mean()), 1.0, math.sqrt(shown), degrees_of_freedom(1.0, [shown], [num_seeds]))

    stated = np.mean([detectable(1.0, experiment(0.0).seed_std, num_seeds) for _ in range(60)])
    assert 0.76 <= np.mean([experiment(float(stated)).p < 0.05 for _ in range(400)]) <= 0.96


def test_plans_get_better_with_images_and_seeds() -> None:
    assert planned_detectable(1000, 1) > planned_detectable(5000, 1)
    assert planned_detectable(5000, 2) > planned_detectable(5000, 3) > planned_detectable(5000, 10)
    assert 0.002 < planned_detectable(5000, 1) < 0.02
    for images, seeds in ((0, 1), (10, 0)):
        with pytest.raises(ComparisonError, match=r"\b0\b"):
            planned_detectable(images, seeds)


def pair_of(*, image_std: float, seed_std: float | None, own_std: float | None, num_seeds: int) -> PairResult:
    return PairResult(
        a="A",
        b="B",
        difference=Estimate(0.01),
        p_swap=1.0,
        p_holm=1.0,
        image_std=image_std,
        seed_std=seed_std,
        detectable=detectable(image_std, seed_std, num_seeds) or None,
        num_seeds=num_seeds,
        own_std=own_std,
    )


def test_twice_the_images_of_one_seed_is_the_root_of_two() -> None:
    one = pair_of(image_std=0.01, seed_std=None, own_std=None, num_seeds=1)
    assert further(one, None).more_seeds is None, "nothing is known of seeds"
    assert further(one, None).more_sample == pytest.approx(one.detectable / np.sqrt(2))
    by_unit = further(one, 20)
    assert by_unit.more_sample == pytest.approx(detectable(0.01 / np.sqrt(2), None, 1, 40))


def test_more_seeds_divide_what_seeds_do_and_more_images_do_not_help_the_luck_of_training() -> None:
    luck = pair_of(image_std=0.0, seed_std=0.01, own_std=0.0, num_seeds=3)
    assert further(luck, None).more_sample == pytest.approx(luck.detectable)
    assert further(luck, None).more_seeds < luck.detectable * np.sqrt(3 / 5), "and t is another with five"
    own = pair_of(image_std=0.0, seed_std=0.01, own_std=1.0, num_seeds=3)
    assert further(own, None).more_sample == pytest.approx(own.detectable / np.sqrt(2))
    images = pair_of(image_std=0.01, seed_std=1e-6, own_std=0.0, num_seeds=3)
    assert further(images, None).more_seeds == pytest.approx(images.detectable, rel=1e-3)
    assert further(images, None).more_sample == pytest.approx(images.detectable / np.sqrt(2), rel=1e-3)


def test_a_pair_without_variance_says_nothing() -> None:
    assert further(pair_of(image_std=0.0, seed_std=None, own_std=None, num_seeds=1), None) == Further(None, None)

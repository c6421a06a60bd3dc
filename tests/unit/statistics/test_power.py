import math

import numpy as np
import pytest

from coordexp.errors import ComparisonError
from coordexp.statistics.power import detectable, planned_detectable
from coordexp.statistics.seeds import Part, total


def test_one_seed_by_hand() -> None:
    assert detectable(0.01, None, 1) == pytest.approx(1.05 * (1.959964 + 0.841621) * 0.01, abs=1e-7)


def test_many_seeds_are_as_good_as_known() -> None:
    """With 300 seeds their variance is known: the normal formula, on the image part and twice what both hold."""
    assert detectable(0.3, 0.4, 300) == pytest.approx(1.05 * (1.959964 + 0.841621) * 0.5, rel=0.01)
    mixed = detectable(0.5, 0.5, 300, interaction_std=0.5)
    assert mixed == pytest.approx(1.05 * (1.959964 * math.sqrt(0.75) + 0.841621 * 0.5), rel=0.01)


def test_the_unit_does_not_matter() -> None:
    assert detectable(1.0, 0.7, 3, interaction_std=0.5) == pytest.approx(
        1000 * detectable(0.001, 0.0007, 3, interaction_std=0.0005)
    )
    assert detectable(0.0, 0.0, 3) == 0.0
    assert detectable(0.0, 0.0, 3, interaction_std=0.0) == 0.0


@pytest.mark.parametrize(
    ("num_seeds", "interaction", "seed"),
    [(2, 0.0, 0.5), (3, 0.0, 0.0), (3, 0.0, 2.0), (3, 6.0, 0.0), (3, 6.0, 2.0), (4, 2.0, 0.5), (5, 6.0, 0.0)],
)
def test_what_is_stated_is_found_four_times_in_five(num_seeds: int, interaction: float, seed: float) -> None:
    """The two-level rule itself, with what is stated on average planted; images vary by 1."""
    rng = np.random.default_rng(0)

    def experiment(shift: float, index: int):
        values = shift + rng.normal(0, 1) + rng.normal(0, math.sqrt(interaction + seed), num_seeds)
        mixed = math.sqrt(interaction) * rng.normal(0, 1, (250, num_seeds))
        draws = values + rng.normal(0, 1, (250, 1)) + mixed
        return total([Part(values=values, draws=draws)], seed=index)

    stated = [
        detectable(found.image_std, found.seed_std, num_seeds, interaction_std=found.interaction_std)
        for found in (experiment(0.0, index) for index in range(150))
    ]
    found = [experiment(float(np.mean(stated)), index).p < 0.05 for index in range(300)]
    assert 0.74 <= np.mean(found) <= 0.96


def test_plans_get_better_with_images_and_seeds() -> None:
    assert planned_detectable(1000, 1) > planned_detectable(5000, 1)
    assert planned_detectable(5000, 2) > planned_detectable(5000, 3) > planned_detectable(5000, 10)
    assert 0.002 < planned_detectable(5000, 1) < 0.02


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: planned_detectable(0, 1), "at least one image"),
        (lambda: planned_detectable(10, 0), "at least one seed"),
        (lambda: detectable(-1.0, None, 1), "image_std"),
        (lambda: detectable(math.nan, None, 1), "image_std"),
        (lambda: detectable(1.0, 1.0, 1), "two seeds"),
        (lambda: detectable(1.0, 1.0, 3, interaction_std=-0.1), "interaction_std"),
    ],
)
def test_plans_that_make_no_sense(call, words: str) -> None:
    with pytest.raises(ComparisonError, match=words):
        call()

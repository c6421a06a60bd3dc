import math

import numpy as np
import pytest

from coordexp.statistics.bootstrap import Drawn
from coordexp.statistics.intervals import student_quantile
from coordexp.statistics.resampling import image_weights, swapped_images
from coordexp.statistics.seeds import Part, difference_parts, group_part, total, two_level


def world(rng, *, num_seeds: int, image: float, interaction: float, seed: float, resamples: int = 400) -> Part:
    """A true difference of 0: images shift all seeds alike and each by itself, seeds differ."""
    values = rng.normal(0, image) + rng.normal(0, math.hypot(interaction, seed), num_seeds)
    draws = rng.normal(0, image, resamples)[:, None] + rng.normal(0, interaction, (resamples, num_seeds))
    return Part(values=values, draws=values + draws)


def test_one_seed_is_the_image_bootstrap() -> None:
    part = world(np.random.default_rng(0), num_seeds=1, image=1, interaction=0, seed=5)
    found = total([part], seed=0)
    np.testing.assert_array_equal(found.draws, part.draws[:, 0])
    assert found.seed_std is None
    assert found.image_std == pytest.approx(part.draws.std(ddof=1))


def test_components_are_shown_apart() -> None:
    part = world(np.random.default_rng(1), num_seeds=4, image=1, interaction=0.1, seed=2)
    found = total([part], seed=0)
    assert found.seed_std == pytest.approx(part.values.std(ddof=1) / 2)
    assert found.image_std == pytest.approx(part.draws.mean(axis=1).std(ddof=1))


def test_what_each_seed_does_on_images_is_shown_and_no_luck_of_seeds() -> None:
    """Three seeds that differ by their own detections alone have the factor of what is known; by luck, a larger one."""
    rng = np.random.default_rng(4)
    draws = rng.normal(0, 0.5, (4000, 1)) + rng.normal(0, 1, (4000, 3))
    own = total([Part(values=np.array([-0.6, 0.0, 0.6]), draws=draws)], seed=0)
    assert own.interaction_std == pytest.approx(1 / math.sqrt(3), rel=0.03)
    assert own.image_std == pytest.approx(math.sqrt(0.25 + 1 / 3), rel=0.03)
    assert own.seed_std is not None
    share = own.seed_std**2 / (own.seed_std**2 + own.image_std**2)
    assert own.stretch == pytest.approx(student_quantile(0.975, 2 / share**2) / 1.959964)
    luck = total(
        [Part(values=np.array([-0.6, 0.0, 0.6]), draws=draws.mean(axis=1, keepdims=True).repeat(3, 1))], seed=0
    )
    assert luck.interaction_std == pytest.approx(0.0, abs=1e-9)
    assert luck.stretch > 1.1 * own.stretch
    assert total([Part(values=np.array([0.1]), draws=draws[:, :1])], seed=0).interaction_std == 0.0


def test_spread_of_the_draws_is_that_of_the_mean() -> None:
    """Images fixed: the spread over drawn seeds is s / sqrt(S), which a plain bootstrap misses by sqrt((S-1)/S)."""
    values = np.array([0.0, 1.0, 5.0])
    drawn = two_level(np.tile(values, (20_000, 1)), seed=3)
    assert drawn.std() == pytest.approx(values.std(ddof=1) / math.sqrt(3), rel=0.02)


@pytest.mark.parametrize(
    ("num_seeds", "parts"), [(2, (0.01, 0.01, 1)), (3, (1, 1, 1)), (3, (0.01, 0.01, 1)), (5, (0.1, 0.1, 1))]
)
def test_intervals_with_few_seeds_cover(num_seeds: int, parts: tuple[float, float, float]) -> None:
    """A plain two-level percentile interval covers 52 % (2 seeds) to 84 % (5) where seeds dominate."""
    rng = np.random.default_rng(7)
    image, interaction, seed = parts
    covered = plain = 0
    for i in range(200):
        part = world(rng, num_seeds=num_seeds, image=image, interaction=interaction, seed=seed)
        found = total([part], seed=i).estimate
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0 <= found.high
        picks = rng.integers(0, num_seeds, part.draws.shape)
        low, high = np.percentile(np.take_along_axis(part.draws, picks, 1).mean(axis=1), [2.5, 97.5])
        plain += low <= 0 <= high
    assert covered >= 0.90 * 200
    if seed > 0.5 and image < 0.5:
        assert plain < 0.90 * 200  # negative control


def test_seeds_in_common_are_paired() -> None:
    """What a seed does to both groups alike is no part of their difference."""
    rng = np.random.default_rng(2)
    luck = rng.normal(0, 10, 4)
    a = {s: Drawn(luck[s] + 1.0, luck[s] + 1 + rng.normal(0, 0.1, 300)) for s in range(4)}
    b = {s: Drawn(luck[s], luck[s] + rng.normal(0, 0.1, 300)) for s in range(4)}
    paired = total(difference_parts(a, b), seed=0)
    assert paired.value == pytest.approx(1.0)
    assert paired.seed_std == pytest.approx(0.0, abs=1e-9)
    apart = total(difference_parts(a, {s + 10: run for s, run in b.items()}), seed=0)
    assert apart.seed_std is not None
    assert apart.seed_std > 5
    some = difference_parts(a, {s: b[s] for s in (1, 3)})
    assert [len(part.values) for part in some] == [2]
    assert group_part(a).draws.shape == (300, 4)


def test_draws_are_numbered() -> None:
    weights = image_weights(1000, resamples=8, seed=4)
    assert (weights.sum(axis=1) == 1000).all()
    assert 0.55 < np.count_nonzero(weights[7]) / 1000 < 0.70  # 63 %: with multiplicity, not a shuffled subset
    np.testing.assert_array_equal(weights, image_weights(1000, resamples=9, seed=4)[:8])
    assert not np.array_equal(weights[6], weights[7])
    assert not np.array_equal(weights, image_weights(1000, resamples=8, seed=5))
    assert 0.4 < swapped_images(1000, resamples=1, seed=0).mean() < 0.6

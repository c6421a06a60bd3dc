"""A subset looks like the whole in number, size and category of objects; more than chance would have it."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from coordexp.data.sample import Sample
from coordexp.data.splits.stratify import stratified_subset
from tests.unit.data.sample_support import pairs_of, things


def made(seed: int, *, num: int = 2000) -> list[Sample]:
    """Images like COCO's: few or many objects, all large or all small, of one category mostly, rare categories."""
    rng = np.random.default_rng(seed)
    popularity = 1 / np.arange(1, 41)
    popularity /= popularity.sum()
    samples = []
    for at in range(num):
        scale, main = rng.lognormal(-2, 0.8), rng.choice(40, p=popularity)
        objects = []
        for _ in range(rng.geometric(0.15) - 1):
            w, h = np.minimum(0.9, scale * rng.lognormal(0, 0.5, 2))
            category = main if rng.random() < 0.6 else rng.choice(40, p=popularity)
            objects.append((f"thing {category}", (0.0, 0.0, float(w), float(h))))
        samples.append(Sample(Path("a.jpg"), 640, 480, at * 7 + 3, things(*objects)))
    return samples


def apart(samples: list[Sample], chosen: list[int]) -> tuple[float, float, float]:
    """Distances of part and whole: mean number of objects, shares of sizes, shares of categories."""

    def shares(indices, key) -> Counter:
        found = Counter(key(samples[i], *pair) for i in indices for pair in pairs_of(samples[i].objects))
        return Counter({name: count / found.total() for name, count in found.items()})

    def size(sample: Sample, desc: str, box) -> str:
        area = box[2] * box[3] * sample.width * sample.height
        return "small" if area < 32**2 else "medium" if area < 96**2 else "large"

    everyone = range(len(samples))
    distances = []
    for key in (size, lambda sample, desc, box: desc):
        part, whole = shares(chosen, key), shares(everyone, key)
        distances.append(sum(abs(part[name] - whole[name]) for name in whole) / 2)
    mean = np.mean([len(samples[i].objects) for i in chosen]) / np.mean([len(s.objects) for s in samples])
    return abs(float(mean) - 1), distances[0], distances[1]


@pytest.mark.parametrize("seed", range(3))
def test_it_is_closer_to_the_whole_than_chance(seed: int) -> None:
    samples = made(seed)
    chosen = stratified_subset(samples, 150)
    at_random = [apart(samples, random.Random(k).sample(range(len(samples)), 150)) for k in range(30)]
    number, size, category = apart(samples, chosen)
    assert number < 0.005 < np.mean([a for a, _, _ in at_random])
    assert size < np.quantile([b for _, b, _ in at_random], 0.3)
    assert category < np.quantile([c for _, _, c in at_random], 0.3)


def test_the_order_of_the_file_is_nothing_to_it() -> None:
    samples = made(0, num=300)
    ids = {samples[i].image_id for i in stratified_subset(samples, 40)}
    for seed in range(3):
        shuffled = random.Random(seed).sample(samples, len(samples))
        assert {shuffled[i].image_id for i in stratified_subset(shuffled, 40)} == ids
    assert len(ids) == 40


def test_the_choice_is_pinned() -> None:
    """It must not move between versions of Python, NumPy or this package: curves of two runs would not compare."""
    bare = [Sample(Path("a.jpg"), 10, 10, k, things(*[("cat", (0, 0, 1, 1))] * (k % 3))) for k in range(60)]
    assert stratified_subset(bare, 6) == [10, 11, 17, 34, 36, 48]


def test_edges() -> None:
    empty = [Sample(Path("a.jpg"), 10, 10, k, things()) for k in range(9)]
    assert len(stratified_subset(empty, 4)) == 4
    assert stratified_subset(empty, 0) == stratified_subset([], 3) == []
    assert stratified_subset(empty, 9) == list(range(9))

"""Length buckets: a permutation, alike lengths in a batch, one order for every group."""

import numpy as np
import pytest
from torch.utils.data import DataLoader

from coordexp.data.batches.sampler import LengthBucketSampler


def coco_like_lengths(num=5000):
    """COCO at Qwen3-VL's 32 px tokens: about 300 image tokens, and 8 to 9 tokens for each of ~7 objects."""
    rng = np.random.default_rng(0)
    side = rng.choice(
        [(640, 480), (640, 427), (480, 640), (500, 375), (640, 640)], size=num, p=[0.4, 0.3, 0.2, 0.05, 0.05]
    )
    image = (side[:, 0] // 32) * (side[:, 1] // 32)
    return (40 + image + 9 * rng.geometric(1 / 7.3, size=num).clip(0, 30)).tolist()


def fill(lengths, order, batch_size):
    blocks = [[lengths[i] for i in order[at : at + batch_size]] for at in range(0, len(order), batch_size)]
    return sum(map(sum, blocks)) / sum(len(block) * max(block) for block in blocks)


@pytest.mark.parametrize("batch_size", [8, 16, 64])
def test_batches_are_full(batch_size):
    lengths = coco_like_lengths()
    order = list(LengthBucketSampler(lengths, batch_size=batch_size, seed=0))
    plain = list(LengthBucketSampler(lengths, batch_size=batch_size, seed=0, buckets=False))
    assert fill(lengths, order, batch_size) >= 0.97
    assert fill(lengths, plain, batch_size) < 0.85


@pytest.mark.parametrize("buckets", [True, False])
@pytest.mark.parametrize(("num", "batch_size"), [(0, 4), (3, 4), (4, 4), (5, 4), (999, 16), (1000, 1), (7, 100)])
def test_every_index_comes_once(buckets, num, batch_size):
    lengths = [(7 * i) % 31 for i in range(num)]
    sampler = LengthBucketSampler(lengths, batch_size=batch_size, seed=1, buckets=buckets)
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        assert sorted(sampler) == list(range(num))
    assert len(sampler) == num


def test_blocks_are_runs_of_sorted_lengths():
    lengths = np.random.default_rng(3).permutation(400).tolist()  # all different; 400 = one stretch of 50 batches of 8
    order = list(LengthBucketSampler(lengths, batch_size=8, seed=0))
    found = sorted(tuple(lengths[i] for i in order[at : at + 8]) for at in range(0, 400, 8))
    assert found == [tuple(range(at, at + 8)) for at in range(0, 400, 8)]
    first = [lengths[i] for i in order[::8]]
    assert first != sorted(first)  # short and long batches alternate


def test_the_order_is_that_of_seed_and_epoch():
    lengths = coco_like_lengths(300)

    def order(seed, epoch):
        sampler = LengthBucketSampler(lengths, batch_size=8, seed=seed)
        sampler.set_epoch(epoch)
        np.random.seed(epoch)  # global state must not matter
        return list(sampler)

    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1, 2)}) == 6
    sampler = LengthBucketSampler(lengths, batch_size=8, seed=0)
    assert list(sampler) == list(sampler) == order(0, 0)  # iterating does not advance it


def test_who_meets_whom_changes_and_nobody_is_favoured():
    lengths = [5] * 64
    sampler = LengthBucketSampler(lengths, batch_size=8, seed=0)
    partners, first = set(), set()
    for epoch in range(60):
        sampler.set_epoch(epoch)
        order = list(sampler)
        at = order.index(0) // 8 * 8
        partners |= set(order[at : at + 8])
        first.add(order[0])
    assert len(partners) > 60
    assert len(first) > 25


def test_samples_that_fill_no_block_come_last_and_change():
    lengths = list(range(27))
    last = []
    for epoch in range(20):
        sampler = LengthBucketSampler(lengths, batch_size=8, seed=0)
        sampler.set_epoch(epoch)
        order = list(sampler)
        for at in range(0, 24, 8):
            block = [lengths[i] for i in order[at : at + 8]]
            assert block == sorted(block)
        last.append(tuple(order[24:]))
    assert len(set(last)) > 15


def test_a_loader_takes_it():
    lengths = [9, 1, 5, 3, 7, 2, 8, 4]
    loader = DataLoader(lengths, batch_size=2, sampler=LengthBucketSampler(lengths, batch_size=2, seed=0))
    assert sorted(map(tuple, (batch.tolist() for batch in loader))) == [(1, 2), (3, 4), (5, 7), (8, 9)]


@pytest.mark.parametrize(("batch_size", "seed"), [(0, 0), (-1, 0), (4, -1)])
def test_nonsense_is_refused(batch_size, seed):
    with pytest.raises(ValueError, match=f"got {batch_size} and {seed}"):
        LengthBucketSampler([1], batch_size=batch_size, seed=seed)

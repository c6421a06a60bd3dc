"""Length buckets: a permutation, alike lengths in a batch, one order for every group."""

from collections import Counter

import numpy as np
import pytest
from accelerate.data_loader import prepare_data_loader
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from coordexp.data.sampler import LengthBucketSampler
from tests.benchmarks.coco_lengths import coco_lengths


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


def test_a_step_of_several_buckets_holds_several_lengths():
    lengths = np.random.default_rng(3).permutation(400).tolist()
    order = list(LengthBucketSampler(lengths, batch_size=16, bucket_size=4, seed=0))
    found = [sorted(lengths[i] for i in order[at : at + 4]) for at in range(0, 400, 4)]
    assert sorted(found) == [list(range(at, at + 4)) for at in range(0, 400, 4)]
    spread = [np.ptp([lengths[i] for i in order[at : at + 16]]) for at in range(0, 400, 16)]
    assert np.mean(spread) > 150, "one bucket of 16 would have 15"
    assert list(LengthBucketSampler(lengths, batch_size=16, bucket_size=16, seed=0)) == list(
        LengthBucketSampler(lengths, batch_size=16, seed=0)
    )


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


QWEN3_VL_MAX_PIXELS, COCO_YAML_MAX_PIXELS = 16_777_216, 409_600


def make(lengths, *, num_ranks, size, accumulation, seed=0, buckets=True, fillers=True):
    multiple = num_ranks * size if fillers and num_ranks > 1 else 1
    return LengthBucketSampler(
        lengths, batch_size=num_ranks * size * accumulation, seed=seed, buckets=buckets, multiple_of=multiple
    )


class Indices:
    """A data set whose items are their own indices, fillers included."""

    def __init__(self, num):
        self._num = num

    def __len__(self):
        return self._num

    def __getitem__(self, index):
        return index


def batches_of_ranks(sampler, *, num, num_ranks, size):
    """Return for each rank the index lists it gets in an epoch: accelerate's own sharding, as HF's Trainer calls it."""
    loader = DataLoader(Indices(num), batch_size=size, sampler=sampler, collate_fn=list)
    return [list(prepare_data_loader(loader, num_processes=num_ranks, process_index=rank)) for rank in range(num_ranks)]


def steps_of(batches, accumulation):
    """Group the microbatches of all ranks by optimizer step, as HF's Trainer chunks a rank's iterator."""
    num = len(batches[0])
    return [
        [index for own in batches for batch in own[at : at + accumulation] for index in batch]
        for at in range(0, num, accumulation)
    ]


@settings(max_examples=200, deadline=None)
@given(
    num=st.integers(1, 300),
    num_ranks=st.integers(1, 8),
    size=st.integers(1, 8),
    accumulation=st.integers(1, 4),
    seed=st.integers(0, 5),
    buckets=st.booleans(),
)
@example(num=1, num_ranks=8, size=4, accumulation=2, seed=0, buckets=True)
@example(num=33, num_ranks=4, size=8, accumulation=2, seed=0, buckets=True)
def test_every_sample_counts_once_an_epoch(num, num_ranks, size, accumulation, seed, buckets):
    lengths = [(7 * i) % 31 + 1 for i in range(num)]
    sampler = make(lengths, num_ranks=num_ranks, size=size, accumulation=accumulation, seed=seed, buckets=buckets)
    batches = batches_of_ranks(sampler, num=num, num_ranks=num_ranks, size=size)
    found = [index for own in batches for batch in own for index in batch]
    assert sorted(index for index in found if index >= 0) == list(range(num))
    assert sum(index < 0 for index in found) == sampler.num_fillers
    assert len(found) == len(sampler)
    # All ranks take part in every step: a rank without a batch would leave the others waiting.
    assert len({len(own) for own in batches}) == 1
    if num_ranks > 1:
        assert {len(batch) for own in batches for batch in own} == {size}
        assert sampler.num_fillers < num_ranks * size


@settings(max_examples=60, deadline=None)
@given(num=st.integers(1, 200), size=st.integers(1, 4), half=st.integers(1, 4), seed=st.integers(0, 3))
def test_the_steps_are_the_same_for_any_split_of_a_batch(num, size, half, seed):
    """One rank, more ranks, more accumulation: a step holds the same samples."""
    lengths = [(7 * i) % 31 + 1 for i in range(num)]
    total = 2 * size * half
    found = []
    for num_ranks, micro, accumulation in ((1, total, 1), (2, size, half), (2 * half, size, 1), (half, size, 2)):
        sampler = make(lengths, num_ranks=num_ranks, size=micro, accumulation=accumulation, seed=seed)
        batches = batches_of_ranks(sampler, num=num, num_ranks=num_ranks, size=micro)
        found.append([Counter(i for i in step if i >= 0) for step in steps_of(batches, accumulation)])
    assert found[0] == found[1] == found[2] == found[3]


def fill_of(lengths, blocks):
    """Tokens over cells, where each block is as wide as its longest sequence."""
    rows = [[lengths[index] for index in block] for block in blocks]
    return sum(map(sum, rows)) / sum(len(row) * max(row) for row in rows)


@pytest.mark.parametrize("max_pixels", [QWEN3_VL_MAX_PIXELS, COCO_YAML_MAX_PIXELS])
@pytest.mark.parametrize(
    ("num_ranks", "accumulation", "size"), [(8, 2, 8), (8, 1, 8), (2, 1, 4), (1, 1, 16), (1, 8, 4)]
)
def test_the_batches_of_all_ranks_are_full(max_pixels, num_ranks, accumulation, size):
    lengths = coco_lengths(10_000, max_pixels=max_pixels)
    fills = {}
    for buckets in (True, False):
        sampler = make(lengths, num_ranks=num_ranks, size=size, accumulation=accumulation, buckets=buckets)
        batches = batches_of_ranks(sampler, num=10_000, num_ranks=num_ranks, size=size)
        assert sum(index >= 0 for own in batches for batch in own for index in batch) == 10_000
        real = [[[i for i in batch if i >= 0] for batch in own] for own in batches]
        micro = [batch for own in real for batch in own if batch]
        whole = [[i for i in step if i >= 0] for step in steps_of(batches, accumulation)]
        fills[buckets] = fill_of(lengths, micro), fill_of(lengths, whole)
        assert sampler.fill(size) == pytest.approx(fills[buckets][0], abs=0.002)
    # What a device pads to is its microbatch; ranks wait for the longest of the whole step.
    assert min(fills[True]) >= 0.97
    assert fills[False][0] < 0.95
    assert fills[False][1] < 0.8


def test_the_order_of_an_epoch_is_one_for_every_loader():
    lengths = coco_lengths(500, max_pixels=COCO_YAML_MAX_PIXELS)
    one = make(lengths, num_ranks=1, size=16, accumulation=1)
    many = make(lengths, num_ranks=4, size=2, accumulation=2)
    for epoch in (0, 3):
        one.set_epoch(epoch)
        many.set_epoch(epoch)
        np.random.seed(epoch)
        assert list(one) == list(many)[: len(one)]

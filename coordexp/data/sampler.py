"""Shuffle so that each batch holds sequences of similar lengths: padding falls from 30 % to about 1 %."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

_BATCHES_SORTED_TOGETHER = 50


class LengthBucketSampler(Sampler[int]):
    """Yield a permutation of all indices, each block of ``bucket_size`` of alike lengths.

    Indices are shuffled, cut into stretches of 50 batches, sorted by length within a stretch and
    cut into blocks; then the blocks are shuffled. So which samples meet is random, and short and
    long blocks alternate. With blocks smaller than a batch a step holds samples of several lengths. Samples that fill
    no batch come last, a random choice. The order depends on the seed, the epoch and the lengths alone: it is one for
    every group, and for any number of ranks and workers.

    With several ranks an epoch must be a multiple of what they take at once. Hugging Face repeats
    the epoch's first samples for that, which then count twice; here the epoch ends in *fillers*
    instead: an index ``~i`` (negative) asks for the image of sample ``i`` without anything to
    learn. So each sample counts once an epoch, whatever the number of ranks.

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
        """Prepare the sampler; without ``buckets`` it is a plain shuffle.

        ``batch_size`` is that of an optimizer step, across ranks and accumulated microbatches. ``bucket_size`` divides
        it, as the configuration checks; None stands for all of it. All ranks take ``multiple_of`` samples at once.
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
        # The shortest sample costs least.
        fillers = [~int(self._lengths.argmin())] * self.num_fillers if self.num_fillers else []
        return iter(order.tolist() + fillers)

    def fill(self, size: int) -> float:
        """Return the share of tokens that are no padding, if this epoch is padded in batches of ``size``.

        1 for no samples at all. With ``size`` of a microbatch it is the share of memory and work that
        is used; with that of a whole step, of the time of ranks that wait for each other.
        """
        lengths = self._lengths[[index for index in self if index >= 0]]
        padded = sum(part.max() * len(part) for part in np.split(lengths, range(size, len(lengths), size)) if len(part))
        return float(lengths.sum() / padded) if len(lengths) else 1.0

    def _bucketed(self, shuffled: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        num_in_blocks = len(shuffled) - len(shuffled) % self._batch_size
        stretch = self._batch_size * _BATCHES_SORTED_TOGETHER
        parts = [shuffled[at : min(at + stretch, num_in_blocks)] for at in range(0, num_in_blocks, stretch)]
        if not parts:
            return shuffled
        by_length = np.concatenate([part[np.argsort(self._lengths[part], kind="stable")] for part in parts])
        blocks = rng.permutation(by_length.reshape(-1, self._bucket_size), axis=0)
        return np.concatenate([blocks.ravel(), shuffled[num_in_blocks:]])

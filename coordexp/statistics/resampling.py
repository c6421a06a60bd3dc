"""Random draws that depend on the seed and on their own number alone, and threads that share them out.

Draw ``i`` of a stream is made from ``SeedSequence([seed, stream, i])``: how many threads there are, and in which
order they finish, changes nothing.
"""

import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor, as_completed
from enum import IntEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coordexp.errors import ComparisonError

K = TypeVar("K")
V = TypeVar("V")
OnProgress = Callable[[int, int], None]
"""Called with the number of draws done and their total, from the caller's thread; where it raises, the work ends."""

DEFAULT_RESAMPLES = 2000

_BLOCK = 128
"""As many as :data:`~coordexp.detection.kernels.DRAWS_AT_ONCE`, so that no lane is idle."""


class Stream(IntEnum):
    """What a random number is for; the number is part of every draw's seed."""

    IMAGES = 1
    SWAPS = 2
    SEEDS = 3


def generator(stream: Stream, *, seed: int, index: int) -> np.random.Generator:
    """Return the generator of draw ``index``."""
    return np.random.default_rng([seed, int(stream), index])


def image_weights(num_images: int, *, seed: int, index: int) -> NDArray[np.uint16]:
    """Return ``[N]``: how often each image is in resample ``index`` of as many images, drawn with replacement."""
    drawn = generator(Stream.IMAGES, seed=seed, index=index).integers(0, num_images, num_images)
    return np.bincount(drawn, minlength=num_images).astype(np.uint16)


def swapped_images(num_images: int, *, seed: int, index: int) -> NDArray[np.uint8]:
    """Return ``[N]``: 1 for the images swapped in draw ``index``, each with probability one half."""
    return generator(Stream.SWAPS, seed=seed, index=index).integers(0, 2, num_images, dtype=np.uint8)


def check_plan(*, resamples: int, seed: int) -> None:
    """Refuse a number of resamples or a seed that no draw can be made from.

    Raises:
        ComparisonError: saying which.
    """
    if resamples < 20:
        raise ComparisonError(f"resamples must be at least 20, got {resamples}; 2000 give a stable 95 % interval")
    if seed < 0:
        raise ComparisonError(f"the seed of the resamples must not be negative, got {seed}")


def enough_resamples(num_pairs: int) -> int:
    """Return how many resamples are needed for a difference in each of ``num_pairs`` pairs to become significant.

    The smallest p of the bootstrap is 2 / (R + 1), and Holm's correction multiplies it by the number of
    pairs: beyond 50 pairs, that of 2000 resamples can never come below 5 %.
    """
    return max(DEFAULT_RESAMPLES, 50 * num_pairs)


def each_read(
    read: Callable[[K], V], keys: Collection[K], *, threads: int | None, on_progress: OnProgress | None = None
) -> dict[K, V]:
    """Return what ``read`` makes of each key, from several threads.

    Args:
        read: the work of one key; it should spend its time outside the interpreter's lock.
        keys: in the order of the answer.
        threads: number of threads; None for one per usable core.
        on_progress: called after each key, with no draw done; where it raises, no further key is begun.
    """
    found: dict[K, V] = {}
    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        for key, made in zip(keys, pool.map(read, keys), strict=True):
            found[key] = made
            if on_progress is not None:
                on_progress(0, 1)
    return found


def for_each_block(
    draw: Callable[[int, int], None], *, num_draws: int, threads: int | None, on_progress: OnProgress | None = None
) -> None:
    """Call ``draw(first, last)`` from several threads, until all draws are made; each must write to places of its own.

    Args:
        draw: the work of some draws; it should spend its time outside the interpreter's lock.
        num_draws: number of draws.
        threads: number of threads; None for one per usable core.
        on_progress: called after each block of draws.
    """

    def run(first: int) -> int:
        last = min(first + _BLOCK, num_draws)
        draw(first, last)
        return last - first

    done = 0
    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        futures = [pool.submit(run, first) for first in range(0, num_draws, _BLOCK)]
        try:
            for future in as_completed(futures):
                done += future.result()
                if on_progress is not None:
                    on_progress(done, num_draws)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)  # after an interruption nothing more is begun

"""Random draws that depend on the seed and on their own number alone.

Draw ``i`` of a stream is made from ``SeedSequence([seed, stream, i])``. So neither the order in which draws are made
nor the number of cores that count them changes anything.

Legend of shapes: ``R`` draws, ``N`` images.
"""

from collections.abc import Callable, Generator
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from coordexp.errors import ComparisonError

OnProgress = Callable[[int, int], None]
"""Called with the number of draws done and their total; if it raises, the work ends."""

_BLOCK = 128


class Stream(IntEnum):
    """What a random number is for; the number is part of every draw's seed."""

    IMAGES = 1
    SWAPS = 2
    SEEDS = 3


def generator(stream: Stream, *, seed: int, index: int) -> np.random.Generator:
    return np.random.default_rng([seed, int(stream), index])


def image_weights(num_images: int, *, resamples: int, seed: int) -> NDArray[np.uint16]:
    """Return ``[R, N]``: how often each image is in a resample of as many images, drawn with replacement.

    Args:
        num_images: how many images, or units. Units are drawn as images are, and :meth:`Units.spread` gives each image
            what was drawn for its unit.
        resamples: how many.
        seed: the same seed gives the same draws.
    """
    weights = np.empty((resamples, num_images), np.uint16)
    for index in range(resamples):
        drawn = generator(Stream.IMAGES, seed=seed, index=index).integers(0, num_images, num_images)
        weights[index] = np.bincount(drawn, minlength=num_images)
    return weights


def swapped_images(num_images: int, *, resamples: int, seed: int) -> NDArray[np.uint8]:
    """Return ``[R, N]``: 1 for the images, or units, that are swapped in a draw, each with probability one half."""
    swapped = np.empty((resamples, num_images), np.uint8)
    for index in range(resamples):
        swapped[index] = generator(Stream.SWAPS, seed=seed, index=index).integers(0, 2, num_images, dtype=np.uint8)
    return swapped


def check_plan(*, resamples: int, seed: int) -> None:
    """Raise a ComparisonError if there are too few resamples for an interval, or the seed is negative."""
    if resamples < 20:
        raise ComparisonError(f"resamples must be at least 20, got {resamples}; 2000 give a stable 95 % interval")
    if seed < 0:
        raise ComparisonError(f"the seed of the resamples must not be negative, got {seed}")


def enough_swaps(num_pairs: int, *, resamples: int) -> int:
    """Return how many draws a swap test takes, so that a difference in any of ``num_pairs`` pairs can be significant.

    Its smallest p is 1 / (R + 1), and Holm's correction multiplies it by the number of pairs. (Intervals need no more
    resamples for many pairs: they only take a variance of them.)
    """
    return max(resamples, 50 * num_pairs)


def blocks_of(num_draws: int, on_progress: OnProgress | None) -> Generator[slice]:
    """Yield the draws a block at a time, and report each block once it is done.

    Blocks keep the arrays small, and let an interrupted command end between two of them.
    """
    for first in range(0, num_draws, _BLOCK):
        last = min(first + _BLOCK, num_draws)
        yield slice(first, last)
        if on_progress is not None:
            on_progress(last, num_draws)

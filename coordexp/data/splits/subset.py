"""A subset of samples that looks like all of them in number, size and category of their objects.

Shapes: N samples; F counts of a feature.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coordexp.data.sample import SIZE_EDGES_PX2, Sample
from coordexp.files import sha256_of_text

_NUM_DRAWS = 128


def stratified_subset(samples: Sequence[Sample], n: int) -> list[int]:
    """Choose ``n`` samples that look like all of them.

    Samples are sorted by their number of objects, then by a hash of the image id, and every ``len / n``-th is taken:
    the numbers of objects come out right by construction. This is done 128 times, each time with another hash. Of these
    draws, the one is taken whose shares of small, medium and large objects, and of categories, are closest to those of
    all samples (the two total variation distances added up). Within these bounds the choice is as good as random. There
    is no random state: the same images give the same choice everywhere, and in any order of the file.

    Returns:
        Indices in ascending order; all of them if there are no more than ``n``.
    """
    if len(samples) <= n:
        return list(range(len(samples)))
    if n == 0:
        return []
    num_objects = np.array([len(sample.objects) for sample in samples])
    hashes = np.array([int(sha256_of_text(str(sample.image_id))[:16], 16) for sample in samples], np.uint64)
    # The middles of n equal stretches of the sorted samples.
    ranks = (2 * np.arange(n) + 1) * len(samples) // (2 * n)
    draws = [np.lexsort((_mixed(hashes, draw), num_objects))[ranks] for draw in range(_NUM_DRAWS)]
    size_counts = _size_counts(samples)
    category_counts = _category_counts(samples)
    best = min(draws, key=lambda chosen: _distance(size_counts, chosen) + _distance(category_counts, chosen))
    return sorted(best.tolist())


def _distance(counts_NF: NDArray[np.float64], chosen: NDArray[np.int64]) -> float:
    """Return the total variation distance between the shares in the chosen samples and those in all samples."""
    of_all = counts_NF.sum(axis=0)
    of_chosen = counts_NF[chosen].sum(axis=0)
    if not of_chosen.sum():
        return 0.0
    return float(np.abs(of_chosen / of_chosen.sum() - of_all / of_all.sum()).sum() / 2)


def _size_counts(samples: Sequence[Sample]) -> NDArray[np.float64]:
    """Return ``[N, 3]``: how many small, medium and large objects each sample has."""
    counts = np.zeros((len(samples), len(SIZE_EDGES_PX2) + 1))
    for row, sample in enumerate(samples):
        x1, y1, x2, y2 = sample.objects.boxes_norm_xyxy.T
        areas = (x2 - x1) * sample.width * (y2 - y1) * sample.height
        np.add.at(counts[row], np.searchsorted(SIZE_EDGES_PX2, areas, side="right"), 1)
    return counts


def _category_counts(samples: Sequence[Sample]) -> NDArray[np.float64]:
    """Return ``[N, F]``: how many objects of each description each sample has."""
    descs = sorted({desc for sample in samples for desc in sample.objects.descs})
    column_of = {desc: column for column, desc in enumerate(descs)}
    counts = np.zeros((len(samples), len(descs)))
    for row, sample in enumerate(samples):
        for desc, count in Counter(sample.objects.descs).items():
            counts[row, column_of[desc]] = count
    return counts


def _mixed(hashes: NDArray[np.uint64], draw: int) -> NDArray[np.uint64]:
    """Return other hashes for each draw (the finaliser of splitmix64)."""
    mixed = hashes + np.uint64((0x9E3779B97F4A7C15 * (draw + 1)) % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))

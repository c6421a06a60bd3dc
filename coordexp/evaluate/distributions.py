"""The coord distributions of some objects, whole: ``distributions.json``, for a report's curves.

For a fixed set of images, fixed by the data alone so that all groups have the same, the four bin
distributions of up to four objects each. They are those of the headline numbers: recorded while
generating, from raw logits over the coord vocabulary.
"""

import hashlib
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordexp.detection.ground_truth import GroundTruth
from coordexp.files import read_model, write_json
from coordexp.runs.folder import DecodingFolder

NUM_IMAGES = 24
NUM_OBJECTS = 4
UNITS = 100_000


@dataclass(frozen=True)
class BinCurve:
    """One distribution over the 1000 bins: ``{"start": 120, "units": [1, 7, 90210, ...]}``.

    ``units`` are the probabilities of each bin from ``start`` on, in 1e-5, rounded; those outside have less than half.
    """

    start: int
    units: tuple[int, ...]

    @classmethod
    def of(cls, probs_K: NDArray[np.float32]) -> "BinCurve":
        """Round a distribution and cut the zeros at both ends."""
        units = np.rint(probs_K.astype(np.float64) * UNITS).astype(np.int64)
        places = np.flatnonzero(units)
        if not places.size:
            return cls(0, ())
        start, stop = int(places[0]), int(places[-1]) + 1
        return cls(start, tuple(units[start:stop].tolist()))


@dataclass(frozen=True)
class ObjectCurves:
    """One object: ``{"desc": ..., "bins": [x1, y1, x2, y2], "expected": [4], "width": [4], "curves": [4]}``.

    Expected coordinates are fractions of the image side, widths standard deviations in bins.
    """

    desc: str
    bins: tuple[int, int, int, int]
    expected: tuple[float, float, float, float]
    width: tuple[float, float, float, float]
    curves: tuple[BinCurve, ...]


@dataclass(frozen=True)
class ImageCurves:
    """One image: ``{"image_id": 7, "objects": [...]}``, the first objects in generated order."""

    image_id: int
    objects: tuple[ObjectCurves, ...]


@dataclass(frozen=True)
class Distributions:
    """The whole file: ``{"num_bins": 1000, "unit": 1e-05, "images": [...]}``, images by id."""

    num_bins: int
    unit: float
    images: tuple[ImageCurves, ...]

    def write(self, folder: Path) -> None:
        """Write ``folder/distributions.json``; at most about 2 MB."""
        write_json(DecodingFolder(folder).distributions, asdict(self))

    @classmethod
    def read(cls, path: Path) -> "Distributions":
        """Read what :meth:`write` wrote; a DataError names a file that is missing or holds something else."""
        return read_model(cls, path, what="coord distributions")


def images_with_curves(ground_truth: GroundTruth, image_ids: Collection[int]) -> frozenset[int]:
    """Choose up to 24 images, spread over the number of objects; the ids alone decide, not their order."""
    counts = Counter(ground_truth.image_ids[~ground_truth.is_crowd].tolist())
    order = sorted(image_ids, key=lambda key: (counts[key], hashlib.sha256(str(key).encode()).hexdigest()))
    n = min(NUM_IMAGES, len(order))
    return frozenset(order[(2 * rank + 1) * len(order) // (2 * n)] for rank in range(n))

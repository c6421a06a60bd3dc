"""The whole coord distributions of some objects: ``distributions.json``, for a report's curves.

The images are chosen by the data alone, so that all groups have the same. Of each image, up to four objects are kept,
with four bin distributions each. They are the distributions behind the headline numbers: recorded while generating,
from raw logits over the coord vocabulary.
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
NUM_OBJECTS = 4  # of each image
UNITS = 100_000  # probabilities are written as whole numbers of 1/UNITS, which keeps the file small


@dataclass(frozen=True)
class BinCurve:
    """One distribution over the 1000 bins: ``{"start": 120, "units": [1, 7, 90210, ...]}``.

    ``units`` are the probabilities of the bins from ``start`` on, in 1e-5, rounded. All other bins have less than half
    a unit.
    """

    start: int
    units: tuple[int, ...]

    @classmethod
    def of(cls, probs_K: NDArray[np.float32]) -> "BinCurve":
        """Round a distribution ``[K]``, and cut the zeros off both ends."""
        units = np.rint(probs_K.astype(np.float64) * UNITS).astype(np.int64)
        bins = np.flatnonzero(units)
        if not bins.size:
            return cls(0, ())
        start = int(bins[0])
        stop = int(bins[-1]) + 1
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
        """Read what :meth:`write` wrote.

        Raises:
            DataError: if the file is missing or holds something else.
        """
        return read_model(cls, path, what="coord distributions")


def images_with_curves(ground_truth: GroundTruth, image_ids: Collection[int]) -> frozenset[int]:
    """Choose up to 24 images, spread over the number of objects. The ids decide, and not their order."""
    counts = Counter(ground_truth.image_ids[~ground_truth.is_crowd].tolist())
    # Among images with equally many objects the hash of the id decides, so that no order of a file gets in.
    order = sorted(
        image_ids, key=lambda image_id: (counts[image_id], hashlib.sha256(str(image_id).encode()).hexdigest())
    )
    num_chosen = min(NUM_IMAGES, len(order))
    # The middle of each of num_chosen equal stretches of the order.
    return frozenset(order[(2 * rank + 1) * len(order) // (2 * num_chosen)] for rank in range(num_chosen))

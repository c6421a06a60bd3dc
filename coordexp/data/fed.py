"""What a model sees of pictures: the size to which they are resized, and how large objects are there."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from coordexp.data.patches import ImageSpec
from coordexp.data.sample import Sample


def fed_sentence(samples: Sequence[Sample], spec: ImageSpec) -> str:
    """Return what the usual picture shrinks to, and its median box there; "" where no picture is shrunk."""
    sizes = Counter((sample.width, sample.height) for sample in samples)
    fed = {size: fed_size(*size, spec) for size in sizes}
    # The nearest multiple of a patch is no shrinking.
    shrunk = Counter({(w, h): n for (w, h), n in sizes.items() if math.prod(fed[w, h]) < 0.9 * w * h})
    if not shrunk:
        return ""
    (width, height), number = shrunk.most_common(1)[0]
    columns, rows = fed[width, height]
    sides = [
        (box[2:] - box[:2]) * fed[sample.width, sample.height]
        for sample in samples
        for box in sample.objects.boxes_norm_xyxy
    ]
    box = "" if not sides else "; the median box is {:.0f} x {:.0f} there".format(*np.median(sides, axis=0).tolist())
    several = "" if len(shrunk) == 1 else f" ({number:,} of {shrunk.total():,} that are shrunk)"
    return f"{width} x {height} is fed as {columns} x {rows}{several}{box}; data.max_pixels feeds more"


def fed_size(width: int, height: int, spec: ImageSpec) -> tuple[int, int]:
    """Return width and height in pixels of the copy of a picture that is cut into patches."""
    rows, columns = spec.grid(width=width, height=height)
    return columns * spec.patch_size, rows * spec.patch_size

"""The objects of a sample: their order, and which of them go where there are too many."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from coordexp.data.sample import DetectionObject

Ordering = Literal["top_left", "random"]


def order_objects(
    objects: Sequence[DetectionObject], *, ordering: Ordering = "top_left", seed: Sequence[int] = (0,)
) -> list[DetectionObject]:
    """Order objects: y1, then x1, then the original index; or a seeded shuffle (DESIGN 3.9)."""
    if ordering == "random":
        order = np.random.default_rng(list(seed)).permutation(len(objects))
        return [objects[i] for i in order]
    return sorted(objects, key=lambda item: (item.box_norm_xyxy[1], item.box_norm_xyxy[0]))


def cap_objects(objects: Sequence[DetectionObject], max_objects: int) -> list[DetectionObject]:
    """Keep the ``max_objects`` largest boxes (earlier first among equals), in their given order."""
    if len(objects) <= max_objects:
        return list(objects)
    keep = sorted(range(len(objects)), key=lambda i: -_area(objects[i]))[:max_objects]
    return [objects[i] for i in sorted(keep)]


def _area(item: DetectionObject) -> float:
    x1, y1, x2, y2 = item.box_norm_xyxy
    return (x2 - x1) * (y2 - y1)

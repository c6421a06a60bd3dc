"""In what frame a file of detections writes its boxes and categories, and how to read it in pixels and ids.

Legend of shapes: ``D`` detections.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from coordexp.coord_tokens.smart_resize import smart_resize
from coordexp.detection.boxes import Floats, Ints
from coordexp.errors import ConfigError

UNITS = ("px", "norm1", "norm1000", "smart28", "smart32")
LAYOUTS = ("xywh", "xyxy", "cxcywh")
CATEGORIES = ("ids", "index0", "index1")
_SMART_AREAS_PX2 = {28: (56 * 56, 12_845_056), 32: (65_536, 16_777_216)}
"""Smallest and largest area of a resized image: the defaults of Qwen2.5-VL's and Qwen3-VL's processors."""


@dataclass(frozen=True)
class Frame:
    """A reading of a file: its parts between colons, as in ``norm1000:xyxy:index0``; what is left out is COCO's own.

    Attributes:
        unit: ``px``; ``norm1`` and ``norm1000``: fractions and thousandths of each side; ``smart28`` and ``smart32``:
            pixels of the image as Qwen2.5-VL's and Qwen3-VL's processors resize it, to multiples of 28 or 32;
            ``smart28-1003520`` with this ``max_pixels``.
        layout: which four numbers a box has; ``cx`` is the centre.
        categories: ``ids``; ``index0``, ``index1``: places among the sorted ids, counted from 0 or from 1.
    """

    unit: str = "px"
    layout: str = "xywh"
    categories: str = "ids"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``norm1000:xyxy``, its parts in any order.

        Raises:
            ConfigError: if a part is unknown, or there twice.
        """
        found: dict[str, str] = {}
        for part in text.split(":"):
            is_unit = part in UNITS or re.fullmatch(r"smart(28|32)-[1-9]\d*", part)
            name = "unit" if is_unit else "layout" if part in LAYOUTS else "categories" if part in CATEGORIES else ""
            if not name or name in found:
                raise ConfigError(
                    f"frame {text!r}: {part!r} is unknown or there twice; expected one of {', '.join(UNITS)} or "
                    f"smart28-MAX_PIXELS, one of {', '.join(LAYOUTS)} and one of {', '.join(CATEGORIES)}"
                )
            found[name] = part
        return replace(cls(), **found)

    def __str__(self) -> str:
        """Return what :meth:`parse` reads."""
        return ":".join([self.unit, self.layout, *([self.categories] if self.categories != "ids" else [])])

    @property
    def needs_sizes(self) -> bool:
        return self.unit != "px"

    def boxes_px_xywh(self, boxes: Floats, sizes_px: Floats) -> Floats:
        """Return boxes ``[D, 4]`` of a file in pixels of the original image, by the size ``[D, 2]`` of each one's."""
        corner, size = boxes[:, :2], boxes[:, 2:]
        if self.layout == "xyxy":
            size = size - corner
        elif self.layout == "cxcywh":
            corner = corner - size / 2
        found = np.concatenate([corner, size], axis=1)
        if self.unit == "px":
            return found
        if self.unit.startswith("norm"):
            return found * np.tile(sizes_px, 2) / float(self.unit.removeprefix("norm"))
        return found * np.tile(sizes_px / smart_sizes(self.unit, sizes_px), 2)

    def category_ids(self, categories: Ints, known: Collection[int]) -> Ints:
        """Return ``[D]`` ids of the annotation file, which knows these; -1 for a place that it does not have."""
        if self.categories == "ids":
            return categories
        places = categories - int(self.categories.removeprefix("index"))
        is_inside = (places >= 0) & (places < len(known))
        return np.append(np.array(sorted(known), np.int64), -1)[np.where(is_inside, places, -1)]


def smart_sizes(unit: str, sizes_px: Floats) -> Floats:
    """Return the sizes to which Qwen's processors resize images of these sizes."""
    factor, *given = (int(number) for number in re.findall(r"\d+", unit))
    low, high = _SMART_AREAS_PX2[factor]
    sizes = [
        smart_resize(*size, factor=factor, low=low, high=given[0] if given else high) for size in sizes_px.tolist()
    ]
    return np.array(sizes, np.float64).reshape(-1, 2)

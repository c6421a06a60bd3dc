"""In what frame a file of detections writes its boxes and categories, and how to convert it to pixels and ids.

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
    """How to read boxes and categories of a file, written as ``norm1000:xyxy:index0``; by default as COCO's.

    Attributes:
        unit: ``px``; ``norm1`` and ``norm1000``: fractions and thousandths of each side; ``smart28`` and ``smart32``:
            pixels of the image as Qwen2.5-VL's and Qwen3-VL's processors resize it, to multiples of 28 or 32;
            ``smart28-1003520`` with this ``max_pixels``.
        layout: which four numbers a box has; ``cx`` is the x of its centre.
        categories: ``ids``; ``index0``, ``index1``: places among the sorted ids, counted from 0 or from 1.
    """

    unit: str = "px"
    layout: str = "xywh"
    categories: str = "ids"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``norm1000:xyxy``, its words in any order.

        Raises:
            ConfigError: if a word is unknown, or two words set the same attribute.
        """
        values: dict[str, str] = {}
        for word in text.split(":"):
            attribute = _attribute_of(word)
            if attribute is None or attribute in values:
                raise ConfigError(
                    f"frame {text!r}: {word!r} is unknown or there twice; expected one of {', '.join(UNITS)} or "
                    f"smart28-MAX_PIXELS, one of {', '.join(LAYOUTS)} and one of {', '.join(CATEGORIES)}"
                )
            values[attribute] = word
        return replace(cls(), **values)

    def __str__(self) -> str:
        """Return what :meth:`parse` reads."""
        if self.categories == "ids":
            return f"{self.unit}:{self.layout}"
        return f"{self.unit}:{self.layout}:{self.categories}"

    @property
    def needs_sizes(self) -> bool:
        return self.unit != "px"

    def boxes_px_xywh(self, boxes: Floats, sizes_px: Floats) -> Floats:
        """Convert boxes of a file to pixels of the original image.

        Args:
            boxes: ``[D, 4]`` in this frame.
            sizes_px: ``[D, 2]`` width and height of each box's image; not looked at if the unit is ``px``.

        Returns:
            ``[D, 4]`` left, top, width and height.
        """
        corner = boxes[:, :2]
        size = boxes[:, 2:]
        if self.layout == "xyxy":
            size = size - corner
        elif self.layout == "cxcywh":
            corner = corner - size / 2
        boxes_xywh = np.concatenate([corner, size], axis=1)

        if self.unit == "px":
            return boxes_xywh
        if self.unit.startswith("norm"):
            return boxes_xywh * np.tile(sizes_px, 2) / float(self.unit.removeprefix("norm"))
        return boxes_xywh * np.tile(sizes_px / smart_sizes(self.unit, sizes_px), 2)

    def category_ids(self, categories: Ints, ids_of_file: Collection[int]) -> Ints:
        """Convert categories of a file of detections to ids of the annotation file.

        Args:
            categories: ``[D]`` in this frame.
            ids_of_file: the ids that the annotation file has.

        Returns:
            ``[D]`` ids; -1 for a place that the annotation file does not have.
        """
        if self.categories == "ids":
            return categories
        places = categories - int(self.categories.removeprefix("index"))
        is_inside = (places >= 0) & (places < len(ids_of_file))
        id_at_place = np.append(np.array(sorted(ids_of_file), np.int64), -1)
        return id_at_place[np.where(is_inside, places, -1)]  # -1 reads the last entry


def _attribute_of(word: str) -> str | None:
    """Return the attribute of a frame that a word sets, None for no such word."""
    if word in UNITS or re.fullmatch(r"smart(28|32)-[1-9]\d*", word):
        return "unit"
    if word in LAYOUTS:
        return "layout"
    return "categories" if word in CATEGORIES else None


def smart_sizes(unit: str, sizes_px: Floats) -> Floats:
    """Return the sizes to which Qwen's processors resize images.

    Args:
        unit: ``smart28``, ``smart32``, or one of them with a number of pixels.
        sizes_px: ``[M, 2]`` width and height of the original images.

    Returns:
        ``[M, 2]`` width and height of the resized images.
    """
    factor, *max_pixels_of_unit = (int(number) for number in re.findall(r"\d+", unit))
    min_pixels, max_pixels = _SMART_AREAS_PX2[factor]
    if max_pixels_of_unit:
        max_pixels = max_pixels_of_unit[0]
    sizes = [
        smart_resize(width, height, factor=factor, low=min_pixels, high=max_pixels)
        for width, height in sizes_px.tolist()
    ]
    return np.array(sizes, np.float64).reshape(-1, 2)

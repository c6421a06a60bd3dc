"""In what frame a file of detections writes its boxes and categories, and how to read it in pixels and ids.

Legend of shapes: ``D`` detections.
"""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from coordexp.detection.boxes import Floats, Ints
from coordexp.errors import ConfigError

LAYOUTS = ("xywh", "xyxy", "cxcywh", "yxhw", "yxyx", "cycxhw")
CATEGORIES = ("ids", "ids-1", "ids+1", "index0", "index1")
_NUMBER = r"\d+(?:\.\d+)?"
_UNIT = re.compile(rf"px|(?:norm|longest|letterbox|scale){_NUMBER}|shortest{_NUMBER}(?:-{_NUMBER})?|smart\d+(?:-\d+)?")
_MIN_SMART_TOKENS = 4
GRAMMAR = (
    "px, norm1, norm999, norm1000, longest640, shortest800-1333, letterbox640, smart28-1003520 or scale0.5; "
    f"{', '.join(LAYOUTS)}; first+1, first-1, last+1, last-1; {', '.join(CATEGORIES)}"
)


@dataclass(frozen=True)
class Frame:
    """A reading of a file: its parts between colons, as in ``norm1000:xyxy:index0``; what is left out is COCO's own.

    Attributes:
        unit: ``px``; ``norm1000`` are thousandths of each side (so any stretched image: ``norm640``); ``longest640``
            are pixels of an image whose longest side was 640, ``shortest800-1333`` of one whose shortest side was 800
            but whose longest at most 1333, ``letterbox640`` of one in the middle of a padded square,
            ``smart28-1003520`` of one resized to multiples of 28 and at most so many pixels, as Qwen's processors do,
            ``scale0.5`` of one half as large.
        layout: which numbers a box has, in which order; ``cx`` is the centre.
        first: added to the upper left corner, in the file's unit: -1 where it counts from 1.
        last: added to the lower right corner: 1 where it is the last pixel inside.
        categories: ``ids``; ``ids+1``: each id is one too small; ``index0``, ``index1``: places among the sorted ids,
            counted from 0 or from 1.
    """

    unit: str = "px"
    layout: str = "xywh"
    first: int = 0
    last: int = 0
    categories: str = "ids"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``norm1000:xyxy``, its parts in any order.

        Raises:
            ConfigError: if a part is unknown, or there twice.
        """
        found: dict[str, str | int] = {}
        for part in text.split(":"):
            offset = re.fullmatch(r"(first|last)([+-]1)", part)
            name, value = (offset[1], int(offset[2])) if offset else ("", part)
            if part in LAYOUTS:
                name = "layout"
            elif part in CATEGORIES:
                name = "categories"
            elif _UNIT.fullmatch(part) and all(float(number) > 0 for number in re.findall(_NUMBER, part)):
                name = "unit"
            if not name or name in found:
                raise ConfigError(f"frame {text!r}: {part!r} is unknown or there twice; expected parts of: {GRAMMAR}")
            found[name] = value
        return replace(cls(), **found)  # pyright: ignore[reportArgumentType]

    def __str__(self) -> str:
        """Return what :meth:`parse` reads: unit and layout, and the parts that are not COCO's."""
        offsets = [f"{name}{value:+d}" for name, value in (("first", self.first), ("last", self.last)) if value]
        return ":".join([self.unit, self.layout, *offsets, *([self.categories] if self.categories != "ids" else [])])

    @property
    def needs_sizes(self) -> bool:
        """Whether a box cannot be read without the size of its image."""
        return self.unit != "px" and not self.unit.startswith("scale")

    def boxes_px_xywh(self, boxes: Floats, sizes_px: Floats) -> Floats:
        """Return ``[D, 4]`` pixels of the original image.

        Args:
            boxes: ``[D, 4]`` as they stand in the file.
            sizes_px: ``[D, 2]`` width and height of each box's image; not looked at where no unit needs them.
        """
        if self == Frame():
            return boxes
        corners = self.corners(boxes)
        corners[:, :2] += self.first
        corners[:, 2:] += self.last
        if self.unit != "px":
            scale, shift = _scale_and_shift(self.unit, sizes_px)
            corners = (corners - np.tile(shift, 2)) * np.tile(scale, 2)
        return np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)

    def corners(self, boxes: Floats) -> Floats:
        """Return ``[D, 4]`` x1, y1, x2, y2 in the file's own unit, before any offset."""
        ordered = boxes[:, [1, 0, 3, 2]] if self.layout in ("yxhw", "yxyx", "cycxhw") else boxes
        first, second = ordered[:, :2], ordered[:, 2:]
        if self.layout in ("xyxy", "yxyx"):
            return np.concatenate([first, second], axis=1)
        if self.layout in ("cxcywh", "cycxhw"):
            return np.concatenate([first - second / 2, first + second / 2], axis=1)
        return np.concatenate([first, first + second], axis=1)

    def category_ids(self, categories: Ints, known: Collection[int]) -> Ints:
        """Return ``[D]`` ids of the annotation file; -1 for a place that it does not have.

        Args:
            categories: ``[D]`` as they stand in the file.
            known: the annotation file's ids.
        """
        if self.categories.startswith("ids"):
            return categories + int(self.categories.removeprefix("ids") or 0)
        places = categories - int(self.categories.removeprefix("index"))
        ids = np.array(sorted(known), np.int64)
        inside = (places >= 0) & (places < len(ids))
        return np.where(inside, ids[np.where(inside, places, 0)], -1) if len(ids) else np.full_like(places, -1)


def _scale_and_shift(unit: str, sizes_px: Floats) -> tuple[Floats, Floats]:
    """Return ``[D, 2]`` pixels a unit of the file, and ``[D, 2]`` the place of the image's corner in it."""
    kind, *numbers = re.findall(rf"[a-z]+|{_NUMBER}", unit)
    values = [float(number) for number in numbers]
    nothing = np.zeros_like(sizes_px)
    if kind == "norm":
        return sizes_px / values[0], nothing
    if kind == "scale":
        return np.full_like(sizes_px, 1 / values[0]), nothing
    if kind == "smart":
        return sizes_px / _smart_sizes(sizes_px, *values), nothing
    short, long = sizes_px.min(axis=1), sizes_px.max(axis=1)
    if kind == "shortest":
        most = values[1] if len(values) > 1 else math.inf
        scale = np.maximum(short / values[0], long / most)
    else:
        scale = long / values[0]
    both = np.stack([scale, scale], axis=1)
    return both, (values[0] - sizes_px / both) / 2 if kind == "letterbox" else nothing


def _smart_sizes(sizes_px: Floats, factor: float, max_pixels: float = math.inf) -> Floats:
    """Return the sizes to which Qwen's processors resize images: multiples of ``factor``, the area within limits."""
    area = sizes_px.prod(axis=1, keepdims=True)
    rounded = np.maximum(np.round(sizes_px / factor), 1) * factor
    pixels, min_pixels = rounded.prod(axis=1, keepdims=True), _MIN_SMART_TOKENS * factor**2
    smaller = np.maximum(np.floor(sizes_px * np.sqrt(max_pixels / area) / factor), 1) * factor
    larger = np.ceil(sizes_px * np.sqrt(min_pixels / area) / factor) * factor
    return np.where(pixels > max_pixels, smaller, np.where(pixels < min_pixels, larger, rounded))

"""Coloured shapes on a noisy background, for the generated data set and for what the embedded base was taught with."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageDraw

COLOURS = {"red": (205, 45, 45), "green": (40, 160, 70), "blue": (50, 80, 205), "yellow": (225, 195, 40)}
SHAPES = ("circle", "square", "triangle")
CATEGORIES = tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)
IMAGE_SIZES_PX = ((192, 192), (224, 160), (160, 224))
_SIDE_RANGE_PX = (34, 116)
_MAX_OVERLAP_FRACTION = 0.1
_PLACEMENT_TRIES = 30
_CIRCLE_POINTS = 24
_Box: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True)
class Shape:
    """One drawn shape: ``category`` is an index of CATEGORIES; the box is whole pixels."""

    category: int
    box_px_xywh: _Box

    @property
    def polygon_px(self) -> list[float]:
        """Outline as COCO's flat ``[x, y, x, y, ...]``."""
        x, y, width, height = self.box_px_xywh
        match SHAPES[self.category % len(SHAPES)]:
            case "square":
                points = [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
            case "triangle":
                points = [(x + width / 2, y), (x + width, y + height), (x, y + height)]
            case _:
                points = []
                for number in range(_CIRCLE_POINTS):
                    angle = 2 * math.pi * number / _CIRCLE_POINTS
                    points.append((x + width / 2 * (1 + math.cos(angle)), y + height / 2 * (1 + math.sin(angle))))
        return [coordinate for point in points for coordinate in point]

    @property
    def area_px(self) -> float:
        """Area inside the outline, by the shoelace formula; COCO's small, medium and large go by it.

        The sum is exact: numpy.dot rounds as the processor does it, and two machines would draw different data.
        """
        flat = self.polygon_px
        corners = list(zip(flat[::2], flat[1::2], strict=True))
        crossed = [x * next_y - y * next_x for (x, y), (next_x, next_y) in pairwise([*corners, corners[0]])]
        return abs(math.fsum(crossed)) / 2


def draw_scene(
    rng: np.random.Generator, *, max_objects: int = 4, sides_px: tuple[int, int] = _SIDE_RANGE_PX
) -> tuple[Image.Image, list[Shape]]:
    """Draw 1 to ``max_objects`` shapes on a noisy grey background.

    Args:
        rng: decides everything; the order of its draws is part of the generated data set.
        max_objects: shapes at most. A shape for which no place is found is left out.
        sides_px: smallest side, and one more than the largest.
    """
    width, height = IMAGE_SIZES_PX[rng.integers(len(IMAGE_SIZES_PX))]
    shapes: list[Shape] = []
    for _ in range(int(rng.integers(1, max_objects + 1))):
        taken = [shape.box_px_xywh for shape in shapes]
        box = _place(rng, width=width, height=height, taken=taken, sides_px=sides_px)
        if box is not None:
            shapes.append(Shape(category=int(rng.integers(len(CATEGORIES))), box_px_xywh=box))
    return _paint(rng, width=width, height=height, shapes=shapes), shapes


def _place(
    rng: np.random.Generator, *, width: int, height: int, taken: list[_Box], sides_px: tuple[int, int]
) -> _Box | None:
    """Return a random box that hardly overlaps the boxes ``taken``; None if no try gives one."""
    for _ in range(_PLACEMENT_TRIES):
        box_width, box_height = (int(side) for side in rng.integers(*sides_px, size=2))
        left = int(rng.integers(0, width - box_width))
        top = int(rng.integers(0, height - box_height))
        box = (left, top, box_width, box_height)
        if all(_overlap_fraction(box, other) <= _MAX_OVERLAP_FRACTION for other in taken):
            return box
    return None


def _overlap_fraction(a: _Box, b: _Box) -> float:
    """Return the overlap of two boxes as a fraction of the smaller one."""
    across = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    down = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    return max(across, 0) * max(down, 0) / min(a[2] * a[3], b[2] * b[3])


def _paint(rng: np.random.Generator, *, width: int, height: int, shapes: list[Shape]) -> Image.Image:
    level = rng.integers(150, 235)
    noise = rng.normal(level, 6, size=(height, width, 3)).clip(0, 255).astype(np.uint8)
    picture = Image.fromarray(noise)
    pen = ImageDraw.Draw(picture)
    for shape in shapes:
        base = np.array(list(COLOURS.values())[shape.category // len(SHAPES)])
        channels = (base + rng.integers(-18, 19, size=3)).clip(0, 255)
        colour = tuple(int(channel) for channel in channels)
        x, y, box_width, box_height = shape.box_px_xywh
        # The last row and column of pixels lie inside the box.
        right, bottom = x + box_width - 1, y + box_height - 1
        match SHAPES[shape.category % len(SHAPES)]:
            case "circle":
                pen.ellipse((x, y, right, bottom), fill=colour)
            case "square":
                pen.rectangle((x, y, right, bottom), fill=colour)
            case _:
                pen.polygon([(x + (box_width - 1) / 2, y), (right, bottom), (x, bottom)], fill=colour)
    return picture

"""The one rule for boxes, whatever format they come from.

- A box whose corners are swapped is put in order.
- A box that reaches over the edge of its image is clipped to the image.
- A box of no extent is no target.
- A box that lies wholly outside its image is a bad record: it belongs to another picture, or is in another frame.

Boxes of the first three kinds are counted, the number is said once, and none of them is a bad record.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SWAPPED = "boxes with swapped corners are put in order"
_CLIPPED = "boxes that reach over the edge are clipped to the image"
_NO_EXTENT = "boxes of no extent are left out"


@dataclass(frozen=True)
class RuledBoxes:
    """Boxes as the rule leaves them.

    Attributes:
        corners_xyxy: ``[N, 4]`` in order and inside the image.
        was_swapped: ``[N]`` whether left and right, or top and bottom, were the other way round.
        was_clipped: ``[N]`` whether the box reached over the edge of its image.
        has_extent: ``[N]`` whether the box had a width and a height before it was clipped.
        is_outside: ``[N]`` whether the box has an extent, and none of it is inside its image.
    """

    corners_xyxy: NDArray[np.float64]
    was_swapped: NDArray[np.bool_]
    was_clipped: NDArray[np.bool_]
    has_extent: NDArray[np.bool_]
    is_outside: NDArray[np.bool_]


def ordered_corners(corners_xyxy: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return ``[N, 4]`` corners with left before right and top before bottom, and ``[N]`` which boxes that changed."""
    first, second = corners_xyxy[:, :2], corners_xyxy[:, 2:]
    was_swapped = np.any(first > second, axis=1)
    ordered = np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=1)
    return ordered, was_swapped


def apply_box_rule(corners_xyxy: NDArray[np.float64], sizes: NDArray[np.float64]) -> RuledBoxes:
    """Put the corners of boxes in order, and clip the boxes to their images.

    Args:
        corners_xyxy: ``[N, 4]`` finite numbers.
        sizes: ``[N, 2]`` width and height of each box's image, in the unit of the corners (1 for fractions).
    """
    corners, was_swapped = ordered_corners(corners_xyxy)
    low, high = corners[:, :2], corners[:, 2:]
    has_extent = np.all(low < high, axis=1)
    was_clipped = np.any((low < 0) | (high > sizes), axis=1)
    clipped = np.concatenate([np.maximum(low, 0.0), np.minimum(high, sizes)], axis=1)
    is_empty = np.any(clipped[:, :2] >= clipped[:, 2:], axis=1)
    return RuledBoxes(clipped, was_swapped, was_clipped, has_extent, is_outside=has_extent & is_empty)


def box_notes(
    names: Callable[[int], str],
    *,
    clipped: Sequence[int],
    no_extent: Sequence[int],
    swapped: Sequence[int] = (),
) -> list[str]:
    """Return a sentence for each part of the rule that changed boxes, with their number and the first picture.

    Args:
        names: returns the name of the picture with a given number.
        clipped: for each box that was clipped, the number of its picture.
        no_extent: the same for each box that is left out.
        swapped: the same for each box that was put in order.
    """
    notes: list[str] = []
    for sentence, pictures in ((SWAPPED, swapped), (_CLIPPED, clipped), (_NO_EXTENT, no_extent)):
        if pictures:
            notes.append(f"{sentence}, the first of {names(min(pictures))} ({len(pictures):,} in all)")
    return notes

"""The one rule for boxes, whatever format they come from.

A box whose corners are swapped is put in order. A box that reaches over the edge of its image is clipped to it. A box
of no extent is no target. Each is counted and said once; none of them is a bad record. A box that lies wholly outside
its image is a bad record: it belongs to another picture, or is in another frame.
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
        has_extent: ``[N]`` whether it had a width and a height before it was clipped.
        is_outside: ``[N]`` whether it has an extent, and none of it is inside its image.
    """

    corners_xyxy: NDArray[np.float64]
    was_swapped: NDArray[np.bool_]
    was_clipped: NDArray[np.bool_]
    has_extent: NDArray[np.bool_]
    is_outside: NDArray[np.bool_]


def ordered_corners(corners_xyxy: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return ``[N, 4]`` corners with left before right and top before bottom, and which boxes that changed."""
    first, second = corners_xyxy[:, :2], corners_xyxy[:, 2:]
    was_swapped = np.any(first > second, axis=1)
    ordered = np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=1)
    return ordered, was_swapped


def apply_box_rule(corners_xyxy: NDArray[np.float64], sizes: NDArray[np.float64]) -> RuledBoxes:
    """Put the corners of boxes in order, and clip the boxes to their images.

    Args:
        corners_xyxy: ``[N, 4]`` finite numbers.
        sizes: ``[N, 2]`` width and height of the image of each, in the unit of the corners (1 for fractions).
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
        names: gives the name of the picture at a place.
        clipped: the place of the picture of each box that was clipped; so of the others.
        no_extent: of each box that is left out.
        swapped: of each box that was put in order.
    """
    notes: list[str] = []
    for sentence, places in ((SWAPPED, swapped), (_CLIPPED, clipped), (_NO_EXTENT, no_extent)):
        if places:
            notes.append(f"{sentence}, the first of {names(min(places))} ({len(places):,} in all)")
    return notes

"""Whether boxes look as if they stood in another frame than COCO's: left, top, width and height in pixels of the image.

Such a file breaks no rule, box by box; a model trained on it learns nonsense, and an AP of 0 is the first to say so.
"""

import numpy as np
from numpy.typing import NDArray

_FEWEST = 20
"""Boxes that show a frame; fewer may lie anywhere."""
_FEWEST_OF_SMALLER = 200
_SUSPICIOUS_REACH, _WRONG_REACH = 0.5, 0.6
"""Of an image's side; half is where copies of half the size end, and where few boxes may end by chance."""
_SLACK = 0.02
"""Of an image's side: annotations reach a little beyond their image everywhere."""


def frame_problem(boxes_px_xywh: NDArray[np.float64], sizes_px: NDArray[np.float64]) -> str | None:
    """Return what the boxes of a whole file look like, where that is not their image's pixels; else None.

    Args:
        boxes_px_xywh: ``[N, 4]`` as the file has them.
        sizes_px: ``[N, 2]`` width and height of each box's image.
    """
    if len(boxes_px_xywh) < _FEWEST:
        return None
    first, second = boxes_px_xywh[:, :2], boxes_px_xywh[:, 2:]
    reach = (first + second) / sizes_px
    is_beyond = (reach > 1 + _SLACK).any(axis=1)
    if boxes_px_xywh.max() <= 1.0 and sizes_px.min() > 1:
        return "all numbers lie in [0, 1]: they look like fractions of the image's sides"
    if (second > first).all() and (second <= sizes_px * (1 + _SLACK)).all() and is_beyond.mean() > _SLACK:
        return (
            f"{is_beyond.mean():.0%} of the boxes reach beyond their image, and none would as two corners: they look "
            "like left, top, right, bottom"
        )
    if is_beyond.mean() >= 0.5:
        return (
            f"{is_beyond.mean():.0%} of the boxes reach beyond their image: they look like pixels of larger copies, or "
            "of other images"
        )
    if len(reach) >= _FEWEST_OF_SMALLER and reach.max() < _WRONG_REACH:
        return (
            f"no box reaches beyond {reach.max():.0%} of its image's width or height: they look like pixels of smaller "
            "copies"
        )
    return None


def frame_doubt(boxes_px_xywh: NDArray[np.float64], sizes_px: NDArray[np.float64]) -> str | None:
    """Return what is odd about the boxes of a whole file that are too few for :func:`frame_problem`; else None.

    Args:
        boxes_px_xywh: ``[N, 4]`` as the file has them.
        sizes_px: ``[N, 2]`` width and height of each box's image.
    """
    if len(boxes_px_xywh) < _FEWEST:
        return None
    reach = ((boxes_px_xywh[:, :2] + boxes_px_xywh[:, 2:]) / sizes_px).max()
    if reach > _SUSPICIOUS_REACH + _SLACK:
        return None
    return (
        f"no box reaches beyond {reach:.0%} of its image's width or height: if objects are elsewhere too, these are "
        "pixels of smaller copies (coordexp inspect draws them)"
    )

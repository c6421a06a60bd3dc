"""EXIF orientations: how a viewer turns stored pixels, and boxes with them."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> how a viewer turns the stored pixels; 1, and any other value, leaves them."""
SWAPPING_ORIENTATIONS = (5, 6, 7, 8)
"""Orientations that swap width and height."""


def turn_picture(picture: Image.Image, orientation: int) -> Image.Image:
    """Return stored pixels as a viewer shows them."""
    turn = TURNS.get(orientation)
    return picture if turn is None else picture.transpose(turn)


def turn_boxes(boxes_norm_xyxy: NDArray[np.float64], orientation: int) -> NDArray[np.float64]:
    """Return boxes of the stored pixels as boxes of the picture that a viewer shows.

    Args:
        boxes_norm_xyxy: ``[M, 4]`` fractions of the stored width and height.
        orientation: EXIF's number, 1 to 8.

    Returns:
        ``[M, 4]`` fractions of the shown width and height.
    """
    x1, y1, x2, y2 = boxes_norm_xyxy.T
    turned = {
        2: (1 - x2, y1, 1 - x1, y2),
        3: (1 - x2, 1 - y2, 1 - x1, 1 - y1),
        4: (x1, 1 - y2, x2, 1 - y1),
        5: (y1, x1, y2, x2),
        6: (1 - y2, x1, 1 - y1, x2),
        7: (1 - y2, 1 - x2, 1 - y1, 1 - x1),
        8: (y1, 1 - x2, y2, 1 - x1),
    }
    return np.stack(turned.get(orientation, (x1, y1, x2, y2)), axis=1)

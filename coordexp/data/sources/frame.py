"""Whether boxes stand in pixels of their picture as COCO has them, or in another frame.

A file in another frame breaks no rule, box by box. A model trained on it learns nonsense, and an AP of 0 is the first
sign. So the boxes of a whole file are looked at together.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordexp.coord_tokens.validator import smart28
from coordexp.errors import DataError

Size = tuple[float, float]

_FEWEST = 20  # boxes that show a frame; fewer may lie anywhere
_FEWEST_OF_SMALLER = 200  # boxes that show pixels of smaller copies
_BEYOND_SHARE = 0.5  # of the boxes; so many reach beyond their image by no accident
_WRONG_REACH = 0.6  # of an image's side, beyond which no box of a wrong file reaches
_FEWEST_AT_EDGE = 3  # box edges at the edge of a resized copy; fewer may be there by chance
_AT_EDGE_PX = 0.75  # distance at which a box edge counts as at the edge of a picture
FRAME_SLACK = 0.02  # of an image's side: annotations reach a little beyond their image everywhere


def frame_problem(boxes_px_xywh: NDArray[np.float64], sizes_px: NDArray[np.float64]) -> str | None:
    """Return what the boxes of a whole file look like, if that is not pixels of their images; else None.

    Args:
        boxes_px_xywh: ``[N, 4]`` as the file has them.
        sizes_px: ``[N, 2]`` width and height of each box's image.
    """
    if len(boxes_px_xywh) < _FEWEST:
        return None
    first, second = boxes_px_xywh[:, :2], boxes_px_xywh[:, 2:]
    reach = (first + second) / sizes_px  # right and bottom edges, in fractions of the image
    is_beyond = (reach > 1 + FRAME_SLACK).any(axis=1)
    # A file in pixels has some box that is larger than one pixel.
    if boxes_px_xywh.max() <= 1.0:
        return "all numbers are in [0, 1]: they look like fractions of the image's sides"
    # Right and bottom are always greater than left and top, and inside the image. Widths and heights are not: a box in
    # the right half of its image is seldom as wide as its left edge is far.
    could_be_corners = (second > first).all() and (second <= sizes_px * (1 + FRAME_SLACK)).all()
    if could_be_corners and is_beyond.mean() > FRAME_SLACK:
        return (
            f"{is_beyond.mean():.0%} of the boxes reach beyond their image, and none would as two corners: they look "
            "like left, top, right, bottom"
        )
    if is_beyond.mean() >= _BEYOND_SHARE:
        return _beyond_sentence(float(is_beyond.mean()))
    # Of hundreds of boxes in photographs, some reach into the right or the lower part of their image.
    if len(reach) >= _FEWEST_OF_SMALLER and reach.max() < _WRONG_REACH:
        return (
            f"no box reaches beyond {reach.max():.0%} of its image's width or height: they look like pixels of smaller "
            "copies"
        )
    return None


def beyond_problem(corners_norm_xyxy: NDArray[np.float64]) -> str | None:
    """Return what the boxes ``[N, 4]`` of a whole file look like if most reach beyond their image; else None."""
    if len(corners_norm_xyxy) < _FEWEST:
        return None
    is_beyond = (corners_norm_xyxy > 1 + FRAME_SLACK).any(axis=1)
    return _beyond_sentence(float(is_beyond.mean())) if is_beyond.mean() >= _BEYOND_SHARE else None


def _beyond_sentence(share: float) -> str:
    return (
        f"{share:.0%} of the boxes reach beyond their image: they look like pixels of larger copies, or of other images"
    )


def check_frame(
    path: Path, boxes_px_xywh: NDArray[np.float64], sizes_px: NDArray[np.float64], *, max_bad_fraction: float
) -> str:
    """Return the :func:`frame_problem` of a file whose boxes are all to be taken as they are; "" without a problem.

    Args:
        path: the file, for the message.
        boxes_px_xywh: ``[N, 4]`` as the file has them.
        sizes_px: ``[N, 2]`` width and height of each box's image.
        max_bad_fraction: 1 takes all boxes as they are.

    Raises:
        DataError: if there is a problem, and ``max_bad_fraction`` is less than 1.
    """
    problem = frame_problem(boxes_px_xywh, sizes_px)
    if problem is not None and max_bad_fraction < 1:
        raise DataError(
            f"{path}: {problem}; expected left, top, width, height in pixels of each image. Correct them, or "
            "set data.max_bad_fraction (prepare: --max-bad-fraction) to 1 to take them as they are"
        )
    return problem or ""


class ResizedCopies:
    """Detects boxes in pixels of the copy to which Qwen2.5-VL's processor resizes a picture."""

    def __init__(self) -> None:
        self._num_at_copy_edge = 0
        self._num_at_picture_edge = 0
        self._num_beyond_copy = 0
        self._example = ""

    def look(self, boxes_px_xyxy: Sequence[Sequence[float]], width: object, height: object) -> None:
        """Count the edges of a picture's boxes at and beyond the edges of its resized copy.

        Args:
            boxes_px_xyxy: corners as the record has them.
            width: of the picture in pixels; anything else than a positive whole number is passed over.
            height: the same.
        """
        if not isinstance(width, int) or not isinstance(height, int) or min(width, height) < 1:
            return
        copy_size = smart28(width, height)
        for box in boxes_px_xyxy:
            right_and_bottom = box[2:]
            for end, picture_side, copy_side in zip(right_and_bottom, (width, height), copy_size, strict=True):
                if picture_side == copy_side:
                    continue  # the edge of the copy tells nothing
                is_at_copy_edge = abs(end - copy_side) < _AT_EDGE_PX
                self._num_at_copy_edge += is_at_copy_edge
                self._num_at_picture_edge += abs(end - picture_side) < _AT_EDGE_PX
                self._num_beyond_copy += not is_at_copy_edge and end > copy_side
                if is_at_copy_edge and not self._example:
                    self._example = f"{copy_size[0]} x {copy_size[1]} for {width} x {height}"

    def refuse(self, path: Path) -> None:
        """Raise a DataError if boxes end at the copies' edges, and none beyond or at a picture's own edge."""
        is_picture_reached = self._num_at_picture_edge or self._num_beyond_copy
        if self._num_at_copy_edge >= _FEWEST_AT_EDGE and not is_picture_reached:
            raise DataError(
                f"{path}: {self._num_at_copy_edge} boxes end where the copy does to which Qwen2.5-VL's processor "
                f"resizes the picture ({self._example}), and none beyond or at its own edge: they look like pixels of "
                "the copy; data.bbox_format=smart28 reads them so"
            )

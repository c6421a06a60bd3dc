"""In which frame boxes stand: pixels of the picture as COCO has them, or others; of the stored picture, or as shown.

A file in another frame breaks no rule, box by box; a model trained on it learns nonsense, and an AP of 0 is the first
to say so.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordexp.coord_tokens.validator import smart28
from coordexp.errors import DataError

Size = tuple[float, float]

_FEWEST = 20  # boxes that show a frame; fewer may lie anywhere
_FEWEST_OF_SMALLER = 200
_BEYOND_SHARE = 0.5
_WRONG_REACH = 0.6  # of an image's side
_FEWEST_AT_EDGE = 3  # box edges at the edge of a resized copy; fewer may be there by chance
FRAME_SLACK = 0.02  # of an image's side: annotations reach a little beyond their image everywhere


def frame_problem(boxes_px_xywh: NDArray[np.float64], sizes_px: NDArray[np.float64]) -> str | None:
    """Return what the boxes of a whole file look like, where that is not their image's pixels; else None.

    Boxes ``[N, 4]`` are as the file has them, sizes ``[N, 2]`` width and height of each one's image.
    """
    if len(boxes_px_xywh) < _FEWEST:
        return None
    first, second = boxes_px_xywh[:, :2], boxes_px_xywh[:, 2:]
    reach = (first + second) / sizes_px
    is_beyond = (reach > 1 + FRAME_SLACK).any(axis=1)
    if boxes_px_xywh.max() <= 1.0:
        return "all numbers are in [0, 1]: they look like fractions of the image's sides"
    if (second > first).all() and (second <= sizes_px * (1 + FRAME_SLACK)).all() and is_beyond.mean() > FRAME_SLACK:
        return (
            f"{is_beyond.mean():.0%} of the boxes reach beyond their image, and none would as two corners: they look "
            "like left, top, right, bottom"
        )
    if is_beyond.mean() >= _BEYOND_SHARE:
        return _beyond_sentence(float(is_beyond.mean()))
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
    """Refuse a file whose boxes have a :func:`frame_problem`, or return it where all are to be taken; else ""."""
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
        self._at_edge = self._at_own = self._between = 0
        self._example = ""

    def look(self, boxes_px_xyxy: Sequence[Sequence[float]], width: object, height: object) -> None:
        """Count the edges of a picture's boxes at and beyond the edges of that copy."""
        if not isinstance(width, int) or not isinstance(height, int) or min(width, height) < 1:
            return
        copy = smart28(width, height)
        for box in boxes_px_xyxy:
            for end, own, resized in zip(box[2:], (width, height), copy, strict=True):
                if own == resized:
                    continue
                is_at_edge = abs(end - resized) < 0.75
                self._at_edge += is_at_edge
                self._at_own += abs(end - own) < 0.75
                self._between += not is_at_edge and end > resized
                if is_at_edge and not self._example:
                    self._example = f"{copy[0]} x {copy[1]} for {width} x {height}"

    def refuse(self, path: Path) -> None:
        """Refuse a file whose boxes end at the copy's edges and never beyond them: a key reads such boxes."""
        if self._at_edge >= _FEWEST_AT_EDGE and not self._at_own and not self._between:
            raise DataError(
                f"{path}: {self._at_edge} boxes end where the copy does to which Qwen2.5-VL's processor resizes the "
                f"picture ({self._example}), and none beyond or at its own edge: they look like pixels of the copy; "
                "data.bbox_format=smart28 reads them so"
            )

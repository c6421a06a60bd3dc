"""In which frame boxes stand: pixels of the picture as COCO has them, or others; of the stored picture, or as shown.

A file in another frame breaks no rule, box by box; a model trained on it learns nonsense, and an AP of 0 is the first
to say so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordexp.coord_tokens.validator import smart28
from coordexp.data.image_file import Header
from coordexp.data.reading import BoxesIn
from coordexp.errors import DataError

Size = tuple[float, float]

_FEWEST = 20  # boxes that show a frame; fewer may lie anywhere
_FEWEST_OF_SMALLER = 200
_BEYOND_SHARE = 0.5
_WRONG_REACH = 0.6  # of an image's side
_FEWEST_AT_EDGE = 3  # box edges at the edge of a resized copy; fewer may be there by chance
_SLACK = 0.02  # of an image's side: annotations reach a little beyond their image everywhere


def frame_problem(boxes_px_xywh: NDArray[np.float64], sizes_px: NDArray[np.float64]) -> str | None:
    """Return what the boxes of a whole file look like, where that is not their image's pixels; else None.

    Boxes ``[N, 4]`` are as the file has them, sizes ``[N, 2]`` width and height of each one's image.
    """
    if len(boxes_px_xywh) < _FEWEST:
        return None
    first, second = boxes_px_xywh[:, :2], boxes_px_xywh[:, 2:]
    reach = (first + second) / sizes_px
    is_beyond = (reach > 1 + _SLACK).any(axis=1)
    if boxes_px_xywh.max() <= 1.0:
        return "all numbers are in [0, 1]: they look like fractions of the image's sides"
    if (second > first).all() and (second <= sizes_px * (1 + _SLACK)).all() and is_beyond.mean() > _SLACK:
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
    is_beyond = (corners_norm_xyxy > 1 + _SLACK).any(axis=1)
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


@dataclass(frozen=True)
class Turned:
    """Pictures that a viewer turns, by their place."""

    headers: Mapping[int, Header]
    stored: frozenset[int]  # those whose boxes are of the stored pixels
    why: str  # what told the frame; "" where nothing did

    def frame(self, place: int) -> Size:
        return self.headers[place][:2] if place in self.stored else self.headers[place].shown

    def said(self, num_images: int) -> tuple[list[str], list[str]]:
        """Return what a person must know of them: warnings, where the frame is not sure, and notes."""
        if not self.headers:
            return [], []
        frame = {0: "the picture as shown", len(self.headers): "the stored pixels, and are turned with it"}.get(
            len(self.stored),
            f"the stored pixels in {len(self.stored):,} of them, and of the picture as shown in the others",
        )
        sentence = (
            f"{len(self.headers):,} of {num_images:,} pictures are turned by EXIF, and read as a viewer shows them; "
            f"their boxes are taken to be of {frame} (by {self.why or 'the rule, since nothing tells'}); "
            "data.boxes_in=shown or =stored (prepare, evaluate: --boxes-in) says otherwise; coordexp inspect draws them"
        )
        # Sizes of the stored picture are what most tools write, whatever they draw boxes on.
        is_sure = self.why not in ("", _SIZES) or (self.why == _SIZES and not self.stored)
        return ([], [sentence]) if is_sure else ([sentence], [])


_SIZES = "the sizes beside them"


def find_turned(
    headers: Mapping[int, Header],
    recorded: Mapping[int, Size | None],
    reach: Mapping[int, Size],
    boxes_in: BoxesIn,
) -> Turned:
    """Return in which frame the boxes of turned pictures stand.

    ``auto``: boxes that fit only one of the two frames decide for all pictures; else the recorded size does, picture
    by picture, and where that cannot tell (none, square, turned upside down) what it says of the others; else boxes are
    as shown.

    All is by the place of a turned picture: ``recorded`` its size in the annotations, None where they have none, and
    ``reach`` the right and the bottom end of all its boxes, in pixels.
    """
    if boxes_in != "auto":
        return Turned(headers, frozenset(headers if boxes_in == "stored" else ()), "data.boxes_in")
    fits = {True: 0, False: 0}
    says: dict[int, bool] = {}
    for place, header in headers.items():
        stored, shown = header[:2], header.shown
        if stored == shown:
            continue
        if place in reach:
            in_stored, in_shown = (_holds(size, reach[place]) for size in (stored, shown))
            if in_stored != in_shown:
                fits[in_stored] += 1
        if (size := recorded[place]) in (stored, shown):
            says[place] = size == stored
    if fits[True] != fits[False]:
        is_stored = fits[True] > fits[False]
        return Turned(headers, frozenset(headers if is_stored else ()), "boxes that fit no other frame")
    usual = sum(says.values()) * 2 > len(says)
    stored_ones = frozenset(place for place in headers if says.get(place, usual))
    return Turned(headers, stored_ones, _SIZES if says else "")


def _holds(size_px: Size, reach_px: Size) -> bool:
    return all(end <= side * (1 + _SLACK) for end, side in zip(reach_px, size_px, strict=True))


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

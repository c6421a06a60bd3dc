"""Pictures that EXIF turns: whether their boxes are of the stored pixels or of the shown picture.

A tool that ignores EXIF draws boxes on the stored pixels, another one on the picture as shown. The sizes that a file
records are of little help: most tools write the stored size, whatever they draw boxes on.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from coordexp.data.images.files import Header
from coordexp.data.reading import BoxesIn
from coordexp.data.sources.frame import FRAME_SLACK, Size

_BY_KEY = "data.boxes_in"
_BY_FIT = "boxes that fit no other frame"
_BY_SIZES = "the sizes beside them"


@dataclass(frozen=True)
class Turned:
    """Pictures that a viewer turns, by their index among the pictures of a split.

    Attributes:
        headers: of the turned pictures.
        stored: those whose boxes are of the stored pixels.
        why: what told the frame; "" if nothing did, and the rule decided.
    """

    headers: Mapping[int, Header]
    stored: frozenset[int]
    why: str

    def frame(self, index: int) -> Size:
        """Return width and height in pixels of the frame in which a picture's boxes stand."""
        header = self.headers[index]
        return header[:2] if index in self.stored else header.shown

    def sentences(self, num_images: int) -> tuple[list[str], list[str]]:
        """Return what a person must know of the turned pictures: warnings if the frame is not sure, and notes.

        Args:
            num_images: pictures of the split, turned or not.
        """
        if not self.headers:
            return [], []
        if not self.stored:
            frame = "the picture as shown"
        elif len(self.stored) == len(self.headers):
            frame = "the stored pixels, and are turned with it"
        else:
            frame = f"the stored pixels in {len(self.stored):,} of them, and of the picture as shown in the others"
        sentence = (
            f"{len(self.headers):,} of {num_images:,} pictures are turned by EXIF, and read as a viewer shows them; "
            f"their boxes are taken to be of {frame} (by {self.why or 'the rule, since nothing tells'}); "
            "data.boxes_in=shown or =stored (prepare, evaluate: --boxes-in) says otherwise; coordexp inspect draws them"
        )
        # Recorded stored sizes prove nothing: most tools write them. Recorded shown sizes come from a tool that knows.
        is_sure = self.why in (_BY_KEY, _BY_FIT) or (self.why == _BY_SIZES and not self.stored)
        return ([], [sentence]) if is_sure else ([sentence], [])


def find_turned(
    headers: Mapping[int, Header],
    recorded: Mapping[int, Size | None],
    reach: Mapping[int, Size],
    boxes_in: BoxesIn,
) -> Turned:
    """Return in which frame the boxes of turned pictures stand.

    Under ``auto``, the first of these decides:

    1. boxes that fit only one of the two frames, for all pictures together;
    2. the recorded size of a picture, for that picture;
    3. what the recorded sizes of the other pictures say most often, for pictures whose size cannot tell (none is
       recorded, or both frames have the same size);
    4. the rule: boxes are of the picture as shown.

    Args:
        headers: of the turned pictures, by their index; so are the next two.
        recorded: width and height in the annotations; None without.
        reach: right and bottom end of all boxes of a picture, in pixels; absent for a picture without boxes.
        boxes_in: ``data.boxes_in``.
    """
    if boxes_in != "auto":
        return Turned(headers, frozenset(headers if boxes_in == "stored" else ()), _BY_KEY)
    num_fit_stored_only = 0
    num_fit_shown_only = 0
    is_recorded_stored: dict[int, bool] = {}
    for index, header in headers.items():
        stored, shown = header[:2], header.shown
        if stored == shown:
            continue
        if index in reach:
            fits_stored = _fits(stored, reach[index])
            fits_shown = _fits(shown, reach[index])
            num_fit_stored_only += fits_stored and not fits_shown
            num_fit_shown_only += fits_shown and not fits_stored
        size = recorded[index]
        if size in (stored, shown):
            is_recorded_stored[index] = size == stored
    if num_fit_stored_only != num_fit_shown_only:
        are_stored = num_fit_stored_only > num_fit_shown_only
        return Turned(headers, frozenset(headers if are_stored else ()), _BY_FIT)
    is_usually_stored = sum(is_recorded_stored.values()) * 2 > len(is_recorded_stored)
    stored_pictures = frozenset(index for index in headers if is_recorded_stored.get(index, is_usually_stored))
    return Turned(headers, stored_pictures, _BY_SIZES if is_recorded_stored else "")


def _fits(size_px: Size, reach_px: Size) -> bool:
    """Return whether boxes of a reach lie inside a picture of a size."""
    return all(end <= side * (1 + FRAME_SLACK) for end, side in zip(reach_px, size_px, strict=True))

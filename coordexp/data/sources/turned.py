"""Pictures that EXIF turns: whether their boxes are of the stored pixels or of the shown picture."""

from collections.abc import Mapping
from dataclasses import dataclass

from coordexp.data.images.files import Header
from coordexp.data.reading import BoxesIn
from coordexp.data.sources.frame import FRAME_SLACK, Size


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
    return all(end <= side * (1 + FRAME_SLACK) for end, side in zip(reach_px, size_px, strict=True))

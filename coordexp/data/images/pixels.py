"""Pixels of pictures as people see them: turned as EXIF says, and on white where they are transparent."""

from pathlib import Path

import numpy as np
from PIL import Image

from coordexp.data.images.files import Header, header_of, opened_picture
from coordexp.data.images.orientation import SWAPPING_ORIENTATIONS, turn_picture
from coordexp.errors import DataError

_MAX_16_BIT = 65_535
_16_TO_8_BIT = 257
"""65,535 becomes 255."""


def read_image(path: Path, *, width: int | None = None, height: int | None = None) -> Image.Image:
    """Decode an image file to RGB as people see it.

    Args:
        path: the image file.
        width: pixels that the shown picture must have; None accepts any.
        height: the same.

    Raises:
        DataError: if the file is missing, does not decode, is too large, or has another size.
    """
    with opened_picture(path) as picture:
        header = header_of(picture, path)
        _check_size(header, path, width=width, height=height)
        return turn_picture(_to_rgb(picture, path), header.orientation)


def check_image(path: Path, *, width: int, height: int) -> None:
    """Check the size of an image as shown, and that all of it decodes; errors are those of :func:`read_image`."""
    with opened_picture(path) as picture:
        _check_size(header_of(picture, path), path, width=width, height=height)
        # A JPEG decodes to an eighth of its size in a third of the time; other formats ignore the draft.
        picture.draft("L", (max(1, width // 8), max(1, height // 8)))
        picture.load()


def thumbnail(path: Path, *, width: int, height: int) -> Image.Image:
    """Return a small picture in grey, as people see it; of a JPEG, only every eighth pixel is decoded.

    Raises:
        DataError: if the file is missing or does not decode.
    """
    with opened_picture(path) as picture:
        header = header_of(picture, path)
        picture.draft("L", (8 * width, 8 * height))
        turned = turn_picture(picture.convert("L"), header.orientation)
        return turned.resize((width, height), Image.Resampling.BOX)


def _check_size(header: Header, path: Path, *, width: int | None, height: int | None) -> None:
    shown_width, shown_height = header.shown
    if width in (None, shown_width) and height in (None, shown_height):
        return
    turned = (
        f", as EXIF orientation {header.orientation} shows it" if header.orientation in SWAPPING_ORIENTATIONS else ""
    )
    raise DataError(
        f"{path}: the image is {shown_width} x {shown_height} pixels{turned}, its annotation says {width} x {height}"
    )


def _to_rgb(picture: Image.Image, path: Path) -> Image.Image:
    if picture.mode == "F":
        raise DataError(f"{path}: the pixels are floating-point numbers of no defined range; expected whole numbers")
    if picture.mode.startswith("I"):
        # Pillow would clip 16-bit values at 255: nearly all of the picture would be white.
        values = np.asarray(picture, dtype=np.float64)
        if values.min() < 0 or values.max() > _MAX_16_BIT:
            raise DataError(f"{path}: the pixels reach {values.min():g} and {values.max():g}; expected at most 16 bits")
        return Image.fromarray((values / _16_TO_8_BIT).round().astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        pixels = picture.convert("RGBA")
        white = Image.new("RGBA", pixels.size, "white")
        return Image.alpha_composite(white, pixels).convert("RGB")
    return picture.convert("RGB")

"""Image files: opening them, and what they say before their pixels; only DataError, whatever a file holds."""

import struct
import warnings
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from PIL import ExifTags, Image, UnidentifiedImageError

from coordexp.data.images.orientation import SWAPPING_ORIENTATIONS, TURNS
from coordexp.errors import DataError
from coordexp.files import lfs_problem

MAX_IMAGE_PIXELS = 120_000_000
MAX_IMAGE_SIDE_PX = 32_768
_MAX_ASPECT_RATIO = 200
# Only formats of photographs: Pillow also opens EPS (by running Ghostscript) and some twenty rare formats, which would
# only widen what a damaged or malicious file can reach.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
_PNG_METADATA = frozenset(("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"))
# What Pillow's plugins raise on damaged files, besides its own UnidentifiedImageError (an OSError); found by fuzzing.
_DECODE_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    ArithmeticError,
    NotImplementedError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


class Header(NamedTuple):
    """What an image file says before its pixels.

    Attributes:
        width: of the stored pixels.
        height: of the stored pixels.
        orientation: how a viewer turns the stored pixels: EXIF's number, 1 to 8, where 1 leaves them.
    """

    width: int
    height: int
    orientation: int

    @property
    def shown(self) -> tuple[int, int]:
        """Width and height in pixels as a viewer shows the picture."""
        if self.orientation in SWAPPING_ORIENTATIONS:
            return self.height, self.width
        return self.width, self.height


def size_problem(width: int, height: int) -> str | None:
    """Return why an image of this size in pixels cannot be used; None if it can."""
    if width * height > MAX_IMAGE_PIXELS:
        return f"{width} x {height} pixels is too large (limit {MAX_IMAGE_PIXELS})"
    if max(width, height) > MAX_IMAGE_SIDE_PX:
        return f"{width} x {height} pixels is too large (limit {MAX_IMAGE_SIDE_PX} a side)"
    if max(width, height) > _MAX_ASPECT_RATIO * min(width, height):
        return f"{width} x {height} pixels is too elongated (limit {_MAX_ASPECT_RATIO}:1)"
    return None


@contextmanager
def opened_picture(path: Path) -> Generator[Image.Image]:
    """Open an image file for the length of a block; errors of the block's decoding become DataErrors as well.

    Raises:
        DataError: if the file is missing, cannot be read, is a Git LFS pointer, or does not decode.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise DataError(f"{path}: image not found") from None
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read ({error.strerror})") from None
    try:
        # Pillow warns of large images (our own limit is stricter) and of odd metadata (not used here). The filter is
        # never taken back: filters are shared by all threads, and other threads may be opening images.
        warnings.filterwarnings("ignore", module="PIL")
        with file, Image.open(file, formats=_formats()) as picture:
            yield picture
    except DataError:
        raise
    except UnidentifiedImageError:
        pointer = lfs_problem(path)
        if pointer:
            raise DataError(pointer) from None
        expected = ", ".join(_formats())
        raise DataError(f"{path}: image does not decode (cannot identify it, expected {expected})") from None
    except _DECODE_ERRORS as error:
        raise DataError(f"{path}: image does not decode ({error})") from None


@lru_cache(maxsize=1)
def _formats() -> tuple[str, ...]:
    Image.init()
    # A build of Pillow may lack a codec, and asking for a format without one raises.
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def header_of(picture: Image.Image, path: Path) -> Header:
    """Return the header of an opened picture, or raise a DataError if the picture is too large."""
    problem = size_problem(*picture.size)
    if problem is not None:
        raise DataError(f"{path}: {problem}")
    if picture.format == "PNG" and not _PNG_METADATA & picture.info.keys():
        # Pillow would decode all pixels of a PNG to look for EXIF behind them.
        return Header(*picture.size, 1)
    try:
        orientation = picture.getexif().get(ExifTags.Base.Orientation)
    except _DECODE_ERRORS:
        orientation = 1  # the metadata are damaged; the picture may be whole
    return Header(picture.width, picture.height, orientation if orientation in TURNS else 1)

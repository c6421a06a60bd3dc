"""Image files: headers and pixels; only DataError, whatever a file holds.

A picture is read as people see it: turned as its EXIF tag says, and on white where it is transparent.
"""

import struct
import warnings
import zlib
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from coordexp.errors import DataError
from coordexp.files import lfs_problem
from coordexp.stages import report_stage

MAX_IMAGE_PIXELS = 120_000_000
MAX_IMAGE_SIDE_PX = 32_768
_MAX_ASPECT_RATIO = 200
# Only formats of photographs: Pillow also opens EPS (by running Ghostscript) and some twenty rare formats.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
# Formats without a place for EXIF; by the name of the file, so that it is not opened to look.
_WITHOUT_EXIF = (".bmp", ".gif", ".ppm")
# Headers read at once, so that a disk elsewhere does not answer one after the other.
_HEADER_READERS = 8
_HEADERS_OF_A_TASK = 64
_MAX_16_BIT = 65_535
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> how a viewer turns the stored pixels; 1, and what is no orientation, leaves them."""
_SWAPPING = (5, 6, 7, 8)
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
    """What an image file says before its pixels: their size as stored, and how a viewer turns them (EXIF, 1 to 8)."""

    width: int
    height: int
    orientation: int

    @property
    def shown(self) -> tuple[int, int]:
        return (self.height, self.width) if self.orientation in _SWAPPING else (self.width, self.height)


def read_image(path: Path, *, width: int | None = None, height: int | None = None) -> Image.Image:
    """Decode an image file to RGB as people see it: EXIF orientation applied, transparency on white.

    ``width`` and ``height`` are those that the shown picture must have, in pixels; None accepts any.

    Raises:
        DataError: if the file is missing, does not decode, is too large, or has another size.
    """
    with _opened(path) as picture:
        header = _header(picture, path)
        _check_size(header, path, width=width, height=height)
        pixels = _to_rgb(picture, path)
        return pixels.transpose(_TURNS[header.orientation]) if header.orientation in _TURNS else pixels


def check_image(path: Path, *, width: int, height: int) -> None:
    """Check the size of an image as shown, and that all of it decodes; as :func:`read_image` does."""
    with _opened(path) as picture:
        _check_size(_header(picture, path), path, width=width, height=height)
        picture.draft("L", (max(1, width // 8), max(1, height // 8)))  # of JPEG: a third of the time
        picture.load()


def thumbnail(path: Path, *, width: int, height: int) -> Image.Image:
    """Return a small picture in grey, as people see it; of a JPEG only every eighth pixel is decoded.

    Raises:
        DataError: if the file is missing or does not decode.
    """
    with _opened(path) as picture:
        header = _header(picture, path)
        picture.draft("L", (8 * width, 8 * height))
        small = picture.convert("L")
        turned = small.transpose(_TURNS[header.orientation]) if header.orientation in _TURNS else small
        return turned.resize((width, height), Image.Resampling.BOX)


def read_header(path: Path) -> Header:
    """Return what an image file says before its pixels; within :func:`headers_once`, a file is opened once.

    Raises:
        DataError: if the file is missing, is no picture, or is too large.
    """
    kept = _kept_headers.headers
    if kept is None:
        return _read_header(path)
    if path not in kept:
        try:
            kept[path] = _read_header(path)
        except DataError as error:
            kept[path] = error
    known = kept[path]
    if isinstance(known, DataError):
        raise DataError(str(known))
    return known


def _read_header(path: Path) -> Header:
    with _opened(path) as picture:
        return _header(picture, path)


@dataclass
class _KeptHeaders:
    """What :func:`headers_once` keeps: nothing outside of it, since a picture may change."""

    headers: dict[Path, "Header | DataError"] | None = None


_kept_headers = _KeptHeaders()


@contextmanager
def headers_once() -> Generator[None]:
    """Open each picture once while the block runs, however often its header is asked for."""
    _kept_headers.headers = {}
    try:
        yield
    finally:
        _kept_headers.headers = None


def read_headers_ahead(paths: Sequence[Path]) -> None:
    """Read headers several at once, for a reader that asks for one after the other (only in :func:`headers_once`)."""
    if _kept_headers.headers is not None:
        turned_headers(paths)


def turned_headers(paths: Sequence[Path]) -> dict[int, Header]:
    """Return the headers of the readable pictures that a viewer turns or mirrors, by their place."""

    def headers_of(batch: Sequence[Path]) -> list[Header | None]:
        headers: list[Header | None] = []
        for path in batch:
            header = None
            if path.suffix.lower() not in _WITHOUT_EXIF:
                with suppress(DataError):  # said where the picture is used
                    header = read_header(path)
            headers.append(header)
        return headers

    turned: dict[int, Header] = {}
    done = 0
    # A task for many pictures: handing one over takes as long as reading a header.
    batches = [paths[start : start + _HEADERS_OF_A_TASK] for start in range(0, len(paths), _HEADERS_OF_A_TASK)]
    with ThreadPoolExecutor(_HEADER_READERS) as pool:
        for headers in pool.map(headers_of, batches):
            for place, header in enumerate(headers, start=done):
                if header is not None and header.orientation != 1:
                    turned[place] = header
            done += len(headers)
            report_stage("headers of pictures read", done, len(paths))
    return turned


def turn_boxes(boxes_norm_xyxy: NDArray[np.float64], orientation: int) -> NDArray[np.float64]:
    """Return ``[M, 4]`` boxes of the stored pixels in the picture as a viewer shows it."""
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
def _opened(path: Path) -> Generator[Image.Image]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise DataError(f"{path}: image not found") from None
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read ({error.strerror})") from None
    try:
        # Pillow warns of large images (our own limit is stricter) and of odd metadata (not used here). The filter
        # stays: one that is taken back would be taken back under other threads that open images.
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
    Image.init()  # a build of Pillow may lack a codec, and asking it for that one raises
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _header(picture: Image.Image, path: Path) -> Header:
    if (problem := size_problem(*picture.size)) is not None:
        raise DataError(f"{path}: {problem}")
    if picture.format == "PNG" and not _PNG_METADATA & picture.info.keys():
        return Header(*picture.size, 1)  # Pillow would decode the pixels, to look behind them
    try:
        found = picture.getexif().get(ExifTags.Base.Orientation)
    except _DECODE_ERRORS:  # damaged metadata of a picture that may be whole
        found = 1
    return Header(picture.width, picture.height, found if found in _TURNS else 1)


def _check_size(header: Header, path: Path, *, width: int | None, height: int | None) -> None:
    shown = header.shown
    if width not in (None, shown[0]) or height not in (None, shown[1]):
        turned = f", as EXIF orientation {header.orientation} shows it" if header.orientation in _SWAPPING else ""
        raise DataError(
            f"{path}: the image is {shown[0]} x {shown[1]} pixels{turned}, its annotation says {width} x {height}"
        )


def _to_rgb(picture: Image.Image, path: Path) -> Image.Image:
    if picture.mode == "F":
        raise DataError(f"{path}: the pixels are floating-point numbers of no defined range; expected whole numbers")
    if picture.mode.startswith("I"):
        values = np.asarray(picture, dtype=np.float64)
        if values.min() < 0 or values.max() > _MAX_16_BIT:
            raise DataError(f"{path}: the pixels reach {values.min():g} and {values.max():g}; expected at most 16 bits")
        return Image.fromarray((values / 257).round().astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        pixels = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", pixels.size, "white"), pixels).convert("RGB")
    return picture.convert("RGB")

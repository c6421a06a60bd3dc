"""Image file -> RGB pixels: refused by its header if it is too large, and only DataError whatever it holds."""

import struct
import warnings
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

from coordexp.errors import DataError

MAX_IMAGE_PIXELS = 120_000_000
MAX_IMAGE_SIDE_PX = 32_768
_MAX_ASPECT_RATIO = 200
# Only formats of photographs: Pillow also opens EPS (by running Ghostscript) and some twenty rare formats.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
_MAX_16_BIT = 65_535
_SWAPPING_ORIENTATIONS = (5, 6, 7, 8)  # EXIF: the picture is shown turned by 90 degrees
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


def read_image(path: Path, *, width: int | None = None, height: int | None = None) -> Image.Image:
    """Decode an image file to RGB: the stored pixels, EXIF orientation not applied.

    COCO's ``width``, ``height`` and boxes are those of the stored pixels, and its own tools read
    them so; a picture turned by its EXIF tag would no longer fit its boxes. An annotation whose
    size fits only the turned picture was made on what a viewer shows: it is refused, since its
    neighbours that are turned by 180 degrees cannot be distinguished from others by their size.

    Args:
        path: image file.
        width: expected width in pixels, from the annotations; None to accept any.
        height: expected height in pixels.

    Raises:
        DataError: if the file is missing, does not decode, is too large, or has another size.
    """
    with _opened(path) as picture:
        _check_size(picture, path, width=width, height=height)
        return _to_rgb(picture, path)


def check_image(path: Path, *, width: int, height: int) -> None:
    """Check an image's header against its annotation, without decoding it.

    Raises:
        DataError: if the file is missing, is no image, is too large, or has another size.
    """
    with _opened(path) as picture:
        _check_size(picture, path, width=width, height=height)


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
        # Pillow warns of large images (our own limit is stricter) and of odd metadata (not used here). The filter
        # stays: one that is taken back would be taken back under other threads that open images.
        warnings.filterwarnings("ignore", module="PIL")
        with Image.open(path, formats=_formats()) as picture:
            yield picture
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: image not found") from None
    except _DECODE_ERRORS as error:
        raise DataError(f"{path}: image does not decode ({error})") from None


@lru_cache(maxsize=1)
def _formats() -> tuple[str, ...]:
    Image.init()  # a build of Pillow may lack a codec, and asking it for that one raises
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _check_size(picture: Image.Image, path: Path, *, width: int | None, height: int | None) -> None:
    problem = size_problem(picture.width, picture.height)
    if problem is not None:
        raise DataError(f"{path}: {problem}")
    if (width is None or picture.width == width) and (height is None or picture.height == height):
        return
    message = f"the image is {picture.width} x {picture.height} pixels, its annotation says {width} x {height}"
    if (picture.height, picture.width) == (width, height):
        orientation = picture.getexif().get(ExifTags.Base.Orientation)
        if orientation in _SWAPPING_ORIENTATIONS:
            message += (
                f", which is how EXIF orientation {orientation} shows it; boxes are taken to be those of the stored "
                "pixels, as COCO's tools do: store the picture upright"
            )
    raise DataError(f"{path}: {message}")


def _to_rgb(picture: Image.Image, path: Path) -> Image.Image:
    if picture.mode == "F":
        raise DataError(f"{path}: the pixels are floating-point numbers of no defined range; expected whole numbers")
    if picture.mode.startswith("I"):
        values = np.asarray(picture, dtype=np.float64)
        if values.min() < 0 or values.max() > _MAX_16_BIT:
            raise DataError(f"{path}: the pixels reach {values.min():g} and {values.max():g}; expected at most 16 bits")
        return Image.fromarray((values / 257).round().astype(np.uint8)).convert("RGB")
    return picture.convert("RGB")

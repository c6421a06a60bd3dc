"""Image files: their names in an image folder, and their pixels; only DataError, whatever a name or a file holds."""

import os
import struct
import warnings
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from coordexp.errors import DataError, is_text, show

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


def stored_size(path: Path) -> tuple[int, int]:
    """Return width and height of the stored pixels from an image's header, without decoding it.

    Raises:
        DataError: if the file is missing, is no image, or is too large.
    """
    with _opened(path) as picture:
        return picture.size


def orientation(path: Path) -> int:
    """Return how a viewer turns a picture by its EXIF tag, 2 to 8; 1 where it shows the stored pixels.

    Raises:
        DataError: if the file is missing, or is no image.
    """
    with _opened(path) as picture:
        try:
            found = picture.getexif().get(ExifTags.Base.Orientation)
        except _DECODE_ERRORS:  # damaged metadata of a picture that may be whole
            return 1
        return found if isinstance(found, int) and 2 <= found <= 8 else 1


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
        expected = ", ".join(_formats())
        raise DataError(f"{path}: image does not decode (cannot identify it, expected {expected})") from None
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


class ImageFolder:
    """The root of the images of an annotation file.

    Existence is looked up in one listing for each folder: a call for each of 118,000 files takes
    minutes on a network disk. A link is followed, and refused where it leaves the root (the root
    itself may be a link).
    """

    def __init__(self, root: Path, *, check: bool = True) -> None:
        """Open ``root``.

        Args:
            root: image folder.
            check: whether files must exist.

        Raises:
            DataError: if ``root`` must exist and is no folder.
        """
        if check and not root.is_dir():
            raise DataError(f"{root}: no such image folder")
        self.root = root
        self._real_root = os.path.realpath(root)
        self._check = check
        self._listings: dict[str, dict[str, bool]] = {}

    def path_of(self, name: object) -> Path:
        """Return the path of the image ``name``.

        Raises:
            DataError: if ``name`` is no file name, leaves the folder, or does not exist in it.
        """
        relative = self.relative_name(name)
        self.find(relative)
        return self.root / relative

    def relative_name(self, name: object) -> str:
        """Return an image's name relative to the folder, without looking at the disk.

        Args:
            name: what an annotation says: relative to the folder, or absolute and inside.

        Raises:
            DataError: if ``name`` is no file name, or leaves the folder.
        """
        if not isinstance(name, str) or not is_text(name) or "\0" in name:
            raise DataError(f"the image file name is {show(name)}, expected the name of a file")
        if "/" not in name and name not in {".", ".."}:
            return name
        relative = PurePosixPath(name)
        if relative.is_absolute():
            absolute_root = PurePosixPath(self.root.absolute())
            if not relative.is_relative_to(absolute_root):
                raise DataError(f"the image path {show(name)} leaves the image folder {self.root}")
            relative = relative.relative_to(absolute_root)
        if ".." in relative.parts or not relative.name:
            raise DataError(f"the image path {show(name)} leaves the image folder {self.root}")
        return relative.as_posix()

    def find(self, relative: str) -> None:
        """Look up a name that :func:`relative_name` returned.

        Raises:
            DataError: if there is no such file, or it is a link that leaves the folder.
        """
        if not self._check:
            return
        folder, _, name = relative.rpartition("/")
        is_link = self._listing(folder).get(name)
        if is_link is None:
            raise DataError(f"image file {self.root / relative} not found")
        if is_link and not self._is_inside(os.path.realpath(self.root / relative)):
            raise DataError(f"the image {self.root / relative} is a link that leaves the image folder")

    def _listing(self, folder: str) -> dict[str, bool]:
        """Return the names in a folder, and whether each is a link."""
        names = self._listings.get(folder)
        if names is None:
            place = self.root / folder
            if not self._is_inside(os.path.realpath(place)):
                raise DataError(f"the image folder {place} is a link that leaves {self.root}")
            try:
                with os.scandir(place) as entries:
                    names = {entry.name: entry.is_symlink() for entry in entries}
            except OSError:
                names = {}
            self._listings[folder] = names
        return names

    def _is_inside(self, real_path: str) -> bool:
        return PurePosixPath(real_path).is_relative_to(self._real_root)

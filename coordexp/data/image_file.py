"""Image files: their names in an image folder, and their pixels; only DataError, whatever a name or a file holds.

A picture is read as people see it: turned as its EXIF tag says, and on white where it is transparent.
"""

import difflib
import itertools
import os
import re
import struct
import unicodedata
import warnings
import zlib
from collections import Counter
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from coordexp.errors import DataError, is_text, show

PICTURES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".jp2", ".avif", ".ppm"))
"""Endings of picture files, in lower case."""
MAX_IMAGE_PIXELS = 120_000_000
MAX_IMAGE_SIDE_PX = 32_768
_MAX_ASPECT_RATIO = 200
# Only formats of photographs: Pillow also opens EPS (by running Ghostscript) and some twenty rare formats.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
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
_HEADERS_AT_ONCE = 8
_NUM_NEAR, _NEAR_AMONG = 5, 20_000
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
        """Width and height as a viewer shows it."""
        return (self.height, self.width) if self.orientation in _SWAPPING else (self.width, self.height)


def read_image(path: Path, *, width: int | None = None, height: int | None = None) -> Image.Image:
    """Decode an image file to RGB as people see it: EXIF orientation applied, transparency on white.

    Args:
        path: image file.
        width: expected width in pixels of the shown picture; None to accept any.
        height: expected height in pixels.

    Raises:
        DataError: if the file is missing, does not decode, is too large, or has another size.
    """
    with _opened(path) as picture:
        header = _header(picture, path)
        _check_size(header, path, width=width, height=height)
        pixels = _to_rgb(picture, path)
        return pixels.transpose(_TURNS[header.orientation]) if header.orientation in _TURNS else pixels


def check_image(path: Path, *, width: int, height: int, decode: bool = False) -> None:
    """Check the size of an image as shown, and that all of it decodes where ``decode``.

    Raises:
        DataError: if the file is missing, is no image or cut short, is too large, or has another size.
    """
    with _opened(path) as picture:
        _check_size(_header(picture, path), path, width=width, height=height)
        if decode:
            picture.draft("L", (max(1, width // 8), max(1, height // 8)))  # of JPEG: a third of the time
            picture.load()


def read_header(path: Path) -> Header:
    """Return what an image's header says, without decoding it.

    Raises:
        DataError: if the file is missing, is no image, or is too large.
    """
    with _opened(path) as picture:
        return _header(picture, path)


def shown_size(path: Path) -> tuple[int, int]:
    """Return width and height of a picture as a viewer shows it, without decoding it; errors are read_header's."""
    return read_header(path).shown


def turned_headers(paths: Sequence[Path]) -> dict[int, Header]:
    """Return the headers of the readable pictures that a viewer turns or mirrors, by their place.

    Most files say in their first bytes that they are not turned: of 118,000 that takes seconds.
    """
    with ThreadPoolExecutor(_HEADERS_AT_ONCE) as pool:
        places = [place for place, may in enumerate(pool.map(_may_be_turned, paths, chunksize=64)) if may]
    headers: dict[int, Header] = {}
    for place in places:
        try:
            header = read_header(paths[place])
        except DataError:  # said where the picture is used
            continue
        if header.orientation != 1:
            headers[place] = header
    return headers


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


def _may_be_turned(path: Path) -> bool:
    """Return whether Pillow has to look: of JPEG, whether a segment APP1, of EXIF or XMP, stands before the pixels."""
    try:
        with path.open("rb") as file:
            if file.read(2) != b"\xff\xd8":
                return True
            while len(segment := file.read(4)) == 4 and segment[0] == 0xFF and segment[1] != 0xDA:
                if segment[1] == 0xE1:
                    return True
                file.seek(int.from_bytes(segment[2:]) - 2, os.SEEK_CUR)
    except OSError:
        pass
    return False


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


class ImageFolder:
    r"""The root of the images of an annotation file; finds a picture by the name that an annotation gives it.

    Existence is looked up in one listing for each folder: a call for each of 118,000 files takes minutes on a network
    disk. A name that is not there as it stands may be that of another machine: the one file is taken whose path agrees
    with it furthest from its end, with ``/`` for ``\``, percent codes, Unicode forms and case folded, and it is
    counted. A link is followed, and refused where it leaves the root (the root itself may be a link).
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
        self.read_as: Counter[str] = Counter()
        """How names were read that are not there as they stand, and how many."""
        self._real_root = os.path.realpath(root)
        self.checks = check
        self._listings: dict[str, dict[str, bool]] = {}
        self._by_last: dict[str, list[str]] | None = None
        self._by_stem: dict[str, list[str]] | None = None
        self._names: dict[str, str] = {}
        self._num_missed = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence on names that were read otherwise than they stand."""
        ways = "; ".join(f"{number:,} {way}" for way, number in self.read_as.items())
        return (f"names of pictures that are not there as they stand: {ways}",) if ways else ()

    def path_of(self, name: object) -> Path:
        """Return the path of the image ``name``; errors are those of :meth:`locate`."""
        return self.root / self.locate(name)

    def locate(self, name: object) -> str:
        """Return the name, relative to the folder, of the picture that an annotation calls ``name``.

        Args:
            name: relative to the folder, absolute, or as another machine or tool writes it.

        Raises:
            DataError: if ``name`` is no file name, leaves the folder, or no one file fits it.
        """
        if not isinstance(name, str) or not is_text(name) or "\0" in name:
            raise DataError(f"the image file name is {show(name)}, expected the name of a file")
        relative = self._inside(name)
        if relative is not None and (not self.checks or self._exists(relative)):
            self._names.setdefault(relative, name)
            return relative
        found = self._nearest(name) if self.checks else None
        # Of two names that end alike at most one can mean the file: train/1.jpg is not val/1.jpg.
        if found is None or not self._exists(found) or self._names.setdefault(found, name) != name:
            raise DataError(self._missing(name, relative))
        return found

    def with_stem(self, stem: str) -> list[str]:
        """Return the pictures below the root, relative to it, whose name without its ending is ``stem``."""
        if self._by_stem is None:
            self._by_stem = {}
            for relative in itertools.chain(*self._index().values()):
                path = PurePosixPath(relative)
                if path.suffix.lower() in PICTURES:
                    self._by_stem.setdefault(path.stem, []).append(relative)
        return self._by_stem.get(stem, [])

    def _inside(self, name: str) -> str | None:
        """Return a name relative to the folder, as it stands; None where it leaves the folder."""
        if "/" not in name and name not in {".", ".."}:
            return name
        path = PurePosixPath(name)
        if path.is_absolute():
            absolute_root = PurePosixPath(self.root.absolute())
            if not path.is_relative_to(absolute_root):
                return None
            path = path.relative_to(absolute_root)
        return None if ".." in path.parts or not path.name else path.as_posix()

    def _exists(self, relative: str) -> bool:
        folder, _, name = relative.rpartition("/")
        is_link = self._listing(folder).get(name)
        if is_link and not self._is_inside(os.path.realpath(self.root / relative)):
            raise DataError(f"the image {self.root / relative} is a link that leaves the image folder")
        return is_link is not None

    def _nearest(self, name: str) -> str | None:
        """Return the one file whose path agrees with ``name`` furthest from its end, and most literally; else None."""
        wanted = _forms(_of_address(name))
        found: list[tuple[int, int, str]] = []
        for relative in self._index().get(wanted[-1][-1], []):
            forms = _forms(relative)
            tail = _common_tail(wanted[-1], forms[-1])
            literal = next(at for at, (a, b) in enumerate(zip(wanted, forms, strict=True)) if a[-tail:] == b[-tail:])
            found.append((tail, -literal, relative))
        found.sort(reverse=True)
        if not found or (len(found) > 1 and found[0][:2] == found[1][:2]):
            return None
        tail, literal, relative = found[0]
        if _says_other_split(wanted[-1][:-tail], self.root.name):
            return None
        is_whole = tail == len(wanted[-1])
        self.read_as[_WAYS[-literal] if is_whole and literal else "by the end of their path"] += 1
        return relative

    def _missing(self, name: str, relative: str | None) -> str:
        self._num_missed += 1
        near = ""
        if self.checks and self._num_missed <= _NUM_NEAR and len(index := self._index()) <= _NEAR_AMONG:
            last = _forms(_of_address(name))[-1][-1]
            several = index.get(last, [])
            close = several or [one for key in difflib.get_close_matches(last, index, n=1) for one in index[key]]
            if close:
                near = f"; there {'are' if len(several) > 1 else 'is'} {' and '.join(map(show, close[:2]))}"
        if _ADDRESS.match(name):
            return f"{show(name)} is a URL, expected the name of a file in {self.root}: download the pictures{near}"
        if relative is None:
            return f"the image path {show(name)} leaves the image folder {self.root}{near}"
        return f"image file {self.root / relative} not found{near}"

    def _index(self) -> dict[str, list[str]]:
        """Return all files below the root by the folded form of their last name."""
        if self._by_last is None:
            self._by_last = {}
            for place, folders, files in os.walk(self.root):
                folders[:] = [folder for folder in folders if not folder.startswith(".")]
                for file in files:
                    relative = os.path.relpath(os.path.join(place, file), self.root)
                    self._by_last.setdefault(_forms(file)[-1][-1], []).append(relative)
        return self._by_last

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


_ADDRESS = re.compile(r"[A-Za-z][\w+.-]+://")
_WAYS = ("", "read with / for \\", "read without percent codes", "in another Unicode form", "in other case")


def _of_address(name: str) -> str:
    """Return the path of a URL; of Label Studio's local files what stands behind ``?d=``."""
    if "?d=" in name:
        return name.partition("?d=")[2]
    try:
        return urlsplit(name).path if _ADDRESS.match(name) else name
    except ValueError:
        return name


def _forms(name: str) -> list[tuple[str, ...]]:
    """Return the parts of a path as they stand, and in forms that forget more and more of how they are written."""
    slashed = name.replace("\\", "/")
    unquoted = unquote(slashed).replace("\\", "/")
    composed = unicodedata.normalize("NFC", unquoted)
    forms = (name, slashed, unquoted, composed, composed.casefold())
    return [tuple(part for part in form.split("/") if part not in ("", ".")) or ("",) for form in forms]


def _says_other_split(parts: Sequence[str], root: str) -> bool:
    """Return whether folders that are not there say another split than the name of the root does."""
    said, own = (set(re.findall("train|val|test", text.lower())) for text in ("/".join(parts), root))
    return bool(said and own) and not said & own


def _common_tail(first: Sequence[str], second: Sequence[str]) -> int:
    pairs = zip(reversed(first), reversed(second), strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))

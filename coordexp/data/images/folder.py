"""The names that annotations give to pictures -> files of an image folder; only DataError, whatever a name is."""

import difflib
import itertools
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from coordexp.errors import DataError, is_text, show

PICTURES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".jp2", ".avif", ".ppm"))
"""Endings of picture files, in lower case."""
_NUM_NEAR, _NEAR_AMONG = 5, 20_000  # missing names that are looked at closely, and files among which; it takes time
_ADDRESS = re.compile(r"[A-Za-z][\w+.-]+://")
_WAYS = ("", "read with / for \\", "read without percent codes", "in another Unicode form", "in other case")


class ImageFolder:
    r"""The root of the images of an annotation file; finds a picture by the name that an annotation gives it.

    Existence is looked up in one listing for each folder: a call for each of 118,000 files takes minutes on a network
    disk. A name that is not there as it stands may be that of another machine: the one file is taken whose path agrees
    with it furthest from its end, with ``/`` for ``\``, percent codes, Unicode forms and case folded, and it is
    counted. A link is followed, and refused where it leaves the root (the root itself may be a link).
    """

    def __init__(self, root: Path, *, check: bool = True) -> None:
        """Open ``root``; ``check`` says whether it and its files must exist.

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
        self._names: dict[str, str] = {}
        self._num_missed = 0

    @property
    def notes(self) -> tuple[str, ...]:
        ways = "; ".join(f"{number:,} {way}" for way, number in self.read_as.items())
        return (f"names of pictures that are not there as they stand: {ways}",) if ways else ()

    def path_of(self, name: object) -> Path:
        return self.root / self.locate(name)

    def locate(self, name: object) -> str:
        """Return the name, relative to the folder, of the picture that an annotation calls ``name``.

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

    @cached_property
    def by_stem(self) -> dict[str, list[str]]:
        """The pictures below the root, relative to it, by their names without endings."""
        found: dict[str, list[str]] = {}
        for relative in itertools.chain(*self._by_last.values()):
            path = PurePosixPath(relative)
            if path.suffix.lower() in PICTURES:
                found.setdefault(path.stem, []).append(relative)
        return found

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
        for relative in self._by_last.get(wanted[-1][-1], []):
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
        near = self._near(name)
        if _ADDRESS.match(name):
            return f"{show(name)} is a URL, expected the name of a file in {self.root}: download the pictures{near}"
        if relative is None:
            return f"the image path {show(name)} leaves the image folder {self.root}{near}"
        return f"image file {self.root / relative} not found{near}"

    def _near(self, name: str) -> str:
        """Return the end of a sentence with the files whose names are nearest to one that is missing; "" without any.

        Only the first names that are missing are looked at: of 118,000 each would take a second.
        """
        self._num_missed += 1
        if not self.checks or self._num_missed > _NUM_NEAR or len(self._by_last) > _NEAR_AMONG:
            return ""
        last = _forms(_of_address(name))[-1][-1]
        near_files = self._by_last.get(last, [])
        if not near_files:
            keys = difflib.get_close_matches(last, self._by_last, n=_NUM_NEAR)
            key = next((key for key in keys if not _is_another_number(key, last)), None)
            near_files = [] if key is None else self._by_last[key]
        if not near_files:
            return ""
        shown = " and ".join(map(show, near_files[:2]))
        return f"; there {'is' if len(near_files) == 1 else 'are'} {shown}"

    @cached_property
    def _by_last(self) -> dict[str, list[str]]:
        """All files below the root by the folded form of their last name."""
        found: dict[str, list[str]] = {}
        for place, folders, files in os.walk(self.root):
            folders[:] = [folder for folder in folders if not folder.startswith(".")]
            for file in files:
                relative = os.path.relpath(os.path.join(place, file), self.root)
                found.setdefault(_forms(file)[-1][-1], []).append(relative)
        return found

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


def _is_another_number(first: str, second: str) -> bool:
    """Return whether two names differ in their numbers alone: 100.png is near 000.png, and another picture."""
    numbers = [[int(digits) for digits in re.findall(r"\d+", name)] for name in (first, second)]
    texts = [re.sub(r"\d+", "0", name) for name in (first, second)]
    return texts[0] == texts[1] and numbers[0] != numbers[1]


def _common_tail(first: Sequence[str], second: Sequence[str]) -> int:
    pairs = zip(reversed(first), reversed(second), strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))

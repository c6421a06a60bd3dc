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
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from coordexp.errors import DataError, is_text, show

PICTURES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".jp2", ".avif", ".ppm"))
"""Endings of picture files, in lower case."""
# Looking for similar names takes time: it is done for the first missing names, and in folders of moderate size.
_MAX_MISSING_EXPLAINED = 5
_MAX_FILES_COMPARED = 20_000
_NUM_SIMILAR = 5
_ADDRESS = re.compile(r"[A-Za-z][\w+.-]+://")
_READ_AS = ("", "read with / for \\", "read without percent codes", "in another Unicode form", "in other case")
"""How a name was read, by the number of its form in :func:`_forms`."""


class _Candidate(NamedTuple):
    """A file whose path ends as a missing name does.

    Attributes:
        tail: how many last parts of the two paths agree.
        form: the first form in which they agree; 0 is the literal one.
        relative: path of the file below the root.
    """

    tail: int
    form: int
    relative: str


class ImageFolder:
    r"""The root of an annotation file's images; finds a picture by the name that an annotation gives it.

    Existence is looked up in one listing of each folder: on a network disk, a call for each of 118,000 files takes
    minutes.

    If the exact name is missing, it may have been written on another machine. Then the one file is taken whose path
    agrees with the name furthest from its end, with ``/`` for ``\``, percent codes, Unicode forms and case folded. Such
    names are counted.

    A link is followed, and refused if it leaves the root. The root itself may be a link.
    """

    def __init__(self, root: Path, *, check: bool = True) -> None:
        """Open ``root``; ``check`` says whether the folder and its files must exist.

        Raises:
            DataError: if ``root`` must exist and is no folder.
        """
        if check and not root.is_dir():
            raise DataError(f"{root}: no such image folder")
        self.root = root
        self.read_as: Counter[str] = Counter()
        """How names were read that are not there as they stand, and how many of each kind."""
        self._real_root = os.path.realpath(root)
        self.checks = check
        self._listings: dict[str, dict[str, bool]] = {}
        self._name_of_file: dict[str, str] = {}
        self._num_missing = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """How many names were read otherwise than they stand, and how: one sentence, or none."""
        if not self.read_as:
            return ()
        ways = "; ".join(f"{number:,} {way}" for way, number in self.read_as.items())
        return (f"names of pictures that are not there as they stand: {ways}",)

    def path_of(self, name: object) -> Path:
        return self.root / self.locate(name)

    def locate(self, name: object) -> str:
        """Return the path, relative to the folder, of the picture that an annotation calls ``name``.

        Raises:
            DataError: if ``name`` is no file name, leaves the folder, or not exactly one file fits it.
        """
        if not isinstance(name, str) or not is_text(name) or "\0" in name:
            raise DataError(f"the image file name is {show(name)}, expected the name of a file")
        literal = self._inside(name)
        if literal is not None and (not self.checks or self._exists(literal)):
            self._name_of_file.setdefault(literal, name)
            return literal
        nearest = self._nearest(name) if self.checks else None
        if nearest is None or not self._exists(nearest):
            raise DataError(self._missing(name, literal))
        # Two names with the same end can not both mean the one file: train/1.jpg is not val/1.jpg.
        if self._name_of_file.setdefault(nearest, name) != name:
            raise DataError(self._missing(name, literal))
        return nearest

    @cached_property
    def by_stem(self) -> dict[str, list[str]]:
        """The pictures below the root, relative to it, by their names without endings."""
        pictures: dict[str, list[str]] = {}
        for relative in itertools.chain(*self._files_by_last_name.values()):
            path = PurePosixPath(relative)
            if path.suffix.lower() in PICTURES:
                pictures.setdefault(path.stem, []).append(relative)
        return pictures

    def _inside(self, name: str) -> str | None:
        """Return a name relative to the folder, as it stands; None if it leaves the folder."""
        if "/" not in name and name not in {".", ".."}:
            return name
        path = PurePosixPath(name)
        if path.is_absolute():
            absolute_root = PurePosixPath(self.root.absolute())
            if not path.is_relative_to(absolute_root):
                return None
            path = path.relative_to(absolute_root)
        if ".." in path.parts or not path.name:
            return None
        return path.as_posix()

    def _exists(self, relative: str) -> bool:
        """Return whether a file is there, or raise a DataError if it is a link that leaves the root."""
        folder, _, name = relative.rpartition("/")
        is_link = self._listing(folder).get(name)
        if is_link is None:
            return False
        if is_link and not self._is_below_root(os.path.realpath(self.root / relative)):
            raise DataError(f"the image {self.root / relative} is a link that leaves the image folder")
        return True

    def _nearest(self, name: str) -> str | None:
        """Return the one file whose path agrees with ``name`` furthest from its end, and most literally; else None."""
        forms = _forms(_path_of_address(name))
        folded = forms[-1]
        candidates: list[_Candidate] = []
        for relative in self._files_by_last_name.get(folded[-1], []):
            file_forms = _forms(relative)
            tail = _common_tail(folded, file_forms[-1])
            candidates.append(_Candidate(tail, _first_equal_form(forms, file_forms, tail), relative))
        if not candidates:
            return None
        candidates.sort(key=lambda candidate: (-candidate.tail, candidate.form))
        best = candidates[0]
        if len(candidates) > 1 and candidates[1][:2] == best[:2]:
            return None
        if _name_another_split(folded[: -best.tail], self.root.name):
            return None
        is_whole_path = best.tail == len(folded)
        self.read_as[_READ_AS[best.form] if is_whole_path and best.form else "by the end of their path"] += 1
        return best.relative

    def _missing(self, name: str, relative: str | None) -> str:
        """Return why a name is no picture of the folder, and which file may be meant."""
        similar = self._similar(name)
        if _ADDRESS.match(name):
            return f"{show(name)} is a URL, expected the name of a file in {self.root}: download the pictures{similar}"
        if relative is None:
            return f"the image path {show(name)} leaves the image folder {self.root}{similar}"
        return f"image file {self.root / relative} not found{similar}"

    def _similar(self, name: str) -> str:
        """Return the end of a sentence with the files whose names are most similar to a missing one; "" without any."""
        self._num_missing += 1
        if not self.checks or self._num_missing > _MAX_MISSING_EXPLAINED:
            return ""
        if len(self._files_by_last_name) > _MAX_FILES_COMPARED:
            return ""
        last_name = _forms(_path_of_address(name))[-1][-1]
        files = self._files_by_last_name.get(last_name, [])
        if not files:
            for similar in difflib.get_close_matches(last_name, self._files_by_last_name, n=_NUM_SIMILAR):
                if not _differ_in_numbers_only(similar, last_name):
                    files = self._files_by_last_name[similar]
                    break
        if not files:
            return ""
        shown = " and ".join(map(show, files[:2]))
        return f"; there {'is' if len(files) == 1 else 'are'} {shown}"

    @cached_property
    def _files_by_last_name(self) -> dict[str, list[str]]:
        """All files below the root, relative to it, by the folded form of their last name."""
        files: dict[str, list[str]] = {}
        for place, folders, names in os.walk(self.root):
            # os.walk goes into the folders that are left in this very list.
            folders[:] = [folder for folder in folders if not folder.startswith(".")]
            for name in names:
                relative = os.path.relpath(os.path.join(place, name), self.root)
                files.setdefault(_forms(name)[-1][-1], []).append(relative)
        return files

    def _listing(self, folder: str) -> dict[str, bool]:
        """Return the names in a folder, and whether each is a link."""
        names = self._listings.get(folder)
        if names is not None:
            return names
        place = self.root / folder
        if not self._is_below_root(os.path.realpath(place)):
            raise DataError(f"the image folder {place} is a link that leaves {self.root}")
        try:
            with os.scandir(place) as entries:
                names = {entry.name: entry.is_symlink() for entry in entries}
        except OSError:
            names = {}
        self._listings[folder] = names
        return names

    def _is_below_root(self, real_path: str) -> bool:
        return PurePosixPath(real_path).is_relative_to(self._real_root)


def _path_of_address(name: str) -> str:
    """Return the path of a URL; Label Studio names local files behind ``?d=``. Other names stay as they are."""
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
    forms: list[tuple[str, ...]] = []
    for form in (name, slashed, unquoted, composed, composed.casefold()):
        components = tuple(component for component in form.split("/") if component not in ("", "."))
        forms.append(components or ("",))
    return forms


def _name_another_split(missing_folders: Sequence[str], root_name: str) -> bool:
    """Return whether the folders that are not there name another split than the root does."""
    splits_of_folders = set(re.findall("train|val|test", "/".join(missing_folders).lower()))
    splits_of_root = set(re.findall("train|val|test", root_name.lower()))
    return bool(splits_of_folders and splits_of_root) and not splits_of_folders & splits_of_root


def _differ_in_numbers_only(first: str, second: str) -> bool:
    """Return whether two names differ in their numbers alone: 100.png is similar to 000.png, and another picture."""
    if re.sub(r"\d+", "0", first) != re.sub(r"\d+", "0", second):
        return False
    numbers = [[int(digits) for digits in re.findall(r"\d+", name)] for name in (first, second)]
    return numbers[0] != numbers[1]


def _first_equal_form(forms: Sequence[Sequence[str]], file_forms: Sequence[Sequence[str]], tail: int) -> int:
    """Return the first form in which the last ``tail`` parts of two paths are equal; they are in the last form."""
    for number, (components, file_parts) in enumerate(zip(forms, file_forms, strict=True)):
        if components[-tail:] == file_parts[-tail:]:
            return number
    raise AssertionError("the folded forms agree in their tail")


def _common_tail(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many last parts of two paths agree."""
    tail = 0
    for component, other_part in zip(reversed(first), reversed(second), strict=False):
        if component != other_part:
            break
        tail += 1
    return tail

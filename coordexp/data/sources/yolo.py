"""YOLO: a text file a picture, a line an object: class, then centre, width and height as fractions of the picture.

A polygon (three points or more) becomes the box around it; of a row with key points behind its box, the box is read
(:mod:`coordexp.data.sources.yolo_rows`). Read are the layouts of Ultralytics (``data.yaml``), of
darknet and CVAT (``obj.names``, ``train.txt``), of Label Studio (``classes.txt``), and bare folders ``images`` and
``labels``.
"""

import contextlib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias

from coordexp.config.yaml_file import parse_foreign
from coordexp.data.coco_file import CocoFile
from coordexp.data.image_file import read_header, read_headers_ahead
from coordexp.data.image_folder import PICTURES, ImageFolder
from coordexp.data.sample import SPLITS, Split
from coordexp.data.sources.coco import CocoSource
from coordexp.data.sources.pictures import Labelled, coco_of, lines_of, read_text
from coordexp.data.sources.split_names import rank_of_name
from coordexp.data.sources.yolo_rows import RowLayout, guess_layout, read_row
from coordexp.errors import DataError, counted, show

_PICTURE_FOLDERS = ("images", "JPEGImages", "img", "imgs")
_NO_LABELS = ("classes", "readme", "train", "val", "valid", "validation", "test", "labels", "names", "notes")
_PICTURES_TRIED = 2_000
_LEVELS_UP = 6  # from a folder of pictures to the one that has its labels
_MOST_OF_A_BOX = 6  # columns: class, box, and how sure a model was
_NAMES = (
    *("*.names", "classes.txt", "_darknet.labels"),
    *("*/*.names", "*/classes.txt", "*/_darknet.labels"),
)
_SPLITS: Mapping[Split, tuple[str, ...]] = {"train": ("train",), "val": ("val", "valid", "validation", "test")}
_FILES_LOOKED_AT = 20
_ROW = re.compile(r"\d+(\.0+)?(\s+-?[\d.]+([eE][-+]?\d+)?){4,}")
_Places: TypeAlias = dict[Split, tuple[Path, ...]]
_Sources: TypeAlias = dict[Split, "partial[YoloSource]"]


class YoloSet(NamedTuple):
    """What a folder holds: its root, what makes the source of each split, and what tells the splits."""

    root: Path
    sources: "_Sources"
    by: str


@dataclass(frozen=True)
class YoloSource(CocoSource):
    """A split of YOLO's; ``annotations`` and ``images`` are the folder of the whole set."""

    names: tuple[str, ...] = ()  # of the classes
    places: tuple[Path, ...] = ()  # folders of pictures, or lists of them
    layout: RowLayout = "plain"
    is_converted = True

    def file(self) -> CocoFile:
        """Return the entries of all pictures of the split; one without a file of labels has no objects."""
        folder, labels = ImageFolder(self.images), LabelFiles()
        pictures: list[Labelled] = []
        bad: list[str] = []
        names = list(self.names)
        num_without_labels = 0
        picture_names = list(self._pictures(folder))
        read_headers_ahead([folder.root / name for name in picture_names])
        for name in picture_names:
            picture = folder.root / name
            label_file = labels.of(picture)
            num_without_labels += label_file is None
            try:
                lines = [] if label_file is None else lines_of(label_file)
                size = read_header(picture).shown if lines else (1, 1)
            except DataError as error:
                bad.append(str(error))
                continue
            boxes: list[tuple[str, tuple[float, float, float, float]]] = []
            for at, line in enumerate(lines, start=1):
                try:
                    boxes.append(read_row(line, self.names, size, self.layout))
                except DataError as error:
                    bad.append(f"{label_file}: line {at}: {error}")
            names += [desc for desc, _ in boxes if desc not in names]
            pictures.append(Labelled(name, None, boxes))
        notes = [*folder.notes]
        if self.layout == "guessed points":
            notes.append(
                "rows hold key points behind their box, though no kpt_shape says so: the box of columns 2 to 5 is "
                "read, since all points lie in it"
            )
        if num_without_labels:
            notes.append(
                f"no file of labels beside {counted(num_without_labels, 'picture')}: taken as pictures without objects"
            )
        if lost := labels.without_picture():
            notes.append(f"no picture beside {counted(len(lost), 'file')} of labels, the first {lost[0]}: left out")
        file = coco_of(self.annotations, pictures, categories=names, bad=bad, notes=notes)
        return replace(file, has_sizes=False)

    def _pictures(self, folder: ImageFolder) -> Iterator[str]:
        """Yield the pictures of the split, relative to the folder, each once."""
        seen: set[str] = set()
        for place in self.places:
            if place.is_dir():
                there = sorted(path for path in place.rglob("*") if path.suffix.lower() in PICTURES)
                names = [path.relative_to(folder.root).as_posix() for path in there]
            else:
                names = [folder.locate(line) for line in lines_of(place)]
            yield from (name for name in names if name not in seen)
            seen.update(names)


class LabelFiles:
    """Finds the file of labels of a picture: beside it, or in a folder ``labels`` beside one of the picture's folders.

    Ultralytics replaces ``images`` in the path by ``labels``; converters of Pascal VOC put ``labels`` beside
    ``JPEGImages``. Each folder is listed once. A file of labels in another case (``A.TXT``) is one, too.
    """

    def __init__(self) -> None:
        self._listings: dict[Path, dict[str, Path]] = {}
        self._folders: dict[Path, Path | None] = {}
        self._picture_folders: dict[Path, set[Path]] = {}  # by the folder of their labels

    def of(self, picture: Path) -> Path | None:
        """Return the file of labels of a picture; None without one."""
        stem = picture.stem.casefold()
        beside = self._texts(picture.parent).get(stem)
        if beside is not None:
            return beside
        if picture.parent not in self._folders:
            self._folders[picture.parent] = self._folder_of(picture.parent)
        folder = self._folders[picture.parent]
        if folder is None:
            return None
        self._picture_folders.setdefault(folder, set()).add(picture.parent)
        return self._texts(folder).get(stem)

    def without_picture(self) -> list[Path]:
        """Return the files, in the folders of labels that were used, beside which there is no picture."""
        lost: list[Path] = []
        for labels, picture_folders in sorted(self._picture_folders.items()):
            stems = {path.stem.casefold() for folder in picture_folders for path in _pictures_of_folder(folder)}
            texts = self._texts(labels).items()
            lost += [path for stem, path in texts if stem not in stems and stem not in _NO_LABELS]
        return lost

    def _texts(self, folder: Path) -> dict[str, Path]:
        """Return the text files of a folder by their folded stems: also links that lead nowhere, to be named."""
        if folder not in self._listings:
            paths = sorted(folder.iterdir()) if folder.is_dir() else []
            self._listings[folder] = {path.stem.casefold(): path for path in paths if path.suffix.lower() == ".txt"}
        return self._listings[folder]

    def _folder_of(self, pictures: Path) -> Path | None:
        """Return the folder of the labels of a folder of pictures: one part of its path is ``labels`` there."""
        parts = pictures.parts
        for at in range(len(parts) - 1, max(0, len(parts) - 1 - _LEVELS_UP), -1):
            above = Path(*parts[:at])
            for labels in inner_folders(above, "labels"):
                place = find_in_any_case(labels, parts[at + 1 :])
                if place is not None and self._texts(place):
                    return place
        return None


def inner_folders(folder: Path, name: str) -> list[Path]:
    """Return the folders of a folder that have a name, in any case; none where it cannot be listed."""
    try:
        named = [place for place in folder.iterdir() if place.name.lower() == name.lower()]
    except OSError:  # a folder above the data may belong to others
        return []
    return sorted(place for place in named if place.is_dir())


def find_in_any_case(folder: Path, parts: Sequence[str]) -> Path | None:
    """Return the folder or file at a path below ``folder``, written in any case; None without one."""
    for part in parts:
        exact = folder / part
        if exact.exists():
            folder = exact
            continue
        if not folder.is_dir():
            return None
        near = sorted(place for place in folder.iterdir() if place.name.lower() == part.lower())
        if not near:
            return None
        folder = near[0]
    return folder


def find_yolo(folder: Path, *, depth: int = 2) -> YoloSet | None:
    """Return what a folder holds of YOLO's, its splits also if they are ``depth`` folders down; None if it holds none.

    Raises:
        DataError: if rows of labels look like key points and nothing says so, or a file cannot be read.
    """
    for path in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
        found = _from_yaml(path)
        if found is not None:
            return found
    if not _has_labels(folder):
        return None
    splits = _splits_of(folder)
    if "train" not in splits and depth:
        # The labels may be those of a folder further down, which says its splits.
        inner = [place for place in sorted(folder.iterdir()) if place.is_dir() and not place.name.startswith(".")]
        sets = [found for place in inner if (found := find_yolo(place, depth=depth - 1)) and "val" in found.sources]
        if len(sets) > 1:
            named = ", ".join(f"YOLO in {one.root.relative_to(folder)}" for one in sets[:6])
            raise DataError(f"{folder}: holds several data sets: {named}; set data.path to the folder of one")
        if sets:
            return sets[0]
    named = next((path for pattern in _NAMES for path in sorted(folder.glob(pattern))), None)
    names = lines_of(named) if named is not None else ()
    return YoloSet(folder, _sources(folder, names, splits), "its lists or folders")


def _splits_of(folder: Path) -> _Places:
    """Return the splits of a folder by its lists, else by its folders; of one that says none, nothing."""
    splits = _from_data(folder)
    for split, listed in _listed_splits(folder).items():
        splits.setdefault(split, (listed,))
    return splits if "train" in splits else _split_folders(folder)


def _listed_splits(folder: Path) -> dict[Split, Path]:
    """Return the lists of pictures that are named as splits: ``train.txt``, in any case."""
    texts = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.suffix.lower() == ".txt"}
    listed: dict[Split, Path] = {}
    for split, words in _SPLITS.items():
        path = next((texts[f"{word}.txt"] for word in words if f"{word}.txt" in texts), None)
        if path is not None:
            listed[split] = path
    return listed


def _sources(root: Path, names: Sequence[str], splits: _Places, *, says_points: bool | None = None) -> _Sources:
    """Return what makes the source of each split; without a split, of all pictures.

    ``says_points`` is whether key points stand behind each box, where the set says it.
    """
    places: _Places = splits if "train" in splits else {"train": (root,)}
    if says_points is None:
        layout = guess_layout(_long_rows(places, root), where=root)
    else:
        layout = "points" if says_points else "plain"
    make = partial(YoloSource, root, root, names=tuple(names), layout=layout)
    return {split: partial(make, places=of_split) for split, of_split in places.items()}


def _long_rows(places: _Places, root: Path) -> list[list[float]]:
    """Return rows of labels, of up to 2,000 pictures, that hold more than a box; the reading names damaged ones."""
    labels = LabelFiles()
    rows: list[list[float]] = []
    pictures = (picture for of_split in places.values() for place in of_split for picture in _pictures_at(place, root))
    for picture in islice(pictures, _PICTURES_TRIED):
        path = labels.of(picture)
        lines: list[str] = []
        if path is not None:
            with contextlib.suppress(DataError):
                lines = lines_of(path)
        for line in lines:
            with contextlib.suppress(ValueError):
                numbers = [float(text) for text in line.split()]
                is_long = len(numbers) > _MOST_OF_A_BOX and all(map(math.isfinite, numbers))
                rows += [numbers] if is_long else []
    return rows


def _pictures_at(place: Path, root: Path) -> Iterator[Path]:
    """Yield the pictures of a folder, or those of a list that are there as they stand."""
    if place.is_dir():
        yield from (path for path in sorted(place.rglob("*")) if path.suffix.lower() in PICTURES)
        return
    folder = ImageFolder(root)
    for line in lines_of(place):
        with contextlib.suppress(DataError):
            yield folder.path_of(line)


def _from_data(folder: Path) -> _Places:
    """Return the lists that darknet's ``obj.data`` names, where they are there."""
    found: _Places = {}
    for path in sorted(folder.glob("*.data")):
        pairs = (line.partition("=") for line in lines_of(path))
        said = {key.strip(): value.strip() for key, _, value in pairs}
        for split, words in _SPLITS.items():
            listed = [folder / PurePosixPath(said[word].replace("\\", "/")).name for word in words if said.get(word)]
            if listed and listed[0].is_file():
                found[split] = (listed[0],)
    return found


def _has_labels(folder: Path) -> bool:
    """Return whether there are pictures in a folder with YOLO's labels beside them, or in ``labels``."""
    labels = LabelFiles()
    num_seen = 0
    problem: DataError | None = None
    for picture in islice(_pictures_below(folder), _PICTURES_TRIED):
        path = labels.of(picture)
        try:
            first_lines = lines_of(path)[:1] if path is not None and path.is_file() else []
        except DataError as error:
            problem = error
            continue
        if any(_ROW.fullmatch(line) for line in first_lines):
            return True
        num_seen += len(first_lines)
        if num_seen == _FILES_LOOKED_AT:
            return False
    # One damaged file does not make the set another format: it is named when it is read.
    if problem is not None:
        raise problem
    return False


def _split_folders(folder: Path) -> _Places:
    """Return the splits that are folders of pictures: ``images/train``, ``train/images``, ``Train`` or ``val2017``."""
    for above in (*(place for name in _PICTURE_FOLDERS for place in inner_folders(folder, name)), folder):
        inner = [place for place in sorted(above.iterdir()) if place.is_dir() and not place.name.startswith(".")]
        inner = [place for place in inner if next(_pictures_below(place), None) is not None]
        chosen: _Places = {}
        for split in SPLITS:
            ranks = {place: rank_of_name(split, place / "x", folder) for place in inner}
            known = [rank for rank in ranks.values() if rank is not None]
            if known:
                chosen[split] = tuple(_inner_pictures(place) for place, rank in ranks.items() if rank == min(known))
        if "train" in chosen:
            return chosen
    return {}


def _inner_pictures(folder: Path) -> Path:
    """Return the folder ``images`` inside a folder, or the folder itself."""
    return next((place for name in _PICTURE_FOLDERS for place in inner_folders(folder, name)), folder)


def _pictures_below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix.lower() in PICTURES)


def _pictures_of_folder(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.suffix.lower() in PICTURES)


def _from_yaml(path: Path) -> YoloSet | None:
    """Return what Ultralytics' file of a data set says; None for any other YAML."""
    text = read_text(path)
    try:
        said = parse_foreign(text)
    except DataError:  # a YAML file of another purpose may lie beside the pictures
        return None
    if not isinstance(said, dict) or "train" not in said or not ({"names", "nc", "val"} & said.keys()):
        return None
    names = _class_names(path, said.get("names", []))
    splits: _Places = {}
    for split, keys in _SPLITS.items():
        value = next((said[key] for key in keys if said.get(key)), None)
        places = [value] if isinstance(value, str) else value
        if isinstance(places, list):
            splits[split] = tuple(_place(path, str(said.get("path") or "."), str(place)) for place in places)
    inside = all(place.is_relative_to(path.parent) for places in splits.values() for place in places)
    root = path.parent if inside else Path(os.path.commonpath([place for part in splits.values() for place in part]))
    root = root if root.is_dir() else root.parent
    # null says that there are none: long rows are polygons then, whatever they look like.
    says_points = said["kpt_shape"] is not None if "kpt_shape" in said else None
    return YoloSet(root, _sources(root, names, splits, says_points=says_points), path.name)


def _class_names(path: Path, names: object) -> list[str]:
    """Return the names of the classes so that each stands at its number; a number without one gets a name."""
    if isinstance(names, list):
        return [str(name) for name in names]
    if not isinstance(names, dict):
        raise DataError(f"{path}: names is {show(names)}, expected a list, or a table by number")
    numbered: dict[int, str] = {}
    for key, name in names.items():
        if not re.fullmatch(r"\d{1,6}", str(key)):
            raise DataError(f"{path}: names has the key {show(key)}, expected the number of a class, as in 0: cat")
        numbered[int(key)] = str(name)
    return [numbered.get(number, f"class {number}") for number in range(max(numbered, default=-1) + 1)]


def _place(says: Path, base: str, written: str) -> Path:
    """Return the folder or list that ``data.yaml`` means: it often names a place on the machine where it was made."""
    base, written = base.replace("\\", "/"), written.replace("\\", "/").rstrip("/")
    parts = [part for part in PurePosixPath(base, written).parts if part not in ("..", ".", "/")]
    endings = (PurePosixPath(*parts[at:]) for at in range(len(parts)))
    for place in (says.parent / base / written, says.parent / written, *(says.parent / ending for ending in endings)):
        there = _in_any_case(place, says.parent)
        if there is not None:
            images = inner_folders(there, "images")
            return images[0] if images else there
    raise DataError(f"{says}: {show(written)} is not there, and nothing that ends so below {says.parent}")


def _in_any_case(place: Path, folder: Path) -> Path | None:
    """Return a path if it is there, below ``folder`` also in another case; else None."""
    place = Path(os.path.normpath(place))
    if place.exists():
        return place
    return find_in_any_case(folder, place.relative_to(folder).parts) if place.is_relative_to(folder) else None

"""YOLO: a text file a picture, a line an object: class, then centre, width and height as fractions of the picture.

A polygon (three points or more) becomes the box around it. Read are the layouts of Ultralytics (``data.yaml``), of
darknet and CVAT (``obj.names``, ``train.txt``), of Label Studio (``classes.txt``), and bare folders ``images`` and
``labels``.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import yaml

from coordexp.data.image_file import read_header
from coordexp.data.image_folder import PICTURES, ImageFolder
from coordexp.data.sources.coco import CocoSource
from coordexp.data.sources.coco_file import CocoFile
from coordexp.data.sources.coco_table import Split
from coordexp.data.sources.pictures import Labelled, coco_of, lines_of, read_text
from coordexp.errors import DataError, show

_NAMES = ("*.names", "classes.txt", "*/*.names", "*/classes.txt")
_SPLITS: Mapping[Split, tuple[str, ...]] = {"train": ("train",), "val": ("val", "valid", "validation", "test")}
_Places: TypeAlias = dict[Split, tuple[Path, ...]]
_Sources: TypeAlias = dict[Split, "partial[YoloSource]"]


@dataclass(frozen=True)
class YoloSource(CocoSource):
    """A split of YOLO's; ``annotations`` and ``images`` are the folder of the whole set."""

    names: tuple[str, ...] = ()  # of the classes
    places: tuple[Path, ...] = ()  # folders of pictures, or lists of them
    has_points: bool = False  # whether key points stand behind each box
    is_converted = True

    def file(self) -> CocoFile:
        """Return the entries of all pictures of the split; one without labels has no objects."""
        folder = ImageFolder(self.images)
        pictures: list[Labelled] = []
        bad: list[str] = []
        names = list(self.names)
        for name in self._pictures(folder):
            try:
                picture = folder.root / name
                labels = labels_of(picture)
                lines = lines_of(labels) if labels.is_file() else []
                size = read_header(picture).shown if lines else None
            except DataError as error:
                bad.append(str(error))
                continue
            boxes: list[tuple[str, tuple[float, float, float, float]]] = []
            for at, line in enumerate(lines, start=1):
                try:
                    box = " ".join(line.split()[:5]) if self.has_points else line
                    boxes.append(_box(box, self.names, size or (1, 1)))
                except DataError as error:
                    bad.append(f"{labels}: line {at}: {error}")
            names += [desc for desc, _ in boxes if desc not in names]
            pictures.append(Labelled(name, None, boxes))
        file = coco_of(self.annotations, pictures, categories=names, bad=bad, notes=folder.notes)
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


def labels_of(picture: Path) -> Path:
    """Return the file of labels of a picture: in ``labels`` for ``images``, as Ultralytics has it, or beside it."""
    parts = list(picture.parts)
    at = next((at for at in range(len(parts) - 2, -1, -1) if parts[at].lower() == "images"), None)
    beside = picture.with_suffix(".txt")
    if at is not None and not beside.is_file():
        return Path(*parts[:at], "labels", *parts[at + 1 :]).with_suffix(".txt")
    return beside


def _box(line: str, names: Sequence[str], size: tuple[int, int]) -> tuple[str, tuple[float, float, float, float]]:
    """Return the class and the corners in pixels of a line."""
    try:
        numbers = [float(text) for text in line.split()]
    except ValueError:
        raise DataError(f"{show(line)} is no line of numbers: class, centre, width and height") from None
    if len(numbers) < 5 or (len(numbers) > 6 and len(numbers) % 2 == 0) or numbers[0] % 1 or numbers[0] < 0:
        raise DataError(f"{show(line)}: expected a class and four numbers, or a class and the points of a polygon")
    index = int(numbers[0])
    if names and index >= len(names):
        raise DataError(f"class {index} is not among the {len(names)} that are named")
    if len(numbers) <= 6:  # the sixth is how sure a model was
        x, y, width, height = numbers[1:5]
        corners = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    else:
        corners = min(numbers[1::2]), min(numbers[2::2]), max(numbers[1::2]), max(numbers[2::2])
    if not all(-0.5 <= value <= 1.5 for value in corners):
        raise DataError(f"{show(line)}: expected fractions of the picture, in [0, 1]")
    x1, y1, x2, y2 = (round(value * side, 6) for value, side in zip(corners, size * 2, strict=True))
    return names[index] if names else f"class {index}", (x1, y1, x2, y2)


def find_yolo(folder: Path) -> tuple[_Sources, str] | None:
    """Return what makes the source of each split of a folder, and what tells the splits; None if it is not YOLO's."""
    for path in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
        found = _from_yaml(path)
        if found is not None:
            return found
    if not _has_labels(folder):
        return None
    named = next((path for pattern in _NAMES for path in sorted(folder.glob(pattern))), None)
    splits = _from_data(folder)
    for split, words in _SPLITS.items():
        listed = next((path for word in words if (path := folder / f"{word}.txt").is_file()), None)
        if listed is not None:
            splits.setdefault(split, (listed,))
    names = lines_of(named) if named is not None else ()
    return _sources(folder, names, splits if "train" in splits else _split_folders(folder)), "its lists or folders"


def _sources(root: Path, names: Sequence[str], splits: _Places, *, has_points: bool = False) -> _Sources:
    """Return what makes the source of each split; without a split, of all pictures."""
    make = partial(YoloSource, root, root, names=tuple(names), has_points=has_points)
    places: _Places = splits if "train" in splits else {"train": (root,)}
    return {split: partial(make, places=of_split) for split, of_split in places.items()}


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
    pictures = (path for path in folder.rglob("*") if path.suffix.lower() in PICTURES)
    labels = (labels_of(picture) for picture in islice(pictures, 2_000))
    texts = (lines_of(path)[:1] for path in labels if path.is_file())
    first = next((lines[0] for lines in texts if lines), "")
    return re.fullmatch(r"\d+(\s+-?[\d.]+([eE][-+]?\d+)?){4,}", first) is not None


def _split_folders(folder: Path) -> _Places:
    """Return the splits that are folders: ``images/train``, ``train/images`` or ``train``."""
    found: _Places = {}
    for split, names in _SPLITS.items():
        places = [folder / part for name in names for part in (f"images/{name}", f"{name}/images", name)]
        places += [path for name in names for path in sorted(folder.glob(f"images/{name}*")) if path.is_dir()]
        place = next((place for place in places if place.is_dir()), None)
        if place is not None:
            found[split] = (place,)
    return found if "train" in found else {}


def _from_yaml(path: Path) -> tuple[_Sources, str] | None:
    """Return what Ultralytics' file of a data set says; None for any other YAML."""
    try:
        said = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, DataError):
        return None
    if not isinstance(said, dict) or "train" not in said or not ({"names", "nc", "val"} & said.keys()):
        return None
    names = said.get("names", [])
    names = [names[key] for key in sorted(names)] if isinstance(names, dict) else names
    if not isinstance(names, list):
        raise DataError(f"{path}: names is {show(names)}, expected a list, or a table by number")
    splits: _Places = {}
    for split, keys in _SPLITS.items():
        value = next((said[key] for key in keys if said.get(key)), None)
        places = [value] if isinstance(value, str) else value
        if isinstance(places, list):
            splits[split] = tuple(_place(path, str(said.get("path") or "."), str(place)) for place in places)
    inside = all(place.is_relative_to(path.parent) for places in splits.values() for place in places)
    root = path.parent if inside else Path(os.path.commonpath([place for part in splits.values() for place in part]))
    root = root if root.is_dir() else root.parent
    return _sources(root, [*map(str, names)], splits, has_points="kpt_shape" in said), path.name


def _place(says: Path, base: str, written: str) -> Path:
    """Return the folder or list that ``data.yaml`` means: it often names a place on the machine where it was made."""
    base, written = base.replace("\\", "/"), written.replace("\\", "/").rstrip("/")
    parts = [part for part in PurePosixPath(base, written).parts if part not in ("..", ".", "/")]
    endings = (PurePosixPath(*parts[at:]) for at in range(len(parts)))
    for place in (says.parent / base / written, says.parent / written, *(says.parent / ending for ending in endings)):
        if place.exists():
            images = place / "images"
            return Path(os.path.normpath(images if place.is_dir() and images.is_dir() else place))
    raise DataError(f"{says}: {show(written)} is not there, and nothing that ends so below {says.parent}")

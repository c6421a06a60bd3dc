"""What a folder of data holds: its format by content, its splits as it says them, also one or two folders down."""

import glob
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from coordexp.data.image_folder import PICTURES, ImageFolder
from coordexp.data.originals import Part
from coordexp.data.sources.chosen import Whole
from coordexp.data.sources.coco import CocoSource, LvisSource
from coordexp.data.sources.coco_file import read_utf8
from coordexp.data.sources.coco_table import SPLITS, Reading, Split
from coordexp.data.sources.jsonl import JsonlSource, ground_truth_name
from coordexp.data.sources.pictures import read_text
from coordexp.data.sources.records import as_record
from coordexp.data.sources.voc import VocSource
from coordexp.data.sources.yolo import find_yolo
from coordexp.errors import DataError

# What COCO publishes beside the boxes of things.
_NOT_BOXES = re.compile(r"^(captions|person_keypoints|panoptic|stuff|image_info|unlabeled)")
# A split's words, the best one first: where there is no validation split, that for tests is one.
_WORDS: Mapping[Split, tuple[str, ...]] = {"train": ("train", "trainval"), "val": ("val", "dev", "test")}
_SOURCES = {"COCO": CocoSource, "LVIS": LvisSource, "JSONL": JsonlSource, "JSON records": JsonlSource}
_NAMES_TRIED, _HEAD_BYTES, _DEPTH = 20, 4096, 2
_Make: TypeAlias = Callable[[Path, Reading, Part | None], Whole]


@dataclass(frozen=True)
class Found:
    """What a folder holds."""

    kind: str
    where: Path  # the folder, or the one below it, that holds it
    splits: Mapping[Split, _Make]  # what makes the source of each; val is missing if the data has no split
    by: str  # what tells the splits; "" where nothing does

    def source(self, split: Split, *, data_dir: Path, reading: Reading, fraction: float, seed: int) -> Whole:
        is_split = "val" in self.splits
        part = None if is_split else Part(split == "val", fraction, seed)
        source = self.splits[split if is_split else "train"](data_dir / ground_truth_name(split), reading, part)
        return replace(source, split=split) if isinstance(source, JsonlSource) else source

    def sentence(self, folder: Path, fraction: float) -> str:
        below = "" if self.where == folder else f" in {self.where.relative_to(folder)}"
        if "val" in self.splits:
            return f"{self.kind}{below}; split by {self.by}"
        share = f"{fraction:.0%} of its pictures are for validation, chosen by data.split_seed"
        return f"{self.kind}{below}; not split: {share}"


@lru_cache(maxsize=16)
def find_folder(folder: Path) -> Found:
    """Find what a folder holds; it is looked at once in a process.

    Raises:
        DataError: if it is no folder, or holds nothing that is known, or several data sets.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; expected that of a data set (data.path)")
    level = [folder]
    for _ in range(_DEPTH + 1):
        # Of several formats of one data set the first.
        held = [_find_files(place) or _find_voc(place) or _find_yolo(place) for place in level]
        found = [one for one in held if one is not None]
        if len(found) > 1:
            named = ", ".join(f"{one.kind} in {one.where.relative_to(folder)}" for one in found[:6])
            raise DataError(f"{folder}: holds several data sets: {named}; set data.path to the folder of one")
        if found:
            return found[0]
        level = [place for above in level for place in _below(above)]
    seen = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    raise DataError(
        f"{folder}: holds no labels that are known: expected COCO or LVIS JSON, JSONL, Pascal VOC or YOLO; there is "
        f"{seen}. Files that are not found are named by data.train_annotations, data.train_images, "
        "data.val_annotations and data.val_images"
    )


def _below(folder: Path) -> list[Path]:
    return sorted(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith("."))


def _says(split: Split, path: Path, folder: Path) -> int | None:
    """Return how well the name of a file, or of its folders, says a split: 0 is best; None where it says another."""
    parts = [path.stem, *(parent.name for parent in path.parents if folder in parent.parents)]
    for part in parts:
        words = [(word, of) for of, several in _WORDS.items() for word in several if _has_word(word, part)]
        if words:
            return next((_WORDS[split].index(word) for word, of in words if of == split), None)
    return None


def _has_word(word: str, name: str) -> bool:
    return re.search(rf"(^|[^a-z]){word}([^a-z]|id|idation|ing|set|$)", name.lower()) is not None


def _by_split(paths: list[Path], folder: Path) -> dict[Split, Path]:
    """Return the path that says each split best, where exactly one does."""
    found: dict[Split, Path] = {}
    for split in SPLITS:
        ranked = sorted((rank, path) for path in paths if (rank := _says(split, path, folder)) is not None)
        best = [path for rank, path in ranked if rank == ranked[0][0]]
        best = [path for path in best if path.name.startswith("instances")] or best
        if len(best) == 1:
            found[split] = best[0]
        elif best:
            named = ", ".join(str(path.relative_to(folder)) for path in best[:6])
            raise DataError(
                f"{folder}: several annotation files say {split}: {named}; name one with data.{split}_annotations, "
                "beside the three other paths"
            )
    return found


def _find_files(folder: Path) -> Found | None:
    """Find annotation files of COCO, LVIS or JSONL."""
    inside = [folder, *_below(folder)] if not _is_sets(folder) else [folder]
    files = {
        path: kind
        for place in inside
        for path in sorted(place.iterdir())
        if path.suffix.lower() in (".json", ".jsonl") and not _NOT_BOXES.match(path.name) and (kind := _kind(path))
    }
    if not files:
        return None
    splits = _by_split([*files], folder)
    if "train" not in splits:
        if len(files) > 1:
            named = ", ".join(str(path.relative_to(folder)) for path in [*files][:6])
            raise DataError(
                f"{folder}: {len(files)} annotation files, and none whose name says train: {named}; name them with "
                "data.train_annotations, data.train_images, data.val_annotations and data.val_images"
            )
        splits["train"] = next(iter(files))
        splits.pop("val", None)
    by = " and ".join(str(path.relative_to(folder)) for path in splits.values())
    made: dict[Split, _Make] = {
        split: partial(_SOURCES[files[path]], path, _images(path, files[path], folder, split))
        for split, path in splits.items()
    }
    return Found(files[splits["train"]], folder, made, by)


def _is_sets(folder: Path) -> bool:
    """Return whether a folder only holds folders, each of which may be a data set of its own."""
    return not any(path.is_file() and path.suffix.lower() in (".json", ".jsonl") for path in folder.iterdir()) and not (
        any(_says(split, place / "x", folder) is not None for split in SPLITS for place in _below(folder))
        or (folder / "annotations").is_dir()
        or (folder / "images").is_dir()
    )


def _kind(path: Path) -> str:
    """Return the format of a file by how it begins; "" for one without boxes."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    head = head.decode("utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", "ignore").lstrip()
    names = set(re.findall(r'"(\w+)"\s*:', head))
    if names & {"messages", "conversations", "objects"} or ("image" in names and names & {"bbox", "bbox_2d"}):
        return "JSONL" if path.suffix.lower() == ".jsonl" else "JSON records"
    if head.startswith("{") and names & {"images", "annotations", "categories", "info", "licenses"}:
        content = read_utf8(path)
        if not all(f'"{section}"'.encode() in content for section in ("images", "annotations", "categories")):
            return ""
        return "LVIS" if b'"neg_category_ids"' in content and b'"frequency"' in content else "COCO"
    return ""


def _images(annotations: Path, kind: str, folder: Path, split: Split) -> Path:
    """Return the folder that has the pictures of a file by their names: the split's own first, else all of it."""
    names = list(_names(annotations, kind))
    below = [place for depth in ("*", "*/*", "*/*/*") for place in sorted(folder.glob(depth)) if place.is_dir()]
    places = [annotations.parent, folder, *(place for place in below if not place.name.startswith("."))]
    other: Split = "val" if split == "train" else "train"
    places.sort(key=lambda place: _says(other, place / "x", folder) is not None)
    places.sort(key=lambda place: _says(split, place / "x", folder) is None)
    best = max(places, key=lambda place: sum((place / name).is_file() for name in names))
    if 2 * sum((best / name).is_file() for name in names) > len(names):  # the run's check names those that are missing
        return best
    for place in dict.fromkeys(places):
        if any(path.suffix.lower() in PICTURES for path in islice(place.iterdir(), 1_000)):
            try:
                ImageFolder(place).locate(names[0] if names else None)
            except DataError:
                continue
            return place
    return folder


def _names(annotations: Path, kind: str) -> Iterator[str]:
    """Yield some of the names of pictures in a file."""
    content = read_utf8(annotations)
    if kind in ("COCO", "LVIS"):
        found = re.findall(rb'"file_name"\s*:\s*("(?:[^"\\]|\\.)*")', content)
        yield from (json.loads(name) for name in found[:: max(1, len(found) // _NAMES_TRIED)])
        return
    try:
        records = json.loads(content) if content.lstrip()[:1] == b"[" else map(json.loads, content.split(b"\n"))
        yield from (str(as_record(record).get("image")) for record in islice(records, _NAMES_TRIED))
    except (ValueError, TypeError):  # said where it is read
        return


def _find_voc(folder: Path) -> Found | None:
    """Find XML files: with official lists beside their folder, in a folder for each split, or all in one."""
    below = _below(folder)
    places = [folder, *below, *(inner for place in below for inner in _below(place))]
    places = [place for place in places if _has_xml(place)]
    if len(named := [place for place in places if place.name.lower() == "annotations"]) == 1:
        places = named
    if len(places) == 1:
        return _one_voc(places[0], folder)
    splits = _by_split([place / "x.xml" for place in places], folder)
    if "train" not in splits:
        return None
    labels: dict[Split, Path] = {split: path.parent for split, path in splits.items()}
    where = Path(os.path.commonpath(labels.values()))
    every = tuple(labels.values())
    made: dict[Split, _Make] = {
        split: partial(VocSource, place, _pictures_of(place, folder), every=every) for split, place in labels.items()
    }
    return Found("Pascal VOC", where, made, f"its folders {' and '.join(str(one.relative_to(where)) for one in every)}")


def _one_voc(labels: Path, folder: Path) -> Found:
    images = _pictures_of(labels, folder)
    lists = labels.parent / "ImageSets" / "Main"
    lists = lists if lists.is_dir() else lists.parent
    listed: dict[Split, Path] = {
        split: path for split in SPLITS for word in reversed(_WORDS[split]) if (path := lists / f"{word}.txt").is_file()
    }
    if "train" not in listed:
        where = labels if images == labels else labels.parent
        return Found("Pascal VOC", where, {"train": partial(VocSource, labels, images)}, "")
    by = f"its official lists {' and '.join(path.name for path in listed.values())}"
    made: dict[Split, _Make] = {
        split: partial(VocSource, labels, images, listed=path) for split, path in listed.items()
    }
    return Found("Pascal VOC", labels.parent, made, by)


def _pictures_of(labels: Path, folder: Path) -> Path:
    """Return the folder of the pictures of XML files: their own, else the nearest beside it that has the first one."""
    stem = next(path.stem for path in sorted(labels.iterdir()) if path.suffix.lower() == ".xml")
    above = [place for place in labels.parents if place == folder or folder in place.parents]
    places = [labels]
    for parent in above:
        for one in sorted(_below(parent), key=lambda place: place.name.lower() not in ("jpegimages", "images")):
            places += [one / labels.name, one]
    for place in places:
        if any(path.suffix.lower() in PICTURES for path in place.rglob(f"{glob.escape(stem)}.*")):
            return place
    return labels


def _has_xml(folder: Path) -> bool:
    first = next((path for path in sorted(folder.iterdir()) if path.suffix.lower() == ".xml"), None)
    return first is not None and "<annotation" in read_text(first)


def _find_yolo(folder: Path) -> Found | None:
    found = find_yolo(folder)
    return None if found is None else Found("YOLO", folder, *found)

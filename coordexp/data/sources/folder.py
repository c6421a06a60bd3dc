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

from coordexp.data.coco_file import SECTIONS, read_utf8
from coordexp.data.image_folder import PICTURES, ImageFolder
from coordexp.data.originals import Part
from coordexp.data.reading import Reading
from coordexp.data.recognised import head_of, recognised, recognised_below
from coordexp.data.sample import SPLITS, Split
from coordexp.data.sources.coco import CocoSource, LvisSource
from coordexp.data.sources.hugging_face import (
    METADATA_NAMES,
    HuggingFaceSource,
    ParquetSource,
    has_boxes,
    picture_names,
)
from coordexp.data.sources.jsonl import JsonlSource, ground_truth_name
from coordexp.data.sources.pictures import read_text
from coordexp.data.sources.records import as_record
from coordexp.data.sources.split_names import SPLIT_WORDS, by_split, says_split
from coordexp.data.sources.voc import VocSource
from coordexp.data.sources.yolo import find_yolo
from coordexp.errors import DataError
from coordexp.files import JsonValue, lfs_problem, parse_json, read_json, sha256_of_text

# What COCO publishes beside the boxes of things, and what Hugging Face's library writes beside the data.
_NOT_BOXES = re.compile(r"^(captions|panoptic|stuff|image_info|unlabeled)|^(dataset_infos?|dataset_dict|state)\.json$")
_KEY_POINTS = re.compile(r"^person_keypoints")
_SOURCES = {"COCO": CocoSource, "LVIS": LvisSource, "JSONL": JsonlSource, "JSON records": JsonlSource}
_NAMES_TRIED, _FILES_TRIED, _DEPTH = 20, 1_000, 2
_PACKED = (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar", ".bz2", ".xz", ".zst")
_SHARD = re.compile(r"[-_.]?\d+([-_]of[-_]\d+)?([-_.][0-9a-f]{16})?$")
# Of records in our own form, or that of other trainers: these stand in a list of objects.
_OWN_NAMES = frozenset(("desc", "bbox_2d", "messages", "conversations"))
HUGGING_FACE = "imagefolder of Hugging Face"
Source: TypeAlias = CocoSource | JsonlSource
"""One split in one format; a new format is one file beside this one, and what finds it here."""
_Make: TypeAlias = Callable[[Path, Reading, Part | None], Source]


@dataclass(frozen=True)
class Found:
    """What a folder holds."""

    kind: str
    where: Path  # the folder, or the one below it, that holds it
    splits: Mapping[Split, _Make]  # what makes the source of each; val is missing if the data has no split
    by: str  # what tells the splits; "" where nothing does

    def source(self, split: Split, *, data_dir: Path, reading: Reading, fraction: float, seed: int) -> Source:
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
    if folder.is_file():
        cure = "unpack it first" if folder.suffix.lower() in _PACKED else "name files with the four paths of data"
        raise DataError(f"{folder}: that is a file; expected the folder of a data set (data.path): {cure}")
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; expected that of a data set (data.path)")
    level = [folder]
    for _ in range(_DEPTH + 1):
        # Of several formats of one data set the first.
        held = [_find_at(place) for place in level]
        found = [one for one in held if one is not None]
        if len(found) > 1:
            named = ", ".join(f"{one.kind} in {one.where.relative_to(folder)}" for one in found[:6])
            raise DataError(f"{folder}: holds several data sets: {named}; set data.path to the folder of one")
        if found:
            return found[0]
        level = [place for above in level for place in _below(above)]
    other = recognised_below(folder) or _unread_below(folder)
    if other:
        raise DataError(other)
    seen = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    raise DataError(
        f"{folder}: holds no labels that are known: expected COCO or LVIS JSON, JSONL, an imagefolder or parquet files "
        f"of Hugging Face, Pascal VOC or YOLO; there is {seen}. Files that are not found are named by "
        "data.train_annotations, data.train_images, data.val_annotations and data.val_images"
    )


def _find_at(place: Path) -> Found | None:
    return _find_files(place) or _find_parquet(place) or _find_voc(place) or _find_yolo(place)


def _below(folder: Path) -> list[Path]:
    return sorted(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith("."))


def _find_files(folder: Path) -> Found | None:
    """Find annotation files of COCO, LVIS, JSONL or Hugging Face's ``imagefolder``."""
    inside = [folder, *_below(folder)] if not _is_sets(folder) else [folder]
    paths = (path for place in inside for path in sorted(place.iterdir()) if _may_be_annotations(path))
    # Other tools write a file for each picture: a hundred thousand would take minutes to look at.
    kinds = {path: file_kind(path) for path in islice(paths, _FILES_TRIED)}
    files = {path: kind for path, kind in kinds.items() if kind}
    # COCO publishes key points beside boxes. Alone they hold the boxes themselves.
    without_key_points = {path: kind for path, kind in files.items() if not _KEY_POINTS.match(path.name)}
    files = without_key_points or files
    if not files:
        return None
    splits = by_split([*files], folder)
    _refuse_unread(folder, [path for path, kind in kinds.items() if not kind], splits)
    if "train" not in splits:
        if len(files) > 1:
            named = ", ".join(str(path.relative_to(folder)) for path in [*files][:6])
            raise DataError(
                f"{folder}: {len(files)} annotation files, and none whose name says train: {named}; name them with "
                "data.train_annotations, data.train_images, data.val_annotations and data.val_images"
            )
        return _one_file(next(iter(files)), folder, next(iter(files.values())))
    by = " and ".join(str(path.relative_to(folder)) for path in splits.values())
    made: dict[Split, _Make] = {
        split: _maker(path, files[path], folder, split, within="") for split, path in splits.items()
    }
    return Found(files[splits["train"]], folder, made, by)


def _may_be_annotations(path: Path) -> bool:
    if path.name.lower() in METADATA_NAMES:
        return True
    return path.suffix.lower() in (".json", ".jsonl") and not _NOT_BOXES.match(path.name.lower())


def _one_file(path: Path, folder: Path, kind: str) -> Found:
    """Return what one annotation file holds; of an ``imagefolder`` the folders of its pictures may say the splits."""
    if kind == HUGGING_FACE:
        first_parts = sorted({name.partition("/")[0] for name in picture_names(path) if "/" in name})
        splits = by_split([path.parent / part / "x" for part in first_parts], path.parent)
        if "train" in splits and "val" in splits:
            by = f"its folders {' and '.join(place.parent.name for place in splits.values())}"
            made: dict[Split, _Make] = {
                split: _maker(path, kind, folder, split, within=f"{place.parent.name}/")
                for split, place in splits.items()
            }
            return Found(kind, folder, made, by)
    return Found(kind, folder, {"train": _maker(path, kind, folder, "train", within="")}, "")


def _maker(path: Path, kind: str, folder: Path, split: Split, *, within: str) -> _Make:
    images = _images(path, kind, folder, split)
    if kind == HUGGING_FACE:
        return partial(HuggingFaceSource, path, images, within=within, card_folder=folder)
    return partial(_SOURCES[kind], path, images)


def _refuse_unread(folder: Path, unread: list[Path], splits: Mapping[Split, Path]) -> None:
    """Refuse a file that says a split of its own, and begins as annotations do, but cannot be read.

    Left out, a damaged validation file would make a set one that nobody split. Files for tests often have no labels.
    """
    for path in unread:
        says = [split for split in SPLITS if says_split(split, path, folder) and "test" not in path.name.lower()]
        lost = [split for split in says if split not in splits]
        if lost and (problem := _damage(path)):
            raise DataError(
                f"{path}: its name says {lost[0]}, and it cannot be read: {problem}; mend it, or take it out of the "
                "folder"
            )


def _unread_below(folder: Path) -> str:
    """Return the sentence on a file that looks like annotations and cannot be read; "" without one."""
    paths = (path for place in (folder, *_below(folder)) for path in sorted(place.iterdir()))
    for path in islice(filter(_may_be_annotations, paths), _NAMES_TRIED):
        problem = _damage(path)
        if problem:
            return f"{path}: looks like annotations, and cannot be read: {problem}"
    return ""


def _damage(path: Path) -> str:
    """Return why a file that begins as annotations do holds none; "" for one that is something else."""
    try:
        content = read_json(path)
    except DataError as error:
        content = _first_record(path)
        if content is None:
            return str(error).removeprefix(f"{path}: ")
    if isinstance(content, list):
        if not content:
            return "it holds an empty list"
        content = content[0]
    if not isinstance(content, dict):
        return ""
    sections = [section for section in SECTIONS if section in content]
    if {"images", "annotations"} & set(sections):
        missing = [section for section in SECTIONS if section not in content]
        return f"{missing[0]!r} is missing, expected a list (COCO instances format)" if missing else ""
    if {"image", "images", "file_name"} & content.keys():
        return f"its records have {', '.join(content)}, and no objects that are known"
    return ""


def _first_record(path: Path) -> JsonValue:
    """Return the first line of a file, if it is JSON; else None."""
    try:
        return parse_json(read_utf8(path).split(b"\n")[0])
    except ValueError:
        return None


def _is_sets(folder: Path) -> bool:
    """Return whether a folder only holds folders, each of which may be a data set of its own."""
    return not any(path.is_file() and _may_be_annotations(path) for path in folder.iterdir()) and not (
        any(says_split(split, place, folder) for split in SPLITS for place in _below(folder))
        or (folder / "annotations").is_dir()
        or (folder / "images").is_dir()
    )


def is_hugging_face(path: Path) -> bool:
    """Return whether a file of records is that of an ``imagefolder``."""
    is_of_records = path.suffix.lower() in (".jsonl", ".csv", ".parquet")
    return is_of_records and file_kind(path) == HUGGING_FACE


def file_kind(path: Path) -> str:
    """Return the format of an annotation file by how it begins; "" for one without boxes.

    Raises:
        DataError: if it is a Git LFS pointer.
    """
    pointer = lfs_problem(path)
    if pointer:
        raise DataError(pointer)
    if path.suffix.lower() in (".csv", ".parquet"):
        return HUGGING_FACE if path.name.lower() in METADATA_NAMES else ""
    head = head_of(path)
    names = set(re.findall(r'"(\w+)"\s*:', head))
    if recognised(path):
        return ""
    first_objects = re.search(r'"objects"\s*:\s*(.)', head)
    is_by_column = first_objects is not None and first_objects[1] == "{" and "ref" not in names
    if is_by_column or (path.name.lower() in METADATA_NAMES and "file_name" in names and not names & _OWN_NAMES):
        return HUGGING_FACE
    if names & {"messages", "conversations", "objects"} or ("image" in names and names & {"bbox", "bbox_2d"}):
        return "JSONL" if path.suffix.lower() == ".jsonl" else "JSON records"
    if head.startswith("{") and names & {"images", "annotations", "categories", "info", "licenses"}:
        content = read_utf8(path)
        if not all(f'"{section}"'.encode() in content for section in SECTIONS):
            return ""
        return "LVIS" if b'"neg_category_ids"' in content and b'"frequency"' in content else "COCO"
    return ""


def _images(annotations: Path, kind: str, folder: Path, split: Split) -> Path:
    """Return the folder that has the pictures of a file by their names: the split's own first, else all of it."""
    names = list(_names(annotations, kind))
    below = [place for depth in ("*", "*/*", "*/*/*") for place in sorted(folder.glob(depth)) if place.is_dir()]
    places = [annotations.parent, folder, *(place for place in below if not place.name.startswith("."))]
    other: Split = "val" if split == "train" else "train"
    places.sort(key=lambda place: says_split(other, place, folder))
    places.sort(key=lambda place: not says_split(split, place, folder))
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
    if kind == HUGGING_FACE:
        yield from islice(picture_names(annotations), _NAMES_TRIED)
        return
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


def _find_parquet(folder: Path) -> Found | None:
    """Find parquet files with pictures and boxes: the shards of each split, as ``datasets`` names and places them."""
    below = _below(folder)
    places = [folder, *below, *(inner for place in below for inner in _below(place))]
    shards: dict[Path, list[Path]] = {}
    for place in places:
        for path in sorted(place.iterdir()):
            if path.suffix.lower() == ".parquet" and path.name.lower() not in METADATA_NAMES:
                name = _SHARD.sub("", path.stem) or "x"
                shards.setdefault(place / name, []).append(path)
    shards = {key: paths for key, paths in shards.items() if has_boxes(paths[0])}
    if not shards:
        return None
    splits = by_split([*shards], folder)
    if "train" not in splits:
        if len(shards) > 1:
            return None
        splits["train"] = next(iter(shards))
        splits.pop("val", None)
    made: dict[Split, _Make] = {}
    for split, key in splits.items():
        made[split] = partial(_parquet_source, tuple(shards[key]), key.name, folder)
    named = [f"{key.relative_to(folder)}" for key in splits.values()]
    by = f"its files {' and '.join(named)}" if "val" in splits else ""
    return Found("parquet of Hugging Face", folder, made, by)


def _parquet_source(
    shards: tuple[Path, ...], name: str, folder: Path, made: Path, reading: Reading, part: Part | None
) -> ParquetSource:
    """Return a source that unpacks its pictures beside the ground truth that is made, a folder for each split."""
    of_shards = sha256_of_text("/".join(map(str, shards)))[:8]
    images = made.parent / "pictures" / f"{name}-{of_shards}"
    return ParquetSource(shards[0].parent, images, made, reading, part, shards=shards, card_folder=folder)


def _find_voc(folder: Path) -> Found | None:
    """Find XML files: with official lists beside their folder, in a folder for each split, or all in one."""
    below = _below(folder)
    places = [folder, *below, *(inner for place in below for inner in _below(place))]
    places = [place for place in places if _has_xml(place)]
    if len(named := [place for place in places if place.name.lower() == "annotations"]) == 1:
        places = named
    if len(places) == 1:
        return _one_voc(places[0], folder)
    splits = by_split([place / "x.xml" for place in places], folder)
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
    texts = {path.name.lower(): path for path in sorted(lists.iterdir())} if lists.is_dir() else {}
    listed: dict[Split, Path] = {}
    for split in SPLITS:
        path = next((texts[f"{word}.txt"] for word in SPLIT_WORDS[split] if f"{word}.txt" in texts), None)
        if path is not None:
            listed[split] = path
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
    """Return whether there is an XML file of Pascal VOC; the first ones may be damaged, which their reading says."""
    paths = (path for path in sorted(folder.iterdir()) if path.suffix.lower() == ".xml")
    return any(
        re.search(r"<(\w+:)?annotation[\s>]", read_text(path), re.IGNORECASE) for path in islice(paths, _NAMES_TRIED)
    )


def _find_yolo(folder: Path) -> Found | None:
    found = find_yolo(folder)
    return None if found is None else Found("YOLO", found.root, found.sources, found.by)

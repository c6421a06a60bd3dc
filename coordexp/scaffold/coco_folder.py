"""The four paths of a data set in COCO's format, found in its folder as people lay it out."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coordexp.data.sources.coco_file import read_coco_file
from coordexp.data.sources.foreign import foreign_problem
from coordexp.data.sources.source import Split
from coordexp.errors import DataError

# What COCO publishes beside the boxes of things.
_NOT_BOXES = re.compile(r"^(captions|person_keypoints|panoptic|stuff|image_info|unlabeled)")
_SPLITS: Mapping[Split, str] = {"train": r"train", "val": r"val|valid|validation"}
_NAMES_TRIED = 20


@dataclass(frozen=True)
class SplitFiles:
    """Where a split lies.

    Attributes:
        annotations: its annotation file.
        images: the folder that its file names are relative to.
    """

    annotations: Path
    images: Path


def find_split(folder: Path, split: Split, *, annotations: Path | None, images: Path | None) -> SplitFiles:
    """Return where a split lies.

    Args:
        folder: of the data set.
        split: which.
        annotations: the file, where it is known; None: the one whose name, or whose folder's, says the split.
        images: the folder, where it is known; None: the one below ``folder`` that has the pictures of the file.

    Raises:
        DataError: if the folder is not there, is in another format, or does not say it.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; expected that of a data set in COCO's format")
    if annotations is None:
        annotations = _annotations(folder, split)
    return SplitFiles(annotations, _images(folder, split, annotations) if images is None else images)


def _annotations(folder: Path, split: Split) -> Path:
    files = [
        path
        for place in _folders(folder)
        for path in sorted(place.glob("*.json"))
        if path.is_file() and not _NOT_BOXES.match(path.name)
    ]
    found = [path for path in files if _says(path, split, folder)]
    if split == "val" and not found:
        found = [path for path in files if re.search(r"test", path.stem)]
    found = [path for path in found if path.name.startswith("instances")] or found
    if len(found) == 1:
        return found[0]
    problem = foreign_problem(folder) if not files else None
    if problem is not None:
        raise DataError(problem)
    what = "training" if split == "train" else "validation"
    there = ", ".join(str(path.relative_to(folder)) for path in (found or files)[:6]) or "no JSON file"
    raise DataError(
        f"{folder}: expected one annotation file for {what}, whose name says {split}, as instances_{split}.json does; "
        f"there is {there}; name it with --{split}-annotations"
    )


def _folders(folder: Path) -> list[Path]:
    """Return a folder and those below it, down to two levels; hidden ones are passed over."""
    below = sorted(place for depth in ("*", "*/*") for place in folder.glob(depth) if place.is_dir())
    return [folder, *(place for place in below if not place.name.startswith("."))]


def _says(path: Path, split: Split, folder: Path) -> bool:
    """Return whether a file is of a split: by its own name, else by that of the folder it lies in."""
    other = _SPLITS["val" if split == "train" else "train"]
    if re.search(_SPLITS[split], path.stem):
        return True
    says_other = re.search(other, path.stem) is not None
    return not says_other and path.parent != folder and re.search(_SPLITS[split], path.parent.name) is not None


def _images(folder: Path, split: Split, annotations: Path) -> Path:
    entries = read_coco_file(annotations).images.good
    names = [entry.file_name for entry in entries[:: max(1, len(entries) // _NAMES_TRIED)] if entry.file_name]
    # The folder of the split first: train/1.jpg and val/1.jpg are often both there.
    places = [annotations.parent] if annotations.parent.is_relative_to(folder) else []
    places += _folders(folder)
    places.sort(key=lambda place: re.search(_SPLITS[split], "/".join(place.relative_to(folder).parts)) is None)
    counts = [sum((place / name).is_file() for name in names) for place in places]
    if 2 * max(counts) > len(names):  # the check that follows names those that are missing
        return places[counts.index(max(counts))]
    named = f", such as {names[0]}" if names else ""
    raise DataError(
        f"{annotations}: no folder in {folder} has the images that it names{named}; expected them there, or "
        f"--{split}-images"
    )

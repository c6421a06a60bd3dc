"""Annotation files and image folders of a data set, found in its folder as people lay it out."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
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
    """The annotation file of a split, and the folder that its file names are relative to."""

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
    annotations = annotations or _annotations(folder, split)
    return SplitFiles(annotations, images or _images(folder, split, annotations))


def _annotations(folder: Path, split: Split) -> Path:
    files = [
        path
        for place in _folders(folder)
        for path in sorted(place.iterdir())
        if path.suffix in (".json", ".jsonl") and path.is_file() and not _NOT_BOXES.match(path.name)
    ]
    found = [path for path in files if _says(path, split, folder)]
    if split == "val" and not found:
        found = [path for path in files if "test" in path.stem]
    found = [path for path in found if path.name.startswith("instances")] or found
    if len(found) == 1:
        return found[0]
    if not files and (problem := foreign_problem(folder)) is not None:
        raise DataError(problem)
    there = ", ".join(str(path.relative_to(folder)) for path in (found or files)[:6]) or "no JSON file"
    raise DataError(
        f"{folder}: expected one annotation file whose name says {split}, as instances_{split}.json does; there is "
        f"{there}; name it with --{split}-annotations"
    )


def _folders(folder: Path) -> list[Path]:
    """Return a folder and those below it, down to two levels; hidden ones are passed over."""
    below = sorted(place for depth in ("*", "*/*") for place in folder.glob(depth) if place.is_dir())
    return [folder, *(place for place in below if not place.name.startswith("."))]


def _says(path: Path, split: Split, folder: Path) -> bool:
    """Return whether a file is of a split: by its own name, else by that of the folder it lies in."""
    if re.search(_SPLITS[split], path.stem):
        return True
    says_other = re.search(_SPLITS["val" if split == "train" else "train"], path.stem)
    return not says_other and path.parent != folder and re.search(_SPLITS[split], path.parent.name) is not None


def _images(folder: Path, split: Split, annotations: Path) -> Path:
    names = _file_names(annotations)
    # The folder of the split first: train/1.jpg and val/1.jpg are often both there.
    places = [annotations.parent] if annotations.parent.is_relative_to(folder) else []
    places += _folders(folder)
    places.sort(key=lambda place: re.search(_SPLITS[split], "/".join(place.relative_to(folder).parts)) is None)
    best = max(places, key=lambda place: sum((place / name).is_file() for name in names))
    if 2 * sum((best / name).is_file() for name in names) > len(names):  # the run's check names those that are missing
        return best
    named = f", such as {names[0]}" if names else ""
    raise DataError(
        f"{annotations}: no folder in {folder} has the images that it names{named}; expected them there, or "
        f"--{split}-images"
    )


def _file_names(annotations: Path) -> list[str]:
    if annotations.suffix == ".jsonl":
        try:
            with annotations.open(encoding="utf-8-sig") as lines:
                return [str(json.loads(line).get("image")) for line in islice(lines, _NAMES_TRIED)]
        except (ValueError, AttributeError) as error:  # cut, of another encoding, or no objects
            raise DataError(f"{annotations}: expected one JSON object a line, each with an image ({error})") from None
    entries = read_coco_file(annotations).images.good
    return [entry.file_name for entry in entries[:: max(1, len(entries) // _NAMES_TRIED)] if entry.file_name]

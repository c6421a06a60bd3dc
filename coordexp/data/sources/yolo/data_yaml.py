"""Ultralytics' ``data.yaml``."""

import os
import re
from pathlib import Path, PurePosixPath

from coordexp.config.yaml_file import parse_foreign
from coordexp.data.sources.text_file import read_text
from coordexp.data.sources.yolo.paths import find_in_any_case, inner_folders
from coordexp.data.sources.yolo.splits import SPLIT_KEYS
from coordexp.data.sources.yolo.yolo_set import Places, YoloSet, make_sources
from coordexp.errors import DataError, show


def set_of_yaml(path: Path) -> YoloSet | None:
    """Return what Ultralytics' file of a data set says; None for any other YAML."""
    text = read_text(path)
    try:
        said = parse_foreign(text)
    except DataError:  # a YAML file of another purpose may lie beside the pictures
        return None
    if not isinstance(said, dict) or "train" not in said or not ({"names", "nc", "val"} & said.keys()):
        return None
    names = _class_names(path, said.get("names", []))
    splits: Places = {}
    for split, keys in SPLIT_KEYS.items():
        value = next((said[key] for key in keys if said.get(key)), None)
        places = [value] if isinstance(value, str) else value
        if isinstance(places, list):
            splits[split] = tuple(_place(path, str(said.get("path") or "."), str(place)) for place in places)
    inside = all(place.is_relative_to(path.parent) for places in splits.values() for place in places)
    root = path.parent if inside else Path(os.path.commonpath([place for part in splits.values() for place in part]))
    root = root if root.is_dir() else root.parent
    # null says that there are none: long rows are polygons then, whatever they look like.
    says_points = said["kpt_shape"] is not None if "kpt_shape" in said else None
    return YoloSet(root, make_sources(root, names, splits, says_points=says_points), path.name)


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

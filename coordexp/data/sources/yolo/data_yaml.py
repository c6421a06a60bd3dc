"""Ultralytics' ``data.yaml``: names of the classes, places of the splits, and whether rows hold key points."""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from coordexp.config.yaml_file import parse_foreign
from coordexp.data.sources.text_file import read_text
from coordexp.data.sources.yolo.paths import find_in_any_case, inner_folders
from coordexp.data.sources.yolo.splits import SPLIT_KEYS
from coordexp.data.sources.yolo.yolo_set import Places, YoloSet, make_sources
from coordexp.errors import DataError, show


def set_of_yaml(path: Path) -> YoloSet | None:
    """Return what Ultralytics' file of a data set says; None for any other YAML.

    Raises:
        DataError: if a place or a class name in it cannot be used.
    """
    text = read_text(path)
    try:
        content = parse_foreign(text)
    except DataError:
        return None  # a YAML file of another purpose may lie beside the pictures
    if not isinstance(content, dict) or "train" not in content or not ({"names", "nc", "val"} & content.keys()):
        return None
    names = _class_names(path, content.get("names", []))
    base = str(content.get("path") or ".")
    splits: Places = {}
    for split, keys in SPLIT_KEYS.items():
        values = [content[key] for key in keys if content.get(key)]
        if not values:
            continue
        written_places = [values[0]] if isinstance(values[0], str) else values[0]
        if isinstance(written_places, list):
            splits[split] = tuple(_place(path, base, str(written)) for written in written_places)
    # Without kpt_shape the rows themselves must tell. ``kpt_shape: null`` says that there are no key points: long rows
    # are polygons then, whatever they look like.
    says_points = content["kpt_shape"] is not None if "kpt_shape" in content else None
    root = _root(path, splits)
    return YoloSet(root, make_sources(root, names, splits, says_points=says_points), path.name)


def _root(path: Path, splits: Places) -> Path:
    """Return the folder of the YAML file if all places lie in it, else the folder that they share."""
    places = [place for of_split in splits.values() for place in of_split]
    if all(place.is_relative_to(path.parent) for place in places):
        root = path.parent
    else:
        root = Path(os.path.commonpath(places))
    return root if root.is_dir() else root.parent


def _class_names(path: Path, names: object) -> list[str]:
    """Return the names of the classes so that each stands at its number; a number without one gets a name."""
    if isinstance(names, list):
        return [str(name) for name in names]
    if not isinstance(names, dict):
        raise DataError(f"{path}: names is {show(names)}, expected a list, or a table by number")
    name_of_number: dict[int, str] = {}
    for key, name in names.items():
        if not re.fullmatch(r"\d{1,6}", str(key)):
            raise DataError(f"{path}: names has the key {show(key)}, expected the number of a class, as in 0: cat")
        name_of_number[int(key)] = str(name)
    num_classes = max(name_of_number, default=-1) + 1
    return [name_of_number.get(number, f"class {number}") for number in range(num_classes)]


def _place(yaml_path: Path, base: str, written: str) -> Path:
    """Return the folder or list that ``data.yaml`` means.

    It often names a place on the machine where it was made. Then the path below the file's folder is taken that agrees
    with the written one furthest from its end.

    Args:
        yaml_path: the file.
        base: its ``path``.
        written: the place as it is written.
    """
    for candidate in _candidates(yaml_path.parent, base.replace("\\", "/"), written.replace("\\", "/").rstrip("/")):
        place = _in_any_case(candidate, yaml_path.parent)
        if place is not None:
            images = inner_folders(place, "images")
            return images[0] if images else place
    raise DataError(f"{yaml_path}: {show(written)} is not there, and nothing that ends so below {yaml_path.parent}")


def _candidates(folder: Path, base: str, written: str) -> Iterator[Path]:
    yield folder / base / written
    yield folder / written
    components = [component for component in PurePosixPath(base, written).parts if component not in ("..", ".", "/")]
    for start in range(len(components)):
        yield folder / PurePosixPath(*components[start:])


def _in_any_case(place: Path, folder: Path) -> Path | None:
    """Return a path if it is there, below ``folder`` also in another case; else None."""
    place = Path(os.path.normpath(place))
    if place.exists():
        return place
    return find_in_any_case(folder, place.relative_to(folder).parts) if place.is_relative_to(folder) else None

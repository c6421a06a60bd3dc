"""Folders and files of a YOLO data set, in any case."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from coordexp.data.images.folder import PICTURES

PICTURE_FOLDERS = ("images", "JPEGImages", "img", "imgs")


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


def pictures_below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix.lower() in PICTURES)


def pictures_in(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.suffix.lower() in PICTURES)

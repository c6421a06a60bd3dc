"""Folders and files of a YOLO data set, whose names are found in any case."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from coordexp.data.images.folder import PICTURES

PICTURE_FOLDERS = ("images", "JPEGImages", "img", "imgs")


def inner_folders(folder: Path, name: str) -> list[Path]:
    """Return the folders of a folder that have a name, in any case; none if the folder cannot be listed."""
    try:
        named = [place for place in folder.iterdir() if place.name.lower() == name.lower()]
    except OSError:
        # A folder above the data may belong to others, and must not stop the search.
        return []
    return sorted(place for place in named if place.is_dir())


def picture_folders(folder: Path) -> list[Path]:
    """Return the folders of a folder that are called as folders of pictures are."""
    return [place for name in PICTURE_FOLDERS for place in inner_folders(folder, name)]


def find_in_any_case(folder: Path, parts: Sequence[str]) -> Path | None:
    """Return the folder or file at a path below ``folder``, written in any case; None without one.

    Args:
        folder: where the path begins.
        parts: of the path.
    """
    for component in parts:
        exact = folder / component
        if exact.exists():
            folder = exact
            continue
        if not folder.is_dir():
            return None
        in_other_case = sorted(place for place in folder.iterdir() if place.name.lower() == component.lower())
        if not in_other_case:
            return None
        folder = in_other_case[0]
    return folder


def pictures_below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix.lower() in PICTURES)


def pictures_in(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.suffix.lower() in PICTURES)

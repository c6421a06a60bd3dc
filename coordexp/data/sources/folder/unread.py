"""Files that look like annotations and cannot be read: passed over, they would change what a folder seems to hold."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from coordexp.data.coco.entries import SECTIONS
from coordexp.data.coco.json_text import read_utf8
from coordexp.data.sample import SPLITS, Split
from coordexp.data.sources.folder.found import folders_in
from coordexp.data.sources.folder.kinds import may_be_annotations
from coordexp.data.sources.split_names import says_split
from coordexp.errors import DataError
from coordexp.files import JsonValue, parse_json, read_json

_FILES_TRIED = 20


def refuse_unread(folder: Path, unread: list[Path], splits: Mapping[Split, Path]) -> None:
    """Refuse a file that says a split which no other file says, and begins as annotations do, but cannot be read.

    Passed over, a damaged validation file would turn the set into one that nobody has split. Files for tests are left
    alone: they often have no labels.

    Args:
        folder: of the data set.
        unread: files that hold no known annotations.
        splits: the file of each split.
    """
    for path in unread:
        if "test" in path.name.lower():
            continue
        missing = [split for split in SPLITS if split not in splits and says_split(split, path, folder)]
        problem = _damage(path) if missing else ""
        if problem:
            raise DataError(
                f"{path}: its name says {missing[0]}, and it cannot be read: {problem}; mend it, or take it out of the "
                "folder"
            )


def unread_below(folder: Path) -> str:
    """Return the sentence on a file that looks like annotations and cannot be read; "" without one."""
    paths = (path for place in (folder, *folders_in(folder)) for path in sorted(place.iterdir()))
    for path in islice(filter(may_be_annotations, paths), _FILES_TRIED):
        problem = _damage(path)
        if problem:
            return f"{path}: looks like annotations, and cannot be read: {problem}"
    return ""


def _damage(path: Path) -> str:
    """Return why a file that begins as annotations do holds none; "" for a file that is something else."""
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
    if "images" in content or "annotations" in content:
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

"""What a folder of data holds: its format by content, its splits as it says them, also one or two folders down."""

from functools import lru_cache
from pathlib import Path

from coordexp.data.sources.folder.annotation_files import find_annotation_files
from coordexp.data.sources.folder.found import FoundSet, folders_in
from coordexp.data.sources.folder.parquet import find_parquet
from coordexp.data.sources.folder.unread import unread_below
from coordexp.data.sources.folder.voc import find_voc
from coordexp.data.sources.yolo.find import find_yolo
from coordexp.data.unread_formats import unread_format_below
from coordexp.errors import DataError

_DEPTH = 2
_PACKED = (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar", ".bz2", ".xz", ".zst")
_SETS_SHOWN = 6
_FILES_SHOWN = 8


@lru_cache(maxsize=16)
def find_folder(folder: Path) -> FoundSet:
    """Return the data set that a folder holds; a folder is looked at once in a process.

    Raises:
        DataError: if it is no folder, or holds nothing that is known, or several data sets.
    """
    _check_folder(folder)
    level = [folder]
    for _ in range(_DEPTH + 1):
        found_sets = [found_set for found_set in map(_find_at, level) if found_set is not None]
        if len(found_sets) > 1:
            shown = [f"{found_set.kind} in {found_set.where.relative_to(folder)}" for found_set in found_sets]
            named = ", ".join(shown[:_SETS_SHOWN])
            raise DataError(f"{folder}: holds several data sets: {named}; set data.path to the folder of one")
        if found_sets:
            return found_sets[0]
        level = [inner for place in level for inner in folders_in(place)]
    problem = unread_format_below(folder) or unread_below(folder)
    if problem:
        raise DataError(problem)
    names = ", ".join(sorted(path.name for path in folder.iterdir())[:_FILES_SHOWN]) or "nothing"
    raise DataError(
        f"{folder}: holds no labels that are known: expected COCO or LVIS JSON, JSONL, an imagefolder or parquet files "
        f"of Hugging Face, Pascal VOC or YOLO; there is {names}. Files that are not found are named by "
        "data.train_annotations, data.train_images, data.val_annotations and data.val_images"
    )


def _check_folder(folder: Path) -> None:
    """Raise a DataError with the way on if a path is no folder."""
    if folder.is_file():
        cure = "unpack it first" if folder.suffix.lower() in _PACKED else "name files with the four paths of data"
        raise DataError(f"{folder}: that is a file; expected the folder of a data set (data.path): {cure}")
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; expected that of a data set (data.path)")


def _find_at(place: Path) -> FoundSet | None:
    """Return the data set at a place; one that stands there in several formats is read in the first of these."""
    return find_annotation_files(place) or find_parquet(place) or find_voc(place) or _find_yolo(place)


def _find_yolo(place: Path) -> FoundSet | None:
    yolo_set = find_yolo(place)
    return None if yolo_set is None else FoundSet("YOLO", yolo_set.root, yolo_set.sources, yolo_set.by)

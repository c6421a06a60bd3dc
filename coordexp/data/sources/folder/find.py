"""What a folder of data holds: its format by content, its splits as it says them, also one or two folders down."""

from functools import lru_cache
from pathlib import Path

from coordexp.data.sources.folder.annotation_files import find_annotation_files
from coordexp.data.sources.folder.found import Found, folders_in
from coordexp.data.sources.folder.parquet import find_parquet
from coordexp.data.sources.folder.unread import unread_below
from coordexp.data.sources.folder.voc import find_voc
from coordexp.data.sources.yolo.find import find_yolo
from coordexp.data.unread_formats import unread_format_below
from coordexp.errors import DataError

_DEPTH = 2
_PACKED = (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar", ".bz2", ".xz", ".zst")


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
        level = [place for above in level for place in folders_in(above)]
    other = unread_format_below(folder) or unread_below(folder)
    if other:
        raise DataError(other)
    seen = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    raise DataError(
        f"{folder}: holds no labels that are known: expected COCO or LVIS JSON, JSONL, an imagefolder or parquet files "
        f"of Hugging Face, Pascal VOC or YOLO; there is {seen}. Files that are not found are named by "
        "data.train_annotations, data.train_images, data.val_annotations and data.val_images"
    )


def _find_at(place: Path) -> Found | None:
    return find_annotation_files(place) or find_parquet(place) or find_voc(place) or _find_yolo(place)


def _find_yolo(folder: Path) -> Found | None:
    found = find_yolo(folder)
    return None if found is None else Found("YOLO", found.root, found.sources, found.by)

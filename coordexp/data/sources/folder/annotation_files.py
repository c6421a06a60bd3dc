"""Annotation files of COCO, LVIS, JSONL or an ``imagefolder`` in a folder."""

import re
from functools import partial
from itertools import islice
from pathlib import Path

from coordexp.data.sample import SPLITS, Split
from coordexp.data.sources.coco.source import CocoSource, LvisSource
from coordexp.data.sources.folder.found import HUGGING_FACE, Found, MakeSource, folders_in
from coordexp.data.sources.folder.kinds import file_kind, may_be_annotations
from coordexp.data.sources.folder.pictures import images_of
from coordexp.data.sources.folder.unread import refuse_unread
from coordexp.data.sources.hugging_face.source import HuggingFaceSource, picture_names
from coordexp.data.sources.jsonl.source import JsonlSource
from coordexp.data.sources.split_names import by_split, says_split
from coordexp.errors import DataError

_KEY_POINTS = re.compile(r"^person_keypoints")
_SOURCES = {"COCO": CocoSource, "LVIS": LvisSource, "JSONL": JsonlSource, "JSON records": JsonlSource}
_FILES_TRIED = 1_000


def find_annotation_files(folder: Path) -> Found | None:
    """Find annotation files of COCO, LVIS, JSONL or Hugging Face's ``imagefolder``."""
    inside = [folder, *folders_in(folder)] if not _is_sets(folder) else [folder]
    paths = (path for place in inside for path in sorted(place.iterdir()) if may_be_annotations(path))
    # Other tools write a file for each picture: a hundred thousand would take minutes to look at.
    kinds = {path: file_kind(path) for path in islice(paths, _FILES_TRIED)}
    files = {path: kind for path, kind in kinds.items() if kind}
    # COCO publishes key points beside boxes. Alone they hold the boxes themselves.
    without_key_points = {path: kind for path, kind in files.items() if not _KEY_POINTS.match(path.name)}
    files = without_key_points or files
    if not files:
        return None
    splits = by_split([*files], folder)
    refuse_unread(folder, [path for path, kind in kinds.items() if not kind], splits)
    if "train" not in splits:
        if len(files) > 1:
            named = ", ".join(str(path.relative_to(folder)) for path in [*files][:6])
            raise DataError(
                f"{folder}: {len(files)} annotation files, and none whose name says train: {named}; name them with "
                "data.train_annotations, data.train_images, data.val_annotations and data.val_images"
            )
        return _one_file(next(iter(files)), folder, next(iter(files.values())))
    by = " and ".join(str(path.relative_to(folder)) for path in splits.values())
    made: dict[Split, MakeSource] = {
        split: _maker(path, files[path], folder, split, within="") for split, path in splits.items()
    }
    return Found(files[splits["train"]], folder, made, by)


def _one_file(path: Path, folder: Path, kind: str) -> Found:
    """Return what one annotation file holds; of an ``imagefolder`` the folders of its pictures may say the splits."""
    if kind == HUGGING_FACE:
        first_parts = sorted({name.partition("/")[0] for name in picture_names(path) if "/" in name})
        splits = by_split([path.parent / part / "x" for part in first_parts], path.parent)
        if "train" in splits and "val" in splits:
            by = f"its folders {' and '.join(place.parent.name for place in splits.values())}"
            made: dict[Split, MakeSource] = {
                split: _maker(path, kind, folder, split, within=f"{place.parent.name}/")
                for split, place in splits.items()
            }
            return Found(kind, folder, made, by)
    return Found(kind, folder, {"train": _maker(path, kind, folder, "train", within="")}, "")


def _maker(path: Path, kind: str, folder: Path, split: Split, *, within: str) -> MakeSource:
    images = images_of(path, kind, folder, split)
    if kind == HUGGING_FACE:
        return partial(HuggingFaceSource, path, images, within=within, card_folder=folder)
    return partial(_SOURCES[kind], path, images)


def _is_sets(folder: Path) -> bool:
    """Return whether a folder only holds folders, each of which may be a data set of its own."""
    return not any(path.is_file() and may_be_annotations(path) for path in folder.iterdir()) and not (
        any(says_split(split, place, folder) for split in SPLITS for place in folders_in(folder))
        or (folder / "annotations").is_dir()
        or (folder / "images").is_dir()
    )

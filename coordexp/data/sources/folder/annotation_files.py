"""Annotation files of COCO, LVIS, JSONL or an ``imagefolder`` in a folder."""

import re
from functools import partial
from itertools import islice
from pathlib import Path

from coordexp.data.sample import SPLITS, Split
from coordexp.data.sources.coco.source import CocoSource, LvisSource
from coordexp.data.sources.folder.found import HUGGING_FACE, FoundSet, MakeSource, folders_in
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
"""Other tools write a file for each picture: a hundred thousand would take minutes to look at."""
_FILES_SHOWN = 6


def find_annotation_files(folder: Path) -> FoundSet | None:
    """Return the data set whose annotation files lie in a folder, or in the folders in it; None without any.

    Raises:
        DataError: if the files do not say which split they are of, or one that does is damaged.
    """
    places = [folder] if _holds_only_sets(folder) else [folder, *folders_in(folder)]
    candidates = (path for place in places for path in sorted(place.iterdir()) if may_be_annotations(path))
    kind_of_candidate = {path: file_kind(path) for path in islice(candidates, _FILES_TRIED)}
    kind_of = {path: kind for path, kind in kind_of_candidate.items() if kind}
    # COCO publishes key points beside boxes. Alone they hold the boxes themselves.
    without_key_points = {path: kind for path, kind in kind_of.items() if not _KEY_POINTS.match(path.name)}
    kind_of = without_key_points or kind_of
    if not kind_of:
        return None
    splits = by_split([*kind_of], folder)
    refuse_unread(folder, [path for path, kind in kind_of_candidate.items() if not kind], splits)
    if "train" in splits:
        by = " and ".join(str(path.relative_to(folder)) for path in splits.values())
        sources: dict[Split, MakeSource] = {
            split: _source_maker(path, kind_of[path], folder, split, within="") for split, path in splits.items()
        }
        return FoundSet(kind_of[splits["train"]], folder, sources, by)
    if len(kind_of) > 1:
        named = ", ".join(str(path.relative_to(folder)) for path in [*kind_of][:_FILES_SHOWN])
        raise DataError(
            f"{folder}: {len(kind_of)} annotation files, and none whose name says train: {named}; name them with "
            "data.train_annotations, data.train_images, data.val_annotations and data.val_images"
        )
    path, kind = next(iter(kind_of.items()))
    return _one_file(path, folder, kind)


def _one_file(path: Path, folder: Path, kind: str) -> FoundSet:
    """Return what one annotation file holds; the folders of an ``imagefolder``'s pictures may say the splits."""
    if kind == HUGGING_FACE:
        first_folders = sorted({name.partition("/")[0] for name in picture_names(path) if "/" in name})
        splits = by_split([path.parent / name / "x" for name in first_folders], path.parent)
        if "train" in splits and "val" in splits:
            sources: dict[Split, MakeSource] = {}
            for split, place in splits.items():
                sources[split] = _source_maker(path, kind, folder, split, within=f"{place.parent.name}/")
            by = f"its folders {' and '.join(place.parent.name for place in splits.values())}"
            return FoundSet(kind, folder, sources, by)
    return FoundSet(kind, folder, {"train": _source_maker(path, kind, folder, "train", within="")}, "")


def _source_maker(path: Path, kind: str, folder: Path, split: Split, *, within: str) -> MakeSource:
    """Return what makes the source of a split.

    Args:
        path: the annotation file.
        kind: its format.
        folder: of the data set.
        split: which one.
        within: the folder of the split's pictures, if the file holds several splits.
    """
    images = images_of(path, kind, folder, split)
    if kind == HUGGING_FACE:
        return partial(HuggingFaceSource, path, images, within=within, card_folder=folder)
    return partial(_SOURCES[kind], path, images)


def _holds_only_sets(folder: Path) -> bool:
    """Return whether a folder only holds folders, each of which may be a data set of its own."""
    if any(path.is_file() and may_be_annotations(path) for path in folder.iterdir()):
        return False
    if (folder / "annotations").is_dir() or (folder / "images").is_dir():
        return False
    return not any(_says_any_split(place, folder) for place in folders_in(folder))


def _says_any_split(place: Path, folder: Path) -> bool:
    return any(says_split(split, place, folder) for split in SPLITS)

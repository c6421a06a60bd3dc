"""XML files of Pascal VOC in a folder."""

import glob
import os
import re
from functools import partial
from itertools import islice
from pathlib import Path

from coordexp.data.images.folder import PICTURES
from coordexp.data.sample import SPLITS, Split
from coordexp.data.sources.folder.found import FoundSet, MakeSource, folders_in
from coordexp.data.sources.split_names import SPLIT_WORDS, by_split
from coordexp.data.sources.text_file import read_text
from coordexp.data.sources.voc import VocSource

_KIND = "Pascal VOC"
_FILES_TRIED = 20


def find_voc(folder: Path) -> FoundSet | None:
    """Return the data set whose XML files lie in a folder or two folders down; None without any.

    Its splits are official lists beside the XML files, or a folder of XML files for each split, or none.
    """
    label_folders = _label_folders(folder)
    if len(label_folders) == 1:
        return _one_label_folder(label_folders[0], folder)
    splits = by_split([place / "x.xml" for place in label_folders], folder)
    if "train" not in splits:
        return None
    labels_of_splits = tuple(path.parent for path in splits.values())
    root = Path(os.path.commonpath(labels_of_splits))
    sources: dict[Split, MakeSource] = {}
    for split, path in splits.items():
        images = _pictures_of(path.parent, folder)
        sources[split] = partial(VocSource, path.parent, images, label_folders=labels_of_splits)
    by = f"its folders {' and '.join(str(labels.relative_to(root)) for labels in labels_of_splits)}"
    return FoundSet(_KIND, root, sources, by)


def _label_folders(folder: Path) -> list[Path]:
    """Return the folders with XML files of Pascal VOC; a single one that is called ``Annotations`` stands for all."""
    inner = folders_in(folder)
    places = [folder, *inner, *(place for parent in inner for place in folders_in(parent))]
    label_folders = [place for place in places if _has_xml(place)]
    called_annotations = [place for place in label_folders if place.name.lower() == "annotations"]
    return called_annotations if len(called_annotations) == 1 else label_folders


def _one_label_folder(labels: Path, folder: Path) -> FoundSet:
    """Return a data set with all XML files in one folder, split by official lists if there are any."""
    images = _pictures_of(labels, folder)
    lists = _official_lists(labels)
    if "train" not in lists:
        root = labels if images == labels else labels.parent
        return FoundSet(_KIND, root, {"train": partial(VocSource, labels, images)}, "")
    sources: dict[Split, MakeSource] = {}
    for split, path in lists.items():
        sources[split] = partial(VocSource, labels, images, listed=path)
    by = f"its official lists {' and '.join(path.name for path in lists.values())}"
    return FoundSet(_KIND, labels.parent, sources, by)


def _official_lists(labels: Path) -> dict[Split, Path]:
    """Return the list of each split: in ``ImageSets/Main`` beside the XML files, else in ``ImageSets``; in any case."""
    place = labels.parent / "ImageSets" / "Main"
    if not place.is_dir():
        place = place.parent
    if not place.is_dir():
        return {}
    path_of_name = {path.name.lower(): path for path in sorted(place.iterdir())}
    lists: dict[Split, Path] = {}
    for split in SPLITS:
        named = [path_of_name[f"{word}.txt"] for word in SPLIT_WORDS[split] if f"{word}.txt" in path_of_name]
        if named:
            lists[split] = named[0]
    return lists


def _pictures_of(labels: Path, folder: Path) -> Path:
    """Return the folder of the pictures of XML files: their own, else the nearest beside it that has the first one."""
    stem = next(path.stem for path in sorted(labels.iterdir()) if path.suffix.lower() == ".xml")
    places = [labels]
    for parent in labels.parents:
        if parent != folder and folder not in parent.parents:
            break
        # Folders that are called as VOC's own come first.
        for place in sorted(folders_in(parent), key=lambda place: place.name.lower() not in ("jpegimages", "images")):
            places += [place / labels.name, place]
    for place in places:
        if any(path.suffix.lower() in PICTURES for path in place.rglob(f"{glob.escape(stem)}.*")):
            return place
    return labels


def _has_xml(folder: Path) -> bool:
    """Return whether there is an XML file of Pascal VOC; the first files may be damaged, which their reading says."""
    paths = (path for path in sorted(folder.iterdir()) if path.suffix.lower() == ".xml")
    for path in islice(paths, _FILES_TRIED):
        if re.search(r"<(\w+:)?annotation[\s>]", read_text(path), re.IGNORECASE):
            return True
    return False

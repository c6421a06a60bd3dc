"""XML files of Pascal VOC in a folder."""

import glob
import os
import re
from functools import partial
from itertools import islice
from pathlib import Path

from coordexp.data.images.folder import PICTURES
from coordexp.data.sample import SPLITS, Split
from coordexp.data.sources.folder.found import Found, MakeSource, folders_in
from coordexp.data.sources.folder.pictures import NAMES_TRIED
from coordexp.data.sources.split_names import SPLIT_WORDS, by_split
from coordexp.data.sources.text_file import read_text
from coordexp.data.sources.voc import VocSource


def find_voc(folder: Path) -> Found | None:
    """Find XML files: with official lists beside their folder, in a folder for each split, or all in one."""
    below = folders_in(folder)
    places = [folder, *below, *(inner for place in below for inner in folders_in(place))]
    places = [place for place in places if _has_xml(place)]
    if len(named := [place for place in places if place.name.lower() == "annotations"]) == 1:
        places = named
    if len(places) == 1:
        return _one_voc(places[0], folder)
    splits = by_split([place / "x.xml" for place in places], folder)
    if "train" not in splits:
        return None
    labels: dict[Split, Path] = {split: path.parent for split, path in splits.items()}
    where = Path(os.path.commonpath(labels.values()))
    every = tuple(labels.values())
    made: dict[Split, MakeSource] = {
        split: partial(VocSource, place, _pictures_of(place, folder), label_folders=every)
        for split, place in labels.items()
    }
    return Found("Pascal VOC", where, made, f"its folders {' and '.join(str(one.relative_to(where)) for one in every)}")


def _one_voc(labels: Path, folder: Path) -> Found:
    images = _pictures_of(labels, folder)
    lists = labels.parent / "ImageSets" / "Main"
    lists = lists if lists.is_dir() else lists.parent
    texts = {path.name.lower(): path for path in sorted(lists.iterdir())} if lists.is_dir() else {}
    listed: dict[Split, Path] = {}
    for split in SPLITS:
        path = next((texts[f"{word}.txt"] for word in SPLIT_WORDS[split] if f"{word}.txt" in texts), None)
        if path is not None:
            listed[split] = path
    if "train" not in listed:
        where = labels if images == labels else labels.parent
        return Found("Pascal VOC", where, {"train": partial(VocSource, labels, images)}, "")
    by = f"its official lists {' and '.join(path.name for path in listed.values())}"
    made: dict[Split, MakeSource] = {
        split: partial(VocSource, labels, images, listed=path) for split, path in listed.items()
    }
    return Found("Pascal VOC", labels.parent, made, by)


def _pictures_of(labels: Path, folder: Path) -> Path:
    """Return the folder of the pictures of XML files: their own, else the nearest beside it that has the first one."""
    stem = next(path.stem for path in sorted(labels.iterdir()) if path.suffix.lower() == ".xml")
    above = [place for place in labels.parents if place == folder or folder in place.parents]
    places = [labels]
    for parent in above:
        for one in sorted(folders_in(parent), key=lambda place: place.name.lower() not in ("jpegimages", "images")):
            places += [one / labels.name, one]
    for place in places:
        if any(path.suffix.lower() in PICTURES for path in place.rglob(f"{glob.escape(stem)}.*")):
            return place
    return labels


def _has_xml(folder: Path) -> bool:
    """Return whether there is an XML file of Pascal VOC; the first ones may be damaged, which their reading says."""
    paths = (path for path in sorted(folder.iterdir()) if path.suffix.lower() == ".xml")
    return any(
        re.search(r"<(\w+:)?annotation[\s>]", read_text(path), re.IGNORECASE) for path in islice(paths, NAMES_TRIED)
    )

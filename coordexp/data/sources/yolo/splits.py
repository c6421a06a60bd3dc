"""The splits of a YOLO folder without ``data.yaml``."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from coordexp.data.sample import SPLITS, Split
from coordexp.data.sources.split_names import rank_of_name
from coordexp.data.sources.text_file import lines_of
from coordexp.data.sources.yolo.paths import PICTURE_FOLDERS, inner_folders, pictures_below
from coordexp.data.sources.yolo.yolo_set import Places

SPLIT_KEYS: Mapping[Split, tuple[str, ...]] = {"train": ("train",), "val": ("val", "valid", "validation", "test")}


def splits_of(folder: Path) -> Places:
    """Return the splits of a folder by its lists, else by its folders; of one that says none, nothing."""
    splits = _from_data(folder)
    for split, listed in _listed_splits(folder).items():
        splits.setdefault(split, (listed,))
    return splits if "train" in splits else _split_folders(folder)


def _listed_splits(folder: Path) -> dict[Split, Path]:
    """Return the lists of pictures that are named as splits: ``train.txt``, in any case."""
    texts = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.suffix.lower() == ".txt"}
    listed: dict[Split, Path] = {}
    for split, words in SPLIT_KEYS.items():
        path = next((texts[f"{word}.txt"] for word in words if f"{word}.txt" in texts), None)
        if path is not None:
            listed[split] = path
    return listed


def _from_data(folder: Path) -> Places:
    """Return the lists that darknet's ``obj.data`` names, where they are there."""
    found: Places = {}
    for path in sorted(folder.glob("*.data")):
        pairs = (line.partition("=") for line in lines_of(path))
        said = {key.strip(): value.strip() for key, _, value in pairs}
        for split, words in SPLIT_KEYS.items():
            listed = [folder / PurePosixPath(said[word].replace("\\", "/")).name for word in words if said.get(word)]
            if listed and listed[0].is_file():
                found[split] = (listed[0],)
    return found


def _split_folders(folder: Path) -> Places:
    """Return the splits that are folders of pictures: ``images/train``, ``train/images``, ``Train`` or ``val2017``."""
    for above in (*(place for name in PICTURE_FOLDERS for place in inner_folders(folder, name)), folder):
        inner = [place for place in sorted(above.iterdir()) if place.is_dir() and not place.name.startswith(".")]
        inner = [place for place in inner if next(pictures_below(place), None) is not None]
        chosen: Places = {}
        for split in SPLITS:
            ranks = {place: rank_of_name(split, place / "x", folder) for place in inner}
            known = [rank for rank in ranks.values() if rank is not None]
            if known:
                chosen[split] = tuple(_inner_pictures(place) for place, rank in ranks.items() if rank == min(known))
        if "train" in chosen:
            return chosen
    return {}


def _inner_pictures(folder: Path) -> Path:
    """Return the folder ``images`` inside a folder, or the folder itself."""
    return next((place for name in PICTURE_FOLDERS for place in inner_folders(folder, name)), folder)

"""The splits of a YOLO folder without ``data.yaml``: by darknet's and CVAT's lists, or by folders."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from coordexp.data.sample import SPLITS, Split
from coordexp.data.sources.split_names import rank_of_folder
from coordexp.data.sources.text_file import lines_of
from coordexp.data.sources.yolo.paths import picture_folders, pictures_below
from coordexp.data.sources.yolo.yolo_set import Places

SPLIT_KEYS: Mapping[Split, tuple[str, ...]] = {"train": ("train",), "val": ("val", "valid", "validation", "test")}
"""The words for a split in ``data.yaml``, ``obj.data`` and names of lists, the best one first."""


def splits_of(folder: Path) -> Places:
    """Return the splits of a folder by its lists, else by its folders; nothing if neither says one."""
    splits = _splits_of_data_files(folder)
    for split, path in _lists_named_as_splits(folder).items():
        splits.setdefault(split, (path,))
    return splits if "train" in splits else _split_folders(folder)


def _splits_of_data_files(folder: Path) -> Places:
    """Return the lists that darknet's ``obj.data`` names, if they are there."""
    splits: Places = {}
    for path in sorted(folder.glob("*.data")):
        value_of: dict[str, str] = {}
        for line in lines_of(path):
            key, _, value = line.partition("=")
            value_of[key.strip()] = value.strip()
        for split, keys in SPLIT_KEYS.items():
            written = [value_of[key] for key in keys if value_of.get(key)]
            if not written:
                continue
            # The path is often that of another machine: its last name is looked for here.
            listed = folder / PurePosixPath(written[0].replace("\\", "/")).name
            if listed.is_file():
                splits[split] = (listed,)
    return splits


def _lists_named_as_splits(folder: Path) -> dict[Split, Path]:
    """Return the lists of pictures that are named as splits: ``train.txt``, in any case."""
    path_of_name = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.suffix.lower() == ".txt"}
    lists: dict[Split, Path] = {}
    for split, words in SPLIT_KEYS.items():
        named = [path_of_name[f"{word}.txt"] for word in words if f"{word}.txt" in path_of_name]
        if named:
            lists[split] = named[0]
    return lists


def _split_folders(folder: Path) -> Places:
    """Return the splits that are folders of pictures: ``images/train``, ``train/images``, ``Train`` or ``val2017``."""
    for above in (*picture_folders(folder), folder):
        with_pictures = [place for place in _visible_folders(above) if next(pictures_below(place), None) is not None]
        splits: Places = {}
        for split in SPLITS:
            rank_of: dict[Path, int] = {}
            for place in with_pictures:
                rank = rank_of_folder(split, place, folder)
                if rank is not None:
                    rank_of[place] = rank
            if rank_of:
                best = min(rank_of.values())
                splits[split] = tuple(_inner_pictures(place) for place, rank in rank_of.items() if rank == best)
        if "train" in splits:
            return splits
    return {}


def _visible_folders(folder: Path) -> list[Path]:
    return [place for place in sorted(folder.iterdir()) if place.is_dir() and not place.name.startswith(".")]


def _inner_pictures(folder: Path) -> Path:
    """Return the folder ``images`` inside a folder, or the folder itself."""
    inner = picture_folders(folder)
    return inner[0] if inner else folder

"""``report.json`` of a set: what was read, by which keys, and what was repaired and refused."""

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from coordexp.data.sample import Split
from coordexp.data.split_data import Rejected
from coordexp.files import JsonValue, kept_model, sha256_of_text, write_json

_REPORT = "report.json"


@dataclass(frozen=True)
class CategoryRecord:
    """A category, with further fields such as LVIS's ``frequency``."""

    id: int
    name: str
    fields: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class SplitRecord:
    """What ``report.json`` says of a split.

    Attributes:
        annotations: the file or folder that the split was read from.
        folder: root of the pictures' names. It is relative to the set if the pictures lie beside the set, so that both
            can move together.
        name: the split's name in records.
        is_lvis: whether the split has what LVIS's AP needs.
        num_images: number of images.
        counts, categories, rejected, warnings, notes: as in :class:`coordexp.data.split_data.SplitData`.
        prequantised: the place of boxes that are bins already, with the cure; "" if none are.
    """

    annotations: str
    folder: str
    name: str
    is_lvis: bool
    num_images: int
    counts: Mapping[str, int]
    categories: Sequence[CategoryRecord]
    rejected: Sequence[Rejected]
    warnings: Sequence[str]
    notes: Sequence[str]
    prequantised: str = ""


@dataclass(frozen=True)
class SetIdentity:
    """What a set was made of: two sets of the same identity are equal.

    Attributes:
        reader: version of the code that reads.
        keys: every configuration key that changes reading and is not the default.
        source: hash of annotations, of names and sizes of the pictures, and of the pictures' bytes.
    """

    reader: int
    keys: Mapping[str, JsonValue]
    source: str

    @property
    def unit_by(self) -> str | None:
        """``data.unit_by``; None without it."""
        value = self.keys.get("data.unit_by")
        return value if isinstance(value, str) else None


@dataclass(frozen=True)
class SetRecord:
    """What ``report.json`` holds.

    Attributes:
        identity: what the set was made of.
        found: what the user's folder was found to hold; "" if files were named.
        remarks: on units and tags, a sentence each.
        content: hash of everything that decides a number of a run, except the bytes of the pictures.
        pictures: hash of the bytes of the pictures.
        is_original: whether the ground truth has the bytes of the annotation file.
        files: hash of each file of the set.
        splits: what was read of each split.
    """

    identity: SetIdentity
    found: str
    remarks: Sequence[str]
    content: str
    pictures: str
    is_original: bool
    files: Mapping[str, str]
    splits: Mapping[Split, SplitRecord]

    @property
    def data_hash(self) -> str:
        """What a run's fingerprint says of its data."""
        return sha256_of_text(f"{self.content}\n{self.pictures}")


def write_record(folder: Path, record: SetRecord) -> None:
    write_json(folder / _REPORT, asdict(record), indent=1)


def read_record(folder: Path) -> SetRecord | None:
    """Return what ``report.json`` holds, read once in a process unless it changes; None if missing or damaged."""
    path = folder / _REPORT
    try:
        stat = path.stat()
    except OSError:
        return None
    return _parsed_record(path, stat.st_mtime_ns, stat.st_size, stat.st_ino)


@functools.lru_cache(maxsize=8)
def _parsed_record(path: Path, *stamp: int) -> SetRecord | None:
    del stamp  # part of the cache's key: a file that changed is parsed again
    return kept_model(SetRecord, path)


def with_folders(record: SetRecord, folders: Mapping[Split, tuple[Path, Path]], data_dir: Path) -> SetRecord:
    """Return the record of a copied set, with the places where this experiment has annotations and pictures.

    Args:
        record: of the set that was copied.
        folders: annotations and root of the pictures of each split.
        data_dir: folder of this experiment's data.
    """
    splits: dict[Split, SplitRecord] = {}
    for split, (annotations, folder) in folders.items():
        splits[split] = replace(
            record.splits[split], annotations=str(annotations), folder=recorded_folder(folder, data_dir)
        )
    return replace(record, splits=splits)


def recorded_folder(folder: Path, data_dir: Path) -> str:
    """Return how a record names a folder of pictures: relative to the set if ``data_dir`` holds both, else absolute."""
    pictures = Path(os.path.abspath(folder))
    data = Path(os.path.abspath(data_dir))
    if not pictures.is_relative_to(data):
        return str(pictures)
    # The set itself is a folder in ``data_dir``.
    return (Path("..") / pictures.relative_to(data)).as_posix()

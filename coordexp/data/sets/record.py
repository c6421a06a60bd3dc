"""``report.json`` of a set: what was read, by which keys, and what was repaired and refused."""

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from coordexp.data.sample import Split
from coordexp.data.split_data import Rejected
from coordexp.files import JsonValue, kept_model, sha256_of_text, write_json

REPORT = "report.json"


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
        annotations: the file or folder that it was read from.
        folder: root of the pictures' names; relative to the set where pictures lie beside it, so that both can move.
        name: of the split in records.
        is_lvis: it has what LVIS's AP needs.
        num_images: how many there are.
        counts, categories, rejected, warnings, notes: as in :class:`coordexp.data.split_data.SplitData`.
        prequantised: where boxes are bins already, with the cure; "" if none are.
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
    """What a set was made of; with the same identity, it is the same set."""

    reader: int  # version of what reads
    keys: Mapping[str, JsonValue]  # every key that changes reading
    source: str  # hash of annotations, of names and sizes of the pictures, and of their bytes

    @property
    def unit_by(self) -> str | None:
        value = self.keys.get("data.unit_by")
        return value if isinstance(value, str) else None


@dataclass(frozen=True)
class SetRecord:
    """What ``report.json`` holds.

    Attributes:
        found: what the user's folder was found to hold; "" where files were named.
        remarks: on units and tags, a sentence each.
        content: hash of all that decides a number of a run, besides the bytes of the pictures.
        pictures: hash of those bytes.
        is_original: the ground truth has the bytes of the annotation file.
        files: hash of each file of the set.
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
    write_json(folder / REPORT, asdict(record), indent=1)


def with_folders(record: SetRecord, folders: Mapping[Split, tuple[Path, Path]], data_dir: Path) -> SetRecord:
    """Return the record of a copied set, whose annotations and pictures lie where this experiment has them."""
    splits: dict[Split, SplitRecord] = {}
    for split, (annotations, folder) in folders.items():
        splits[split] = replace(
            record.splits[split], annotations=str(annotations), folder=recorded_folder(folder, data_dir)
        )
    return replace(record, splits=splits)


def recorded_folder(folder: Path, data_dir: Path) -> str:
    """Return how a record names a folder of pictures: from the set, where they lie in the same folder of data."""
    place, beside = Path(os.path.abspath(folder)), Path(os.path.abspath(data_dir))
    return (Path("..") / place.relative_to(beside)).as_posix() if place.is_relative_to(beside) else str(place)


@functools.lru_cache(maxsize=8)
def _parsed_record(path: Path, *stamp: int) -> SetRecord | None:
    del stamp
    return kept_model(SetRecord, path)


def read_record(folder: Path) -> SetRecord | None:
    """Return what ``report.json`` holds, read once in a process unless it changes; None where it is damaged."""
    path = folder / REPORT
    try:
        stat = path.stat()
    except OSError:
        return None
    return _parsed_record(path, stat.st_mtime_ns, stat.st_size, stat.st_ino)

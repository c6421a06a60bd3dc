"""The set of an experiment: its data as they were read once, in a folder from which every run and report reads.

    report.json             what was read, by which keys; what was repaired, refused and remarked; a hash of each file
    train.npz, val.npz      every image and object of a split, see :mod:`coordexp.data.split_arrays`
    pictures.npz            the hash of each picture
    val_ground_truth.json   the COCO file that AP is measured on: the original bytes where they can be read as they are
    val_images.json         id, path, unit and tags of each validation image, for reports and slices

The first step of a command makes it (:mod:`coordexp.data.sources.door`). Whoever else opens it trusts it.
"""

import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordexp.config.schema import KEYS
from coordexp.config.schema.data import Data
from coordexp.config.schema.fields import Key
from coordexp.config.trees import Tree, leaves
from coordexp.data.image_facts import write_image_facts
from coordexp.data.sample import Rejected, Split, SplitData
from coordexp.data.split_arrays import SplitArrays, load_arrays, load_samples, save_arrays
from coordexp.errors import DataError, counted
from coordexp.files import JsonValue, kept_model, sha256_of_file, sha256_of_text, write_json

GROUND_TRUTH = "val_ground_truth.json"
IMAGE_FACTS = "val_images.json"

_REPORT = "report.json"
_PICTURES = "pictures.npz"
# Chosen from a set, which holds all pictures; or kept beside them, and free to change while runs go on.
_NOT_OF_THE_SET = ("data.max_train_images", "data.train_subset_seed")
_NOT_IN_THE_NAME = ("data.unit_by", "data.tags")


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
        counts, categories, rejected, warnings, notes: as in :class:`coordexp.data.sample.SplitData`.
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


@dataclass(frozen=True)
class DataSet:
    """A set that is there."""

    path: Path
    record: SetRecord

    @classmethod
    def open(cls, path: Path) -> "DataSet":
        """Open a set without checking its files, or raise a DataError that says how it is made."""
        record = _read_record(path)
        if record is None:
            raise DataError(
                f"{path}: there is no data set of this experiment, or it is damaged; ablation, sweep, train, doctor "
                "and inspect make it in their first step"
            )
        return cls(path, record)

    @classmethod
    def kept(cls, path: Path) -> "DataSet | None":
        """Return a set whose files are all as they were written; None where it has to be made."""
        record = _read_record(path)
        if record is None:
            return None
        for name, written in record.files.items():
            file = path / name
            if not file.is_file() or sha256_of_file(file) != written:
                return None
        return cls(path, record)

    @property
    def ground_truth(self) -> Path:
        return self.path / GROUND_TRUTH

    @property
    def image_facts(self) -> Path:
        return self.path / IMAGE_FACTS

    def has_picture_folders(self) -> bool:
        """Return whether the folders of the pictures are there; some are unpacked beside the set, and may be gone."""
        return all(self.folder(split).is_dir() for split in self.record.splits)

    def folder(self, split: Split) -> Path:
        """Return the root of a split's pictures."""
        return Path(os.path.normpath(self.path / self.record.splits[split].folder))

    def summaries(self) -> dict[Split, str]:
        """Return in one line how many images each split has, how many units, and which tags."""
        summaries: dict[Split, str] = {}
        for split in self.record.splits:
            arrays = self.arrays(split)
            parts = [counted(len(arrays), "image"), counted(len(arrays.kinds), "object")]
            turned = int((arrays.orientations != 1).sum())
            if turned:
                parts.append(f"{turned:,} turned by EXIF")
            if arrays.units:
                parts.append(counted(arrays.num_units(), "unit"))
            parts += [f"tag {tag}: {counted(len(set(values)), 'value')}" for tag, values in arrays.tags.items()]
            summaries[split] = ", ".join(parts)
        return summaries

    def load(self, split: Split) -> SplitData:
        """Return a split as samples, in milliseconds."""
        record = self.record.splits[split]
        return SplitData(
            samples=load_samples(self.path / f"{split}.npz", self.folder(split)),
            rejected=tuple(record.rejected),
            counts=dict(record.counts),
            categories={category.id: category.name for category in record.categories},
            warnings=tuple(record.warnings),
            notes=tuple(record.notes),
        )

    def arrays(self, split: Split) -> SplitArrays:
        """Return all that is known of a split, units and tags with it."""
        return load_arrays(self.path / f"{split}.npz", self.folder(split))

    def picture_hashes(self) -> dict[Split, NDArray[np.uint8]]:
        """Return ``[I, 32]`` SHA-256 of the pictures of each split; zeros where a picture was not read."""
        with np.load(self.path / _PICTURES, allow_pickle=False) as file:
            return {split: file[split] for split in self.record.splits}


def save_set(
    folder: Path,
    *,
    identity: SetIdentity,
    found: str,
    remarks: Sequence[str],
    is_original: bool,
    arrays: Mapping[Split, SplitArrays],
    records: Mapping[Split, SplitRecord],
    pictures: Mapping[Split, NDArray[np.uint8]],
) -> SetRecord:
    """Write a set into a folder that already holds its ground truth, ``report.json`` last; return that."""
    for split in arrays:
        save_arrays(arrays[split], folder / f"{split}.npz")
    with (folder / _PICTURES).open("wb") as file:
        np.savez(file, allow_pickle=False, **pictures)
    write_image_facts(folder / IMAGE_FACTS, arrays["val"], unit_by=identity.unit_by)
    names = (*(f"{split}.npz" for split in arrays), _PICTURES, GROUND_TRUTH, IMAGE_FACTS)
    files = {name: sha256_of_file(folder / name) for name in names}
    categories = {split: [asdict(category) for category in records[split].categories] for split in arrays}
    content = [arrays[split].digest() for split in arrays]
    content += [json.dumps(categories, sort_keys=True), files[GROUND_TRUTH]]
    record = SetRecord(
        identity=identity,
        found=found,
        remarks=remarks,
        content=sha256_of_text("\n".join(content)),
        pictures=sha256_of_text("".join(pictures[split].tobytes().hex() for split in arrays)),
        is_original=is_original,
        files=files,
        splits=records,
    )
    write_record(folder, record)
    return record


def write_record(folder: Path, record: SetRecord) -> None:
    write_json(folder / _REPORT, asdict(record), indent=1)


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


def set_keys(data: Data) -> dict[str, JsonValue]:
    """Return the keys that decide what is in the set, where they are not the default; paths are no part of it."""
    return _keys_that(data, lambda key: key.role != "input")


def set_name(data: Data) -> str:
    """Return the name of a set's folder: groups that read other data, or otherwise, have sets of their own.

    ``data.unit_by`` and ``data.tags`` have no part in it: a set with them takes the place of one without.
    """
    keys = _keys_that(data, lambda key: key.name not in _NOT_IN_THE_NAME)
    return f"set-{sha256_of_text(json.dumps(keys, sort_keys=True))[:8]}"


def _keys_that(data: Data, keep: Callable[[Key], bool]) -> dict[str, JsonValue]:
    """Return keys that change reading, by their dotted names; a later key leaves sets of its default as they are."""
    values = leaves({"data": data.model_dump(mode="json")}, is_whole=_is_value)
    defaults = leaves({"data": Data().model_dump(mode="json")}, is_whole=_is_value)
    return {
        name: value
        for name, value in values.items()
        if "data" in KEYS[name].decides
        and name not in _NOT_OF_THE_SET
        and keep(KEYS[name])
        and value != defaults.get(name)
    }


def _is_value(key: str, tree: Tree) -> bool:
    return key in KEYS


@functools.lru_cache(maxsize=8)
def _parsed_record(path: Path, *stamp: int) -> SetRecord | None:
    del stamp
    return kept_model(SetRecord, path)


def _read_record(folder: Path) -> SetRecord | None:
    """Return what ``report.json`` holds, read once in a process unless it changes; None where it is damaged."""
    path = folder / _REPORT
    try:
        stat = path.stat()
    except OSError:
        return None
    return _parsed_record(path, stat.st_mtime_ns, stat.st_size, stat.st_ino)


def sets_in(data_dir: Path) -> list[DataSet]:
    """Return the sets of an experiment's folder of data; one that is damaged is none."""
    records = {folder: _read_record(folder) for folder in sorted(data_dir.glob("set-*"))}
    return [DataSet(folder, record) for folder, record in records.items() if record is not None]

"""The set of an experiment: its data as they were read once, in a folder from which every run and report reads.

    report.json             what was read, by which keys; what was repaired, refused and remarked; a hash of each file
    train.npz, val.npz      every image and object of a split, see :mod:`coordexp.data.sets.split_arrays`
    pictures.npz            the hash of each picture
    val_ground_truth.json   the COCO file that AP is measured on: the original bytes if they can serve as they are
    val_images.json         id, path, unit and tags of each validation image, for reports and slices

The first step of a command checks the set or makes it (:mod:`coordexp.data.sources.door`). Everybody else opens it
without a check: a worker cannot wait until all files are hashed.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordexp.data.sample import Split
from coordexp.data.sets.array_file import load_arrays, load_samples, save_arrays
from coordexp.data.sets.image_facts import write_image_facts
from coordexp.data.sets.record import SetIdentity, SetRecord, SplitRecord, read_record, write_record
from coordexp.data.sets.split_arrays import SplitArrays
from coordexp.data.split_data import SplitData
from coordexp.errors import DataError, counted
from coordexp.files import sha256_of_file, sha256_of_text

GROUND_TRUTH = "val_ground_truth.json"
IMAGE_FACTS = "val_images.json"
_PICTURES = "pictures.npz"


@dataclass(frozen=True)
class DataSet:
    """A set that is there: its folder, and what its ``report.json`` holds."""

    path: Path
    record: SetRecord

    @classmethod
    def open(cls, path: Path) -> "DataSet":
        """Open a set without checking its files.

        Raises:
            DataError: if there is none; it says which commands make it.
        """
        record = read_record(path)
        if record is None:
            raise DataError(
                f"{path}: there is no data set of this experiment, or it is damaged; ablation, sweep, train, doctor "
                "and inspect make it in their first step"
            )
        return cls(path, record)

    @classmethod
    def kept(cls, path: Path) -> "DataSet | None":
        """Return a set whose files are all as they were written; None if it has to be made."""
        record = read_record(path)
        if record is None:
            return None
        for name, recorded_hash in record.files.items():
            file = path / name
            if not file.is_file() or sha256_of_file(file) != recorded_hash:
                return None
        return cls(path, record)

    @property
    def ground_truth(self) -> Path:
        return self.path / GROUND_TRUTH

    @property
    def image_facts(self) -> Path:
        return self.path / IMAGE_FACTS

    def has_picture_folders(self) -> bool:
        """Return whether the folders of the pictures are there; pictures unpacked beside the set may be deleted."""
        return all(self.folder(split).is_dir() for split in self.record.splits)

    def folder(self, split: Split) -> Path:
        """Return the root of a split's pictures."""
        return Path(os.path.normpath(self.path / self.record.splits[split].folder))

    def summaries(self) -> dict[Split, str]:
        """Return one line for each split: how many images, objects and units it has, and which tags."""
        summaries: dict[Split, str] = {}
        for split in self.record.splits:
            arrays = self.arrays(split)
            counts = [counted(len(arrays), "image"), counted(len(arrays.kinds), "object")]
            num_turned = int((arrays.orientations != 1).sum())
            if num_turned:
                counts.append(f"{num_turned:,} turned by EXIF")
            if arrays.units:
                counts.append(counted(arrays.num_units(), "unit"))
            for tag, values in arrays.tags.items():
                counts.append(f"tag {tag}: {counted(len(set(values)), 'value')}")
            summaries[split] = ", ".join(counts)
        return summaries

    def load(self, split: Split) -> SplitData:
        """Return a split as samples: only the columns that a rank needs are read, in milliseconds."""
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
        """Return everything that the set holds of a split, units and tags included."""
        return load_arrays(self.path / f"{split}.npz", self.folder(split))

    def picture_hashes(self) -> dict[Split, NDArray[np.uint8]]:
        """Return ``[I, 32]`` SHA-256 of the pictures of each split; zeros for a picture that was not read."""
        with np.load(self.path / _PICTURES, allow_pickle=False) as file:
            return {split: file[split] for split in self.record.splits}


def save_set(
    folder: Path,
    *,
    identity: SetIdentity,
    folder_sentence: str,
    remarks: Sequence[str],
    is_original: bool,
    arrays: Mapping[Split, SplitArrays],
    records: Mapping[Split, SplitRecord],
    pictures: Mapping[Split, NDArray[np.uint8]],
) -> SetRecord:
    """Write a set into a folder that already holds its ground truth.

    ``report.json`` is written last: a folder without it is no set.

    Args:
        folder: of the set.
        identity: what the set is made of.
        folder_sentence: what the user's folder was found to hold; "" if files were named.
        remarks: on units and tags, a sentence each.
        is_original: whether the ground truth has the bytes of the annotation file.
        arrays: of each split.
        records: of each split.
        pictures: ``[I, 32]`` SHA-256 of the pictures of each split.

    Returns:
        What ``report.json`` holds.
    """
    for split in arrays:
        save_arrays(arrays[split], folder / f"{split}.npz")
    with (folder / _PICTURES).open("wb") as file:
        np.savez(file, allow_pickle=False, **pictures)
    write_image_facts(folder / IMAGE_FACTS, arrays["val"], unit_by=identity.unit_by)

    array_files = [f"{split}.npz" for split in arrays]
    file_hashes = {name: sha256_of_file(folder / name) for name in (*array_files, _PICTURES, GROUND_TRUTH, IMAGE_FACTS)}
    picture_hashes = "".join(pictures[split].tobytes().hex() for split in arrays)
    record = SetRecord(
        identity=identity,
        found=folder_sentence,
        remarks=remarks,
        content=_content_hash(arrays, records, ground_truth_hash=file_hashes[GROUND_TRUTH]),
        pictures=sha256_of_text(picture_hashes),
        is_original=is_original,
        files=file_hashes,
        splits=records,
    )
    write_record(folder, record)
    return record


def _content_hash(
    arrays: Mapping[Split, SplitArrays], records: Mapping[Split, SplitRecord], *, ground_truth_hash: str
) -> str:
    """Return the hash of everything that decides a number of a run, except the bytes of the pictures."""
    categories = {split: [asdict(category) for category in records[split].categories] for split in arrays}
    hashed = [arrays[split].digest() for split in arrays]
    hashed.append(json.dumps(categories, sort_keys=True))
    hashed.append(ground_truth_hash)
    return sha256_of_text("\n".join(hashed))


def sets_in(data_dir: Path) -> list[DataSet]:
    """Return the sets of an experiment's folder of data, without those that are damaged."""
    sets: list[DataSet] = []
    for folder in sorted(data_dir.glob("set-*")):
        record = read_record(folder)
        if record is not None:
            sets.append(DataSet(folder, record))
    return sets

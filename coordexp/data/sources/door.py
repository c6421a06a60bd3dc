"""The one door for data: whatever a user has -> the set of an experiment, read once.

The first step of a command checks whether the set is still that of its sources, and makes it if not. Nobody else reads
an annotation file of a training or validation split.

    sources present? -- no --> failures
      | yes
    set is there, of this identity, undamaged? -- yes --> take it
      | no
    another experiment has a set of this identity? -- yes --> copy it
      | no
    read all files, write the set (refused if a run has taken a step on other data)
"""

import contextlib
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordexp.config.schema.data import Data
from coordexp.data.sample import SPLITS, Split
from coordexp.data.sets.changes import changes_between
from coordexp.data.sets.data_set import GROUND_TRUTH, DataSet, save_set
from coordexp.data.sets.fingerprint import data_fingerprint, picture_hashes
from coordexp.data.sets.keys import set_keys, set_name
from coordexp.data.sets.record import (
    CategoryRecord,
    SetIdentity,
    SplitRecord,
    recorded_folder,
    with_folders,
    write_record,
)
from coordexp.data.sources.coco.source import LvisSource
from coordexp.data.sources.read_data import ReadData, present_sources, read_data
from coordexp.data.sources.read_split import ReadSplit, as_coco
from coordexp.data.sources.source import Source, found_sentence, source_of
from coordexp.data.split_data import SplitData
from coordexp.data.splits.check import check_loaded
from coordexp.data.splits.tuning import DividedTraining
from coordexp.errors import DataError
from coordexp.files import replace_directory, sha256_of_file, write_json
from coordexp.findings import Check, ok, require

_log = logging.getLogger(__name__)

READER_VERSION = 1
"""Raised when equal sources would give another set."""


@dataclass(frozen=True)
class SetPlace:
    """Where a set belongs.

    Attributes:
        data_dir: folder of an experiment's data.
        known: folder in which the hashes of pictures are kept, shared by all experiments beside this one.
        runs_dir: folder of all experiments, which may have equal sets; None outside of experiments.
        has_begun: whether a run has taken a step on the data, which must not change any more.
    """

    data_dir: Path
    known: Path
    runs_dir: Path | None = None
    has_begun: bool = False


def open_set(data: Data, place: SetPlace, *, splits: Sequence[Split] = SPLITS) -> DataSet:
    """Return the set of some data; it is made if it is not there, or its sources have changed.

    Arguments are those of :func:`check_set`.

    Raises:
        DataError: if the data cannot be used, or have changed since a run has taken a step on them.
    """
    data_set = require(check_set(data, place, splits=splits))
    assert data_set is not None  # a missing file was a failure
    return data_set


def check_set(data: Data, place: SetPlace, *, splits: Sequence[Split] = SPLITS) -> Check[DataSet | None]:
    """Check whether the set is that of its sources, and make it if not; only one command at a time may do this.

    Args:
        data: the keys that say where the data are and how they are read.
        place: where the set belongs.
        splits: which ones the set holds; an evaluation has no training images.

    Returns:
        The set; None, after failures, if the data cannot be used.
    """
    sources = yield from present_sources(data, place.data_dir, splits)
    if sources is None:
        return None
    sentence = found_sentence(data)
    if sentence:
        yield ok("data", f"{data.path}: {sentence}")
    identity = SetIdentity(READER_VERSION, set_keys(data), _source_hash(data, sources, place))
    folder = place.data_dir / set_name(data)
    data_set = DataSet.kept(folder)
    if data_set is None or data_set.record.identity != identity or not data_set.has_picture_folders():
        data_set = _copied(folder, identity, sources, place)
    else:
        _log.debug("the set %s is that of its sources", folder)
    if data_set is None:
        _log.debug("the set %s is made of its sources", folder)
        read = yield from read_data(data, sources, folder_sentence=sentence)
        if read is None:
            return None
        data_set = _written(folder, read, identity, place)
    _show_ground_truth(data_set, place.data_dir)
    for remark in data_set.record.remarks:
        yield ok("data", remark)
    return data_set


def load_split(
    data: Data,
    split: Split,
    *,
    data_dir: Path,
    accept_prequantised: bool = False,
    max_images: int | None = None,
) -> SplitData:
    """Read data and return one of its splits, without writing a set: for commands that need no experiment.

    Args:
        data: the keys that say where the data are and how they are read.
        split: which one is returned.
        data_dir: where generated pictures are written.
        accept_prequantised: whether boxes may be bins already.
        max_images: how many validation images are chosen; None for all.

    Raises:
        DataError: if the data cannot be used, or boxes are bins already without ``accept_prequantised``.
    """
    has_official_split = source_of(data, split, data_dir=data_dir).part is None
    # Data without an official split are read whole, and divided.
    read = require(read_unwritten(data, data_dir=data_dir, splits=(split,) if has_official_split else SPLITS))
    assert read is not None  # a missing file was a failure
    return require(check_read(read, data, split, accept_prequantised=accept_prequantised, max_images=max_images))


def read_unwritten(data: Data, *, data_dir: Path, splits: Sequence[Split] = SPLITS) -> Check[ReadData | None]:
    """Read splits for a command that makes no set; only pictures that are generated are written."""
    sources = yield from present_sources(data, data_dir, splits)
    if sources is None:
        return None
    sentence = found_sentence(data)
    if sentence:
        yield ok("data", f"{data.path}: {sentence}")
    return (yield from read_data(data, sources, folder_sentence=sentence))


def check_read(
    read: ReadData, data: Data, split: Split, *, accept_prequantised: bool, max_images: int | None = None
) -> Check[SplitData]:
    """Check whether a run can use data that were read, as :func:`~coordexp.data.splits.check.check_split` does."""
    read_split, source = read.splits[split], read.sources[split]
    if read_split.prequantised and not accept_prequantised:
        raise DataError(read_split.prequantised)
    loaded = yield from check_loaded(
        read_split.data,
        data,
        split,
        annotations=str(source.annotations),
        is_lvis=isinstance(source, LvisSource),
        max_images=max_images,
    )
    if loaded is None:
        raise DataError(f"{source.annotations}: the {split} split cannot be used")
    return loaded


def _source_hash(data: Data, sources: Mapping[Split, Source], place: SetPlace) -> str:
    """Return a hash of annotations and pictures, and of the file of tags."""
    paths = [path for source in sources.values() for path in (source.annotations, source.given_images)]
    # A missing file of tags is reported when it is read.
    if isinstance(data.tags, Path) and data.tags.is_file():
        paths.append(data.tags)
    return data_fingerprint(dict.fromkeys(paths), known=place.known, without=place.runs_dir or place.data_dir)


def _written(folder: Path, read: ReadData, identity: SetIdentity, place: SetPlace) -> DataSet:
    """Write a set in one step: it is whole or absent. Refuse it if a run has taken a step on other data."""
    hashes: dict[Split, NDArray[np.uint8]] = {}
    for split, read_split in read.splits.items():
        hashes[split] = picture_hashes(read_split.arrays.folder, read_split.arrays.names, known=place.known)
    with replace_directory(folder) as building:
        _write_ground_truth(building / GROUND_TRUTH, read)
        record = save_set(
            building,
            identity=identity,
            folder_sentence=read.folder_sentence,
            remarks=read.remarks,
            is_original=read.splits["val"].is_original,
            arrays={split: read_split.arrays for split, read_split in read.splits.items()},
            records={split: _split_record(read, split, place.data_dir) for split in read.splits},
            pictures=hashes,
        )
        if place.has_begun:
            _refuse_changes(folder, DataSet(building, record))
    return DataSet(folder, record)


def save_parts(divided: DividedTraining, whole: DataSet, data: Data, place: SetPlace) -> DataSet:
    """Write the set of a tuning split from the set of the whole: nothing is read again.

    Args:
        divided: the parts.
        whole: the set from which they were chosen.
        data: the keys that name the annotation files of the parts, which are there.
        place: where the set belongs.
    """
    sources = require(present_sources(data, place.data_dir, SPLITS))
    assert sources is not None  # they have just been written
    identity = SetIdentity(READER_VERSION, set_keys(data), _source_hash(data, sources, place))
    folder = place.data_dir / set_name(data)
    existing_set = DataSet.kept(folder)
    if existing_set is not None and existing_set.record.identity == identity:
        return existing_set
    splits: dict[Split, ReadSplit] = {}
    for split, arrays in divided.parts.items():
        splits[split] = ReadSplit(
            arrays,
            rejected=(),
            counts=arrays.counts(),
            categories=divided.categories,
            category_fields=divided.category_fields,
            is_original=True,  # of the file that was written for this part
        )
    read = ReadData(sources, splits, whole.record.found, whole.record.remarks)
    return _written(folder, read, identity, place)


def _write_ground_truth(path: Path, read: ReadData) -> None:
    """Write the COCO file that AP is measured on: a copy of the annotations if they can serve as they are."""
    val = read.splits["val"]
    if val.is_original:
        shutil.copyfile(read.sources["val"].annotations, path)
    else:
        write_json(path, {"info": {"description": val.description}, **as_coco(val)})


def _split_record(read: ReadData, split: Split, data_dir: Path) -> SplitRecord:
    read_split, source = read.splits[split], read.sources[split]
    categories: list[CategoryRecord] = []
    for category_id, name in read_split.categories.items():
        fields = dict(read_split.category_fields.get(category_id, {}))
        categories.append(CategoryRecord(category_id, name, fields))
    return SplitRecord(
        annotations=str(source.annotations),
        folder=recorded_folder(read_split.arrays.folder, data_dir),
        name=source.name,
        is_lvis=isinstance(source, LvisSource),
        num_images=len(read_split.arrays),
        counts=dict(read_split.counts),
        categories=categories,
        rejected=list(read_split.rejected),
        warnings=list(read_split.warnings),
        notes=list(read_split.notes),
        prequantised=read_split.prequantised,
    )


def _refuse_changes(folder: Path, now: DataSet) -> None:
    """Raise a DataError if the data of a set are not those on which runs have taken steps."""
    before = DataSet.kept(folder)
    # A set that is damaged is made again. The fingerprints of its runs still say what data they were trained on.
    if before is None or before.record.data_hash == now.record.data_hash:
        return
    raise DataError(
        f"{changes_between(before, now)}, and runs of this experiment have taken steps on the data as they were; put "
        "them back, choose another experiment.name, or --fresh"
    )


def _copied(folder: Path, identity: SetIdentity, sources: Mapping[Split, Source], place: SetPlace) -> DataSet | None:
    """Copy the set of another experiment that read the same.

    Returns:
        The set in ``folder``; None if there is no such set, pictures are still to be unpacked, or this experiment's set
        may not change any more.
    """
    are_pictures_there = all(source.images.is_dir() for source in sources.values())
    if place.runs_dir is None or place.has_begun or not are_pictures_there:
        return None
    for other_folder in sorted(place.runs_dir.glob(f"*/{place.data_dir.name}/{folder.name}")):
        other_set = None if other_folder == folder else DataSet.kept(other_folder)
        if other_set is None or other_set.record.identity != identity:
            continue
        folders: dict[Split, tuple[Path, Path]] = {
            split: (source.annotations, source.images) for split, source in sources.items()
        }
        record = with_folders(other_set.record, folders, place.data_dir)
        # The other experiment may be removed meanwhile: then the set is made from the files.
        with contextlib.suppress(OSError), replace_directory(folder) as building:
            shutil.copytree(other_folder, building, dirs_exist_ok=True)
            write_record(building, record)
        return DataSet.kept(folder)
    return None


def _show_ground_truth(data_set: DataSet, data_dir: Path) -> None:
    """Leave a copy of the ground truth at ``data/val_ground_truth.json``, if it was made, for people and commands.

    The set's own folder has a name that nobody can guess.
    """
    shown = data_dir / GROUND_TRUTH
    if data_set.record.is_original:
        shown.unlink(missing_ok=True)  # a file from other keys would be taken for this one
        return
    if shown.is_file() and sha256_of_file(shown) == data_set.record.files[GROUND_TRUTH]:
        return
    # Copied beside it and moved in one step: another command may be reading the file.
    temporary = shown.with_name(f".{shown.name}.{os.getpid()}.tmp")
    try:
        shutil.copyfile(data_set.ground_truth, temporary)
        temporary.replace(shown)
    finally:
        temporary.unlink(missing_ok=True)

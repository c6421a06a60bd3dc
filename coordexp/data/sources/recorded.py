"""Where the validation data of a finished run are: its experiment's set, or what runs before sets recorded of theirs.

The one module of ``data/sources`` that reports use. Version 0.2 wrote no set: the ground truth is then found again by
the parameters of the run.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from coordexp.config.schema.data import Data
from coordexp.data.reading import Reading
from coordexp.data.sets.data_set import GROUND_TRUTH, DataSet, sets_in
from coordexp.data.sources.folder.find import find_folder
from coordexp.data.sources.jsonl.source import ground_truth_name
from coordexp.data.splits.chosen import CHOSEN_NAME
from coordexp.errors import DataError, show
from coordexp.files import sha256_of_file
from coordexp.limits import MAX_SEED

_FORMATS: tuple[str, ...] = get_args(Data.model_fields["format"].annotation)


@dataclass(frozen=True)
class RecordedData:
    """What a run was evaluated on.

    Attributes:
        ground_truth: the COCO file that AP was measured on; it may be missing.
        images: folder of its pictures.
        data_set: where both are from; None for a run before sets.
    """

    ground_truth: Path
    images: Path
    data_set: DataSet | None = None

    @property
    def shown_ground_truth(self) -> Path:
        """Where a person finds the same bytes, for a command to copy."""
        if self.data_set is None or self.ground_truth.name == CHOSEN_NAME:
            return self.ground_truth
        record = self.data_set.record
        data_dir = self.data_set.path.parent
        shown = Path(record.splits["val"].annotations) if record.is_original else data_dir / GROUND_TRUTH
        is_same = shown.is_file() and sha256_of_file(shown) == record.files[GROUND_TRUTH]
        return shown if is_same else self.ground_truth


def recorded_data(params: Mapping[str, str], *, data_hash: str | None, data_dir: Path | None) -> RecordedData | None:
    """Return the validation data of a run; None where they are not known to be here.

    Args:
        params: parameters of the run, as the tracking server has them.
        data_hash: of its data, as its fingerprint says; None where that is not here.
        data_dir: folder of the experiment's data, if it is here.

    Raises:
        DataError: if a parameter that is needed for it holds what coordexp never writes: somebody has edited it.
    """
    is_chosen = params.get("evaluation.max_images", "null") != "null"
    if is_chosen:
        _whole(params, "evaluation.max_images", 1, least=1)
        _whole(params, "data.split_seed", Data().split_seed, least=0)
    sets = [] if data_dir is None else sets_in(data_dir)
    matching = [one for one in sets if data_hash in (None, one.record.data_hash)]
    if matching and data_dir is not None:
        data_set = matching[0]
        truth = data_dir / CHOSEN_NAME if is_chosen else data_set.ground_truth
        return RecordedData(truth, data_set.folder("val"), data_set)
    if sets:
        return None  # what is there is of other data
    before_sets = _without_set(params, data_dir)
    if before_sets is None or not is_chosen:
        return before_sets
    return None if data_dir is None else RecordedData(data_dir / CHOSEN_NAME, before_sets.images)


def _without_set(params: Mapping[str, str], data_dir: Path | None) -> RecordedData | None:
    form = params.get("data.format", "shapes")
    if form not in _FORMATS:
        raise _edited("data.format", form, f"one of {', '.join(_FORMATS)}")
    if form == "shapes":
        return None if data_dir is None else RecordedData(data_dir / "instances_val.json", data_dir / "val")
    made = None if data_dir is None else data_dir / ground_truth_name("val")
    if form == "auto":
        return _in_folder(params, made)
    annotations, images = params.get("data.val_annotations"), params.get("data.val_images")
    if annotations is None:
        return None
    path = Path(annotations)
    # Without a folder of images: a path that does not exist.
    folder = path / "images" if images is None else Path(images)
    if form == "jsonl" or path.suffix == ".jsonl":
        return None if made is None else RecordedData(made, folder)
    return RecordedData(made if made is not None and made.is_file() else path, folder)


def _in_folder(params: Mapping[str, str], made: Path | None) -> RecordedData | None:
    """Return what a run read from ``data.path``: its folder may be on another machine, and the ground truth here."""
    recorded_path = params.get("data.path")
    try:
        if recorded_path is None:
            raise DataError("a run with data.format: auto has recorded no data.path")
        found = find_folder(Path(recorded_path))
    except DataError:
        return RecordedData(made, made.parent / "images") if made is not None and made.is_file() else None
    default = Data()  # what a record leaves out
    fraction = _fraction(params, "data.val_fraction", default.val_fraction)
    seed = _whole(params, "data.split_seed", default.split_seed, least=0)
    where = found.where if made is None else made.parent
    source = found.source("val", data_dir=where, reading=Reading(), fraction=fraction, seed=seed)
    return RecordedData(source.ground_truth_file, source.images)


def _whole(params: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    """Return a whole number that a run has recorded, or the default where the record leaves it out."""
    text = params.get(name, str(default))
    is_whole = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_SEED))
    if not is_whole or int(text) < least:
        raise _edited(name, text, f"a whole number of at least {least}")
    return int(text)


def _fraction(params: Mapping[str, str], name: str, default: float) -> float:
    """Return a part of one that a run has recorded, or the default where the record leaves it out."""
    text = params.get(name, str(default))
    try:
        fraction = float(text)
    except ValueError:
        fraction = math.nan
    if not 0 < fraction < 1:
        raise _edited(name, text, "a number between 0 and 1")
    return fraction


def _edited(name: str, text: str, expected: str) -> DataError:
    return DataError(
        f"MLflow's parameter {name} of a run is {show(text)}, which coordexp did not write: expected {expected}; put "
        "back the value of the run's config.yaml, or leave the run out"
    )

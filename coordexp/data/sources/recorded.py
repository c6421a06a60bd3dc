"""Where the validation data of a finished run are: in its experiment's set, or where a run before sets recorded them.

This is the one module of ``data/sources`` that reports use. Version 0.2 wrote no set. The ground truth of its runs is
found again by their parameters.
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
        data_set: the set that both are from; None for a run before sets.
    """

    ground_truth: Path
    images: Path
    data_set: DataSet | None = None

    @property
    def shown_ground_truth(self) -> Path:
        """A file with the same bytes at a place that a person knows, for a command to copy."""
        if self.data_set is None or self.ground_truth.name == CHOSEN_NAME:
            return self.ground_truth
        record = self.data_set.record
        if record.is_original:
            shown = Path(record.splits["val"].annotations)
        else:
            shown = self.data_set.path.parent / GROUND_TRUTH
        is_same = shown.is_file() and sha256_of_file(shown) == record.files[GROUND_TRUTH]
        return shown if is_same else self.ground_truth


def recorded_data(params: Mapping[str, str], *, data_hash: str | None, data_dir: Path | None) -> RecordedData | None:
    """Return the validation data of a run; None if they are not known to be here.

    Args:
        params: parameters of the run, as the tracking server has them.
        data_hash: of its data, as its fingerprint says; None if the fingerprint is not here.
        data_dir: folder of the experiment's data, if it is here.

    Raises:
        DataError: if a parameter holds what coordexp never writes: somebody has edited it.
    """
    is_chosen = params.get("evaluation.max_images", "null") != "null"
    if is_chosen:
        # Only checked here: whoever chooses the images again reads them.
        _recorded_number(params, "evaluation.max_images", 1, least=1)
        _recorded_number(params, "data.split_seed", Data().split_seed, least=0)
    sets = [] if data_dir is None else sets_in(data_dir)
    matching = [data_set for data_set in sets if data_hash in (None, data_set.record.data_hash)]
    if matching and data_dir is not None:
        data_set = matching[0]
        ground_truth = data_dir / CHOSEN_NAME if is_chosen else data_set.ground_truth
        return RecordedData(ground_truth, data_set.folder("val"), data_set)
    if sets:
        return None  # the sets that are here are of other data
    before_sets = _without_set(params, data_dir)
    if before_sets is None or not is_chosen:
        return before_sets
    return None if data_dir is None else RecordedData(data_dir / CHOSEN_NAME, before_sets.images)


def _without_set(params: Mapping[str, str], data_dir: Path | None) -> RecordedData | None:
    """Return the validation data of a run before sets, by its parameters."""
    data_format = params.get("data.format", "shapes")
    if data_format not in _FORMATS:
        raise _edited("data.format", data_format, f"one of {', '.join(_FORMATS)}")
    if data_format == "shapes":
        return None if data_dir is None else RecordedData(data_dir / "instances_val.json", data_dir / "val")
    made_ground_truth = None if data_dir is None else data_dir / ground_truth_name("val")
    if data_format == "auto":
        return _in_folder(params, made_ground_truth)

    recorded_annotations, recorded_images = params.get("data.val_annotations"), params.get("data.val_images")
    if recorded_annotations is None:
        return None
    annotations = Path(recorded_annotations)
    # Without a folder of images: a path that does not exist.
    images = annotations / "images" if recorded_images is None else Path(recorded_images)
    if data_format == "jsonl" or annotations.suffix == ".jsonl":
        return None if made_ground_truth is None else RecordedData(made_ground_truth, images)
    if made_ground_truth is not None and made_ground_truth.is_file():
        return RecordedData(made_ground_truth, images)
    return RecordedData(annotations, images)


def _in_folder(params: Mapping[str, str], made_ground_truth: Path | None) -> RecordedData | None:
    """Return what a run read from ``data.path``: its folder may be on another machine, and the ground truth here."""
    recorded_path = params.get("data.path")
    try:
        if recorded_path is None:
            raise DataError("a run with data.format: auto has recorded no data.path")
        folder = find_folder(Path(recorded_path))
    except DataError:
        if made_ground_truth is None or not made_ground_truth.is_file():
            return None
        return RecordedData(made_ground_truth, made_ground_truth.parent / "images")
    defaults = Data()  # a record leaves default values out
    fraction = _recorded_fraction(params, "data.val_fraction", defaults.val_fraction)
    seed = _recorded_number(params, "data.split_seed", defaults.split_seed, least=0)
    data_dir = folder.where if made_ground_truth is None else made_ground_truth.parent
    source = folder.source("val", data_dir=data_dir, reading=Reading(), fraction=fraction, seed=seed)
    return RecordedData(source.ground_truth_file, source.images)


def _recorded_number(params: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    """Return a whole number that a run has recorded, or the default if the record leaves it out."""
    text = params.get(name, str(default))
    is_whole = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_SEED))
    if not is_whole or int(text) < least:
        raise _edited(name, text, f"a whole number of at least {least}")
    return int(text)


def _recorded_fraction(params: Mapping[str, str], name: str, default: float) -> float:
    """Return a number between 0 and 1 that a run has recorded, or the default if the record leaves it out."""
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

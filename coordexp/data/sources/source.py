"""One split of a data set, and the one place that chooses its format.

Every source is asked for its ``name`` in records, its ``annotations`` and ``images``, for ``given_images`` (where the
user has the pictures, if they are unpacked into ``images``), what will be ``generated``, for
``read(...)``, ``count_images()``, and for the COCO file that AP is measured on: ``ground_truth_file`` is where that is
or will be, ``ground_truth()`` makes it where the format has none.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias, get_args

from coordexp.config.schema.data import Data
from coordexp.data.sources.chosen import ChosenSource, Whole
from coordexp.data.sources.coco import CocoSource, LvisSource
from coordexp.data.sources.coco_table import SPLITS, Reading, Split
from coordexp.data.sources.folder import find_folder, is_hugging_face
from coordexp.data.sources.hugging_face import HuggingFaceSource
from coordexp.data.sources.jsonl import JsonlSource, ground_truth_name
from coordexp.data.sources.shapes import ShapesSource
from coordexp.errors import ConfigError, DataError, show
from coordexp.limits import MAX_SEED

__all__ = ["SPLITS", "Source", "Split", "found_sentence", "recorded_source", "source_of"]

FORMATS: tuple[str, ...] = get_args(Data.model_fields["format"].annotation)

Source: TypeAlias = Whole | ChosenSource
"""One split in one format; a new format is one file beside this one, and what finds it in ``folder.py``."""


def source_of(data: Data, split: Split, *, data_dir: Path, max_images: int | None = None) -> Source:
    """Return the source of a split; ``max_images`` (``evaluation.max_images``) is of the validation split alone.

    Raises:
        ConfigError: if a path that the format needs is not set.
        DataError: if ``data.path`` holds nothing that is known.
    """
    whole = _whole(data, split, data_dir)
    if split == "train" or max_images is None:
        return whole
    return ChosenSource.of(whole, max_images, seed=data.split_seed, folder=data_dir)


def _whole(data: Data, split: Split, data_dir: Path) -> Whole:
    if data.format == "shapes":
        return ShapesSource.of(data_dir, split, data.shapes)
    reading = Reading(data.boxes_in, data.categories.merge, data.bbox_format, data.max_bad_fraction)
    if data.path is not None:
        found = find_folder(data.path)
        return found.source(split, data_dir=data_dir, reading=reading, fraction=data.val_fraction, seed=data.split_seed)
    paths = (data.train_annotations, data.train_images) if split == "train" else (data.val_annotations, data.val_images)
    for path, what in zip(paths, ("annotations", "images"), strict=True):
        if path is None:
            raise ConfigError(f"data.{split}_{what} is not set; data.format: {data.format} needs it")
    annotations, images = (path for path in paths if path is not None)
    made = data_dir / ground_truth_name(split)
    if annotations.is_file() and is_hugging_face(annotations):
        return HuggingFaceSource(annotations, images, made, reading)
    if data.is_jsonl(annotations):
        return JsonlSource(annotations, images, made, reading, split=split)
    return (LvisSource if data.format == "lvis" else CocoSource)(annotations, images, made, reading)


def found_sentence(data: Data) -> str:
    """Return what ``data.path`` holds, in one line; "" where the data is named by four paths, or generated."""
    return "" if data.path is None else find_folder(data.path).sentence(data.path, data.val_fraction)


def recorded_source(params: Mapping[str, str], split: Split, *, data_dir: Path | None) -> Source | None:
    """Return the source of a split that a run has recorded in its parameters; None where they do not tell.

    ``data_dir`` is where the run's generated data set is, if it is here.

    Raises:
        DataError: if a parameter that is needed for it holds what coordexp never writes: somebody has edited it.
    """
    whole = _recorded(params, split, data_dir)
    if split == "train" or params.get("evaluation.max_images", "null") == "null":
        return whole
    num_images = _recorded_whole(params, "evaluation.max_images", 1, least=1)
    seed = _recorded_whole(params, "data.split_seed", Data().split_seed, least=0)
    if whole is None or data_dir is None:
        return None
    return ChosenSource.of(whole, num_images, seed=seed, folder=data_dir)


def _recorded_whole(params: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    """Return a whole number that a run has recorded, or the default where the record leaves it out."""
    text = params.get(name, str(default))
    is_whole = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_SEED))
    if not is_whole or int(text) < least:
        raise _edited(name, text, f"a whole number of at least {least}")
    return int(text)


def _recorded_fraction(params: Mapping[str, str], name: str, default: float) -> float:
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


def _recorded(params: Mapping[str, str], split: Split, data_dir: Path | None) -> Whole | None:
    form = params.get("data.format", "shapes")
    if form not in FORMATS:
        raise _edited("data.format", form, f"one of {', '.join(FORMATS)}")
    if form == "shapes":
        return None if data_dir is None else ShapesSource.of(data_dir, split, Data().shapes)
    made = None if data_dir is None else data_dir / ground_truth_name(split)
    if form == "auto":
        recorded_path = params.get("data.path")
        try:
            if recorded_path is None:
                raise DataError("a run with data.format: auto has recorded no data.path")
            found = find_folder(Path(recorded_path))
        except DataError:  # on another machine; the ground truth may be here
            return CocoSource(made, made.parent / "images") if made is not None and made.is_file() else None
        default = Data()  # what a record leaves out
        fraction = _recorded_fraction(params, "data.val_fraction", default.val_fraction)
        seed = _recorded_whole(params, "data.split_seed", default.split_seed, least=0)
        where = data_dir or found.where
        return found.source(split, data_dir=where, reading=Reading(), fraction=fraction, seed=seed)
    annotations, images = params.get(f"data.{split}_annotations"), params.get(f"data.{split}_images")
    if annotations is None:
        return None
    path = Path(annotations)
    # Without a folder of images: a path that does not exist.
    folder = path / "images" if images is None else Path(images)
    if form == "jsonl" or path.suffix == ".jsonl":
        return None if made is None else JsonlSource(path, folder, made, split=split)
    return (LvisSource if form == "lvis" else CocoSource)(path, folder, made)

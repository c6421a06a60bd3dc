"""One split of a data set, and the one place that chooses its format.

Every source is asked for its ``name`` in records, its ``annotations`` and ``images``, for ``given_images`` (where the
user has the pictures, if they are unpacked into ``images``), what will be ``generated``, for
``read(...)``, ``count_images()``, and for the COCO file that AP is measured on: ``ground_truth_file`` is where that is
or will be, ``ground_truth()`` makes it where the format has none.
"""

from pathlib import Path

from coordexp.config.schema.data import Data
from coordexp.data.reading import Reading
from coordexp.data.sample import SPLITS, Split
from coordexp.data.sources.coco.source import CocoSource, LvisSource
from coordexp.data.sources.folder.find import find_folder
from coordexp.data.sources.folder.found import Source
from coordexp.data.sources.folder.kinds import is_hugging_face
from coordexp.data.sources.hugging_face.source import HuggingFaceSource
from coordexp.data.sources.jsonl.source import JsonlSource, ground_truth_name
from coordexp.data.sources.shapes import ShapesSource
from coordexp.errors import ConfigError

__all__ = ["SPLITS", "Source", "Split", "found_sentence", "source_of"]


def source_of(data: Data, split: Split, *, data_dir: Path) -> Source:
    """Return the source of a split.

    Raises:
        ConfigError: if a path that the format needs is not set.
        DataError: if ``data.path`` holds nothing that is known.
    """
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

"""One split of a data set, and the one place that chooses its format.

A source of any format offers:

    name                   the split's name in records
    annotations, images    its files
    given_images           where the user has the pictures, if they are unpacked into ``images``
    generated              what will be there, if coordexp generates the split
    read(), read_split()   the split, as samples or as arrays
    count_images()         how many there are
    ground_truth_file      where the COCO file is, or will be, that AP is measured on
    ground_truth()         the same file, made first if the annotations cannot serve
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

    Args:
        data: the keys that say where the data are and how they are read.
        split: which one.
        data_dir: folder of the experiment's data, for what is made.

    Raises:
        ConfigError: if a path that the format needs is not set.
        DataError: if ``data.path`` holds nothing that is known.
    """
    if data.format == "shapes":
        return ShapesSource.of(data_dir, split, data.shapes)
    reading = Reading(data.boxes_in, data.categories.merge, data.bbox_format, data.max_bad_fraction)
    if data.path is not None:
        folder = find_folder(data.path)
        return folder.source(
            split, data_dir=data_dir, reading=reading, fraction=data.val_fraction, seed=data.split_seed
        )
    annotations, images = _given_paths(data, split)
    ground_truth = data_dir / ground_truth_name(split)
    if annotations.is_file() and is_hugging_face(annotations):
        return HuggingFaceSource(annotations, images, ground_truth, reading)
    if data.is_jsonl(annotations):
        return JsonlSource(annotations, images, ground_truth, reading, split=split)
    if data.format == "lvis":
        return LvisSource(annotations, images, ground_truth, reading)
    return CocoSource(annotations, images, ground_truth, reading)


def _given_paths(data: Data, split: Split) -> tuple[Path, Path]:
    """Return annotations and images of a split, or raise a ConfigError with the key that is not set."""
    if split == "train":
        annotations, images = data.train_annotations, data.train_images
    else:
        annotations, images = data.val_annotations, data.val_images
    if annotations is None:
        raise ConfigError(f"data.{split}_annotations is not set; data.format: {data.format} needs it")
    if images is None:
        raise ConfigError(f"data.{split}_images is not set; data.format: {data.format} needs it")
    return annotations, images


def found_sentence(data: Data) -> str:
    """Return what ``data.path`` holds, in one line; "" if the data are named by four paths, or generated."""
    return "" if data.path is None else find_folder(data.path).sentence(data.path, data.val_fraction)

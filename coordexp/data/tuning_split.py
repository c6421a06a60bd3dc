"""A part of the training images held out for choosing weights: the final validation images stay unseen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from coordexp.config.schema.data import Data
from coordexp.data.leaks import shared_pictures
from coordexp.data.sample import Sample
from coordexp.data.sources.chosen import write_part
from coordexp.data.sources.coco import LvisSource
from coordexp.data.sources.coco_file import read_without_outlines
from coordexp.data.sources.source import source_of
from coordexp.data.splits import load_split, stratified_subset
from coordexp.errors import DataError
from coordexp.files import JsonValue, sha256_of_text

TRAIN_NAME, VAL_NAME = "tune_train.json", "tune_val.json"


@dataclass(frozen=True)
class TuningSplit:
    """Where the two files are that trials train on and are compared on, and what is in them.

    Attributes:
        images: folder of both.
        num_excluded: training images left out, since the final validation split holds the same picture.
        is_lvis: whether the two files are LVIS's, as the annotations are that they come from; else COCO's.
    """

    train_annotations: Path
    val_annotations: Path
    images: Path
    num_train: int
    num_val: int
    num_excluded: int
    is_lvis: bool

    def data_keys(self) -> dict[str, JsonValue]:
        """Return the keys of section ``data`` that lead a trial here.

        The whole file has passed the experiment's ``max_bad_fraction``; a part of it may hold a larger share.
        """
        return {
            "format": "lvis" if self.is_lvis else "coco",
            "path": None,
            "bbox_format": None,
            "train_annotations": str(self.train_annotations),
            "train_images": str(self.images),
            "val_annotations": str(self.val_annotations),
            "val_images": str(self.images),
            "max_bad_fraction": 1.0,
        }

    def sentence(self) -> str:
        left_out = f"; {self.num_excluded} shared with it left out" if self.num_excluded else ""
        return (
            f"{self.num_train:,} training images to train on, {self.num_val:,} others of them to choose on; none is in "
            f"the final validation split{left_out}"
        )


def write_tuning_split(
    data_config: Data, directory: Path, *, data_dir: Path, num_images: int | None, fraction: float | None, seed: int
) -> TuningSplit:
    """Divide the training annotations of an experiment; a second call writes the same files.

    The held-out images look like all of them (:func:`coordexp.data.splits.stratified_subset`), and depend on
    the image ids and the seed alone. Pictures that the final validation split holds too, by path or byte for
    byte, come into neither file, and a picture that several images name comes into one file only.

    The files go to ``directory``; a generated data set lies in ``data_dir``. Held out are ``num_images``, or
    ``fraction`` of the training images where that is None.

    Raises:
        DataError: if the annotations cannot be divided so.
    """
    source = source_of(data_config, "train", data_dir=data_dir)
    annotations = source.ground_truth()  # AP is measured on a part of the training images
    # Boxes that are bins are no reason to stop: the parts are written in pixels.
    train = load_split(data_config, "train", data_dir=data_dir, accept_prequantised=True)
    final = load_split(data_config, "val", data_dir=data_dir, accept_prequantised=True)
    shared = shared_pictures(train.samples, final.samples)
    free = [sample for sample in train.samples if sample.image.resolve() not in shared]
    count = num_images if num_images is not None else round((fraction or 0.0) * len(free))
    if not 0 < count < len(free):
        raise DataError(
            f"{annotations}: {len(free)} training images are not in the final validation split; cannot hold out "
            f"{count} of them and train on the rest; change tuning_split"
        )
    held_out = {free[index].image.resolve() for index in held_out_indices(free, count, seed=seed)}
    val_ids = {sample.image_id for sample in free if sample.image.resolve() in held_out}
    train_ids = {sample.image_id for sample in free} - val_ids
    content = cast(dict[str, JsonValue], read_without_outlines(annotations))
    write_part(directory / TRAIN_NAME, content, train_ids)
    write_part(directory / VAL_NAME, content, val_ids)
    return TuningSplit(
        directory / TRAIN_NAME,
        directory / VAL_NAME,
        source.images,
        num_train=len(train_ids),
        num_val=len(val_ids),
        num_excluded=len(train.samples) - len(free),
        is_lvis=isinstance(source, LvisSource),
    )


def held_out_indices(samples: Sequence[Sample], count: int, *, seed: int) -> list[int]:
    """Choose ``count`` samples that look like all; by image id and seed, in any order of the file."""
    mixed = [replace(sample, image_id=int(sha256_of_text(f"{seed}/{sample.image_id}")[:15], 16)) for sample in samples]
    return stratified_subset(mixed, count)

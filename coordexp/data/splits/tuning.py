"""Training images held out for tuning, so that the final validation images stay unseen."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coordexp.config.schema.data import Data
from coordexp.data.coco.content import coco_content, with_description_categories
from coordexp.data.sample import Sample, Split
from coordexp.data.sets.data_set import DataSet
from coordexp.data.sets.split_arrays import SplitArrays
from coordexp.data.splits.chosen import chosen_part
from coordexp.data.splits.leaks import shared_pictures
from coordexp.data.splits.part import nearest_number
from coordexp.data.splits.subset import stratified_subset
from coordexp.errors import DataError
from coordexp.files import JsonValue, sha256_of_text, write_json

TRAIN_NAME, VAL_NAME = "tune_train.json", "tune_val.json"


@dataclass(frozen=True)
class TuningSplit:
    """The two files that trials train on and are compared on.

    Attributes:
        train_annotations: the file that trials train on.
        val_annotations: the file that trials are compared on.
        images: folder of the pictures of both.
        num_train: images of the first file.
        num_val: images of the second file.
        num_excluded: training images left out because the final validation split holds the same picture.
        is_lvis: whether the two files are LVIS's; else they are COCO's.
    """

    train_annotations: Path
    val_annotations: Path
    images: Path
    num_train: int
    num_val: int
    num_excluded: int
    is_lvis: bool

    def data_keys(self) -> dict[str, JsonValue]:
        """Return the keys of section ``data`` with which a trial reads the two files."""
        return {
            "format": "lvis" if self.is_lvis else "coco",
            "path": None,
            "bbox_format": None,
            "train_annotations": str(self.train_annotations),
            "train_images": str(self.images),
            "val_annotations": str(self.val_annotations),
            "val_images": str(self.images),
            # The whole file has passed the experiment's own fraction; a part of it may hold a larger share.
            "max_bad_fraction": 1.0,
        }

    def sentence(self) -> str:
        """Return the numbers of images in one sentence."""
        left_out = f"; {self.num_excluded} shared with it left out" if self.num_excluded else ""
        return (
            f"{self.num_train:,} training images to train on, {self.num_val:,} others of them to choose on; none is in "
            f"the final validation split{left_out}"
        )


@dataclass(frozen=True)
class DividedTraining:
    """A tuning split, with the arrays of its two parts and the categories that they share."""

    split: TuningSplit
    parts: Mapping[Split, SplitArrays]
    categories: Mapping[int, str]
    category_fields: Mapping[int, Mapping[str, str]]


def write_tuning_split(
    data_set: DataSet, data: Data, directory: Path, *, num_images: int | None, fraction: float | None, seed: int
) -> DividedTraining:
    """Divide the training images of an experiment's set; a second call writes the same files.

    The held-out images look like all of them (:func:`coordexp.data.splits.subset.stratified_subset`). Image ids and the
    seed decide alone which ones they are. With ``data.unit_by`` they are whole units.

    A picture that the final validation split holds too, by path or byte for byte, comes into neither file. A picture
    that several images name comes into one file only.

    Args:
        data_set: of the experiment.
        data: its keys.
        directory: the folder of the two files.
        num_images: how many images are held out.
        fraction: of the training images that are held out, if ``num_images`` is None.
        seed: of the choice.

    Raises:
        DataError: if the images cannot be divided so.
    """
    train = data_set.load("train")
    if data.max_train_images is not None:
        train = chosen_part(train, data.max_train_images, seed=data.train_subset_seed)
    shared_with_final = shared_pictures(train.samples, data_set.load("val").samples)
    free = [sample for sample in train.samples if sample.image.resolve() not in shared_with_final]
    num_held_out = num_images if num_images is not None else round((fraction or 0.0) * len(free))
    record = data_set.record.splits["train"]
    if not 0 < num_held_out < len(free):
        raise DataError(
            f"{record.annotations}: {len(free)} training images are not in the final validation split; cannot hold out "
            f"{num_held_out} of them and train on the rest; change tuning_split"
        )

    arrays = data_set.arrays("train")
    categories = {category.id: category.name for category in record.categories}
    if not categories:
        # Records have descriptions in the place of categories. Numbered here, both parts number them alike.
        arrays, categories = with_description_categories(arrays)
    category_fields = {category.id: category.fields for category in record.categories}
    val_ids = _held_out_ids(free, arrays, num_held_out, seed=seed)
    train_ids = {sample.image_id for sample in free} - val_ids
    if not train_ids:
        raise DataError(f"{record.annotations}: all training images are of one unit, so that none can be held out")

    arrays_by_split: dict[Split, SplitArrays] = {"train": _part(arrays, train_ids), "val": _part(arrays, val_ids)}
    write_json(directory / TRAIN_NAME, coco_content(arrays_by_split["train"], categories, category_fields))
    write_json(directory / VAL_NAME, coco_content(arrays_by_split["val"], categories, category_fields))
    if not arrays_by_split["val"].counts()["boxes"]:
        raise DataError(
            f"{record.annotations}: there is no box in the {len(val_ids)} held-out training images, so that trials "
            "have no AP; make tuning_split larger"
        )
    tuning_split = TuningSplit(
        directory / TRAIN_NAME,
        directory / VAL_NAME,
        data_set.folder("train"),
        num_train=len(train_ids),
        num_val=len(val_ids),
        num_excluded=len(train.samples) - len(free),
        is_lvis=record.is_lvis,
    )
    return DividedTraining(tuning_split, arrays_by_split, categories, category_fields)


def _held_out_ids(free: Sequence[Sample], arrays: SplitArrays, count: int, *, seed: int) -> set[int]:
    """Return the ids of about ``count`` images to hold out, with every other image of the same pictures."""
    if arrays.units:
        unit_of_id = dict(zip(arrays.image_ids.tolist(), arrays.units, strict=True))
        # An image without a unit is one of its own.
        units = [unit_of_id[sample.image_id] or f"image {sample.image_id}" for sample in free]
        indices = held_out_units(units, count, seed=seed)
    else:
        indices = held_out_indices(free, count, seed=seed)
    pictures = {free[index].image.resolve() for index in indices}
    return {sample.image_id for sample in free if sample.image.resolve() in pictures}


def _part(arrays: SplitArrays, image_ids: Collection[int]) -> SplitArrays:
    images = [image for image, image_id in enumerate(arrays.image_ids.tolist()) if image_id in image_ids]
    return arrays.take(images)


def held_out_indices(samples: Sequence[Sample], count: int, *, seed: int) -> list[int]:
    """Choose ``count`` samples that look like all; image ids and the seed decide alone, in any order of the file."""
    # stratified_subset draws by image id and has no seed: with mixed ids each seed draws otherwise.
    mixed = [replace(sample, image_id=int(sha256_of_text(f"{seed}/{sample.image_id}")[:15], 16)) for sample in samples]
    return stratified_subset(mixed, count)


def held_out_units(units: Sequence[str], count: int, *, seed: int) -> list[int]:
    """Choose whole units whose images come nearest to ``count``: at least one unit, and not all of them.

    Args:
        units: the unit of each image.
        count: of images.
        seed: of the choice.

    Returns:
        Indices of the images in ascending order.
    """
    members: dict[str, list[int]] = {}
    for index, unit in enumerate(units):
        members.setdefault(unit, []).append(index)
    ranked = sorted(members, key=lambda unit: sha256_of_text(f"{seed}/{unit}"))
    num_units = nearest_number([len(members[unit]) for unit in ranked], count / len(units))
    num_units = min(max(1, num_units), len(ranked) - 1)
    return sorted(index for unit in ranked[:num_units] for index in members[unit])

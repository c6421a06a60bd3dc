"""A part of the training images held out for choosing weights: the final validation images stay unseen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coordexp.config.schema.data import Data
from coordexp.data.coco.content import coco_content, with_description_categories
from coordexp.data.sample import Sample, Split
from coordexp.data.sets.data_set import DataSet
from coordexp.data.sets.split_arrays import SplitArrays
from coordexp.data.splits.chosen import chosen_part
from coordexp.data.splits.leaks import shared_pictures
from coordexp.data.splits.originals import nearest_number
from coordexp.data.splits.subset import stratified_subset
from coordexp.errors import DataError
from coordexp.files import JsonValue, sha256_of_text, write_json

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


@dataclass(frozen=True)
class DividedTraining:
    """A tuning split, with all that is known of its two parts and of the categories they share."""

    split: TuningSplit
    parts: Mapping[Split, SplitArrays]
    categories: Mapping[int, str]
    category_fields: Mapping[int, Mapping[str, str]]


def write_tuning_split(
    data_set: DataSet, data: Data, directory: Path, *, num_images: int | None, fraction: float | None, seed: int
) -> DividedTraining:
    """Divide the training images of an experiment's set; a second call writes the same files.

    The held-out images look like all of them (:func:`coordexp.data.splits.subset.stratified_subset`), and depend on
    the image ids and the seed alone; with ``data.unit_by`` they are whole units. Pictures that the final validation
    split holds too, by path or byte for byte, come into neither file, and a picture that several images name comes into
    one file only.

    Args:
        data_set: of the experiment.
        data: its keys.
        directory: where the two files go.
        num_images: how many images are held out.
        fraction: of the training images that are held out, where ``num_images`` is None.
        seed: of the choice.

    Raises:
        DataError: if the images cannot be divided so.
    """
    arrays, final = data_set.arrays("train"), data_set.load("val")
    train = data_set.load("train")
    if data.max_train_images is not None:
        train = chosen_part(train, data.max_train_images, seed=data.train_subset_seed)
    shared = shared_pictures(train.samples, final.samples)
    free = [sample for sample in train.samples if sample.image.resolve() not in shared]
    count = num_images if num_images is not None else round((fraction or 0.0) * len(free))
    record = data_set.record.splits["train"]
    categories = {category.id: category.name for category in record.categories}
    if not categories:  # records have descriptions; both parts number them alike
        arrays, categories = with_description_categories(arrays)
    fields = {category.id: category.fields for category in record.categories}
    if not 0 < count < len(free):
        raise DataError(
            f"{record.annotations}: {len(free)} training images are not in the final validation split; cannot hold out "
            f"{count} of them and train on the rest; change tuning_split"
        )
    if arrays.units:
        unit_of = dict(zip(arrays.image_ids.tolist(), arrays.units, strict=True))
        units = [unit_of[sample.image_id] or f"image {sample.image_id}" for sample in free]
        indices = held_out_units(units, count, seed=seed)
    else:
        indices = held_out_indices(free, count, seed=seed)
    held_out = {free[index].image.resolve() for index in indices}
    val_ids = {sample.image_id for sample in free if sample.image.resolve() in held_out}
    train_ids = {sample.image_id for sample in free} - val_ids
    if not train_ids:
        raise DataError(f"{record.annotations}: all training images are of one unit, so that none can be held out")
    parts: dict[Split, SplitArrays] = {}
    wanted: tuple[tuple[Split, str, set[int]], ...] = (("train", TRAIN_NAME, train_ids), ("val", VAL_NAME, val_ids))
    for split, name, image_ids in wanted:
        images = [image for image, image_id in enumerate(arrays.image_ids.tolist()) if image_id in image_ids]
        parts[split] = arrays.take(images)
        write_json(directory / name, coco_content(parts[split], categories, fields))
    if not parts["val"].counts()["boxes"]:
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
    return DividedTraining(tuning_split, parts, categories, fields)


def held_out_indices(samples: Sequence[Sample], count: int, *, seed: int) -> list[int]:
    """Choose ``count`` samples that look like all; by image id and seed, in any order of the file."""
    mixed = [replace(sample, image_id=int(sha256_of_text(f"{seed}/{sample.image_id}")[:15], 16)) for sample in samples]
    return stratified_subset(mixed, count)


def held_out_units(units: Sequence[str], count: int, *, seed: int) -> list[int]:
    """Choose whole units whose images come nearest to ``count``, at least one unit and not all of them.

    ``units`` are those of the images.
    """
    members: dict[str, list[int]] = {}
    for index, unit in enumerate(units):
        members.setdefault(unit, []).append(index)
    ranked = sorted(members, key=lambda unit: sha256_of_text(f"{seed}/{unit}"))
    number = nearest_number([len(members[unit]) for unit in ranked], count / len(units))
    number = min(max(1, number), len(ranked) - 1)
    return sorted(index for unit in ranked[:number] for index in members[unit])

"""Section ``data``: where samples come from and how one becomes a sequence."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictBool, field_validator, model_validator

from coordexp.config.schema.fields import WHOLE, Fraction, NaturalInt, PositiveInt, Section, Seed, Text, key


class Shapes(Section):
    """The generated data set, for ``data.format: shapes``."""

    num_train: PositiveInt = key(2400, "results", decides=["data", "tokens"])
    """Number of generated training images."""
    num_val: PositiveInt = key(300, "results", decides=["data", "tokens"])
    """Number of generated validation images."""
    max_objects: PositiveInt = key(4, "results", decides=["data", "tokens"])
    """The most objects that a generated image holds."""
    min_side_px: Annotated[int, Field(strict=True, ge=8, le=128), WHOLE] = key(
        40, "results", decides=["data", "tokens"]
    )
    """Shortest side of a generated object, in pixels of a 128 px image."""
    max_side_px: Annotated[int, Field(strict=True, ge=9, le=128), WHOLE] = key(
        124, "results", decides=["data", "tokens"]
    )
    """Longest side of a generated object, in pixels of a 128 px image."""
    seed: Seed = key(0, "results", decides=["data", "tokens"])
    """Seed of the generated images."""

    @model_validator(mode="after")
    def _sides_are_a_range(self) -> "Shapes":
        if self.min_side_px >= self.max_side_px:
            raise ValueError(f"min_side_px {self.min_side_px} is not below max_side_px {self.max_side_px}")
        return self


FOUR = ("train_annotations", "train_images", "val_annotations", "val_images")


class Categories(Section):
    """How categories are read."""

    merge: StrictBool = key(False, "results", decides=["data", "tokens"])
    """Merge categories whose names differ only in case, width or spacing; false refuses such a file."""


class Data(Section):
    """Where the data is and how a sample becomes a sequence."""

    format: Literal["shapes", "auto", "coco", "lvis", "jsonl"] = key("shapes", "results", decides=["data", "tokens"])
    """shapes: a generated data set; auto: what data.path holds; coco: the four paths below, annotations in COCO's
    format, or JSONL if the name ends in .jsonl; lvis: the same in LVIS's format, and AP is LVIS's; jsonl: the same,
    annotations one image a line."""
    path: Path | None = key(None, "input", decides=["data", "tokens"])
    """A folder with pictures and labels as COCO, LVIS, JSONL, Pascal VOC or YOLO, instead of the four paths."""
    val_fraction: Annotated[float, Field(strict=True, gt=0, lt=1)] = key(0.2, "results", decides=["data", "tokens"])
    """Share of the pictures of data.path for validation, if the data set has no split."""
    unit_by: Text | None = key(None, "plan", decides=["data", "tokens"])
    """What says which pictures belong together: the frames of a clip, the pictures of a patient, the tiles of a slide.
    A value with a parenthesis is a pattern that is searched in the path of a picture below its folder; its first group
    is the unit. Any other value is a field of the image in the annotations, or a column of data.tags. A unit stays on
    one side of data.val_fraction and of a tuning split. null: each picture is a unit of its own."""
    tags: Path | tuple[Text, ...] | None = key(None, "plan", decides=["data"])
    """What else is known of pictures, for slices of a report: a list of fields of the image in the annotations, or one
    CSV file with the columns file, tag, ..."""
    split_seed: Seed = key(0, "results", decides=["data", "tokens"])
    """Seed of the split by data.val_fraction and of evaluation.max_images, the same for every group and
    experiment.seed."""
    boxes_in: Literal["auto", "shown", "stored"] = key("auto", "results", decides=["data", "tokens"])
    """If EXIF turns a picture: whether its boxes are of the picture as shown or of its stored pixels. auto: what boxes
    and sizes prove, otherwise as shown."""
    categories: Categories = Categories()
    train_annotations: Path | None = key(None, "input", decides=["data", "tokens"])
    """Annotations of the training images."""
    train_images: Path | None = key(None, "input", decides=["data", "tokens"])
    """Folder of the training images."""
    val_annotations: Path | None = key(None, "input", decides=["data", "tokens"])
    """Annotations of the validation images, the ground truth of AP; JSONL is converted to a COCO file."""
    val_images: Path | None = key(None, "input", decides=["data", "tokens"])
    """Folder of the validation images."""
    bbox_format: Literal["normalised", "norm1000", "pixels", "smart28"] | None = key(
        None, "results", decides=["data", "tokens"]
    )
    """Unit of boxes in JSONL records that do not say: fractions, thousandths, pixels, or pixels of the image as
    Qwen2.5-VL resizes it (smart28); null: fractions in bbox, and in bbox_2d what their range proves."""
    shapes: Shapes = Shapes()
    structure: Literal["native", "spec"] = key("native", "results", decides=["base", "tokens"])
    """Markers around an object; native: Qwen3-VL's own, already trained; spec: <obj_start> and <obj_end>, new
    tokens."""
    prompt: Text = key("Describe all objects in the image with their bounding boxes.", "results", decides=["tokens"])
    """What the model is asked, in training and in evaluation."""
    ordering: Literal["top_left", "left_top", "random", "size", "centre"] = key(
        "top_left", "results", decides=["tokens"]
    )
    """Order of the objects in an answer; top_left: by the upper edge, then the left one, easy to learn; left_top: by
    the left edge, then the upper one; size: largest first; centre: most central first; random: new each epoch."""
    max_objects: PositiveInt = key(30, "results", decides=["tokens"])
    """The most objects of an image to train on, the largest ones; all count in AP."""
    max_length: PositiveInt = key(4096, "results", decides=["tokens"])
    """Tokens of a sample; a longer target loses its end, and the run counts it."""
    min_pixels: PositiveInt | None = key(None, "results", decides=["tokens"])
    """Smaller images are enlarged to this many pixels; null: the processor's value."""
    max_pixels: PositiveInt | None = key(None, "results", decides=["tokens"])
    """Larger images are shrunk to this many pixels, for fewer tokens; null: the processor's value."""
    max_bad_fraction: Fraction = key(0.0, "results", decides=["data"])
    """Share of rejected records that a run tolerates and leaves out; 0 stops at the first."""
    max_train_images: PositiveInt | None = key(None, "results", decides=["data", "tokens"])
    """Train on a random subset of this size; a smaller one is part of a larger one; null: all."""
    train_subset_seed: Seed = key(0, "results", decides=["data", "tokens"])
    """Seed of the choice of data.max_train_images, the same for every group and experiment.seed."""
    length_buckets: StrictBool = key(True, "results", decides=["tokens"])
    """Batches of similar lengths: less padding, a less random order."""
    bucket_size: PositiveInt | None = key(None, "results", decides=["tokens"])
    """Images of similar length that stay together; null: a whole step. Smaller buckets mix lengths within a step, which
    trains better; the size of a microbatch costs no padding."""
    num_workers: NaturalInt = key(0, "machine")
    """Loader processes of each rank; raise it until throughput/data_wait_fraction is near 0."""
    image_cache_mib: NaturalInt = key(0, "machine")
    """Memory for decoded images of each rank in MiB, shared out over its loader processes."""

    @model_validator(mode="before")
    @classmethod
    def _path_takes_the_place_of_four(cls, data: object) -> object:
        """Let ``path`` unset the format and the four paths of a file that is extended."""
        if not isinstance(data, dict) or data.get("path") is None:
            return data
        return {**data, "format": "auto", **dict.fromkeys(FOUR)}

    @field_validator("unit_by")
    @classmethod
    def _pattern_has_a_group(cls, value: str | None) -> str | None:
        is_pattern = value is not None and ("(" in value or ")" in value)
        if value is None or not is_pattern:
            return value
        try:
            pattern = re.compile(value)
        except re.error as error:
            raise ValueError(
                f"a value with a parenthesis is a regular expression, and this is none ({error})"
            ) from None
        if not pattern.groups:
            raise ValueError("the pattern has no group; put what names the unit in parentheses, such as ^(.+)_\\d+")
        return value

    @model_validator(mode="after")
    def _keys_agree(self) -> "Data":
        if self.format == "auto" and self.path is None:
            raise ValueError("format auto needs data.path, the folder of a data set")
        missing = [name for name in FOUR if self.model_dump()[name] is None]
        if self.format not in ("shapes", "auto") and missing:
            raise ValueError(f"format {self.format} needs {', '.join('data.' + name for name in missing)}")
        has_jsonl = self.is_jsonl(self.train_annotations) or self.is_jsonl(self.val_annotations)
        may_be_jsonl = self.path is not None or has_jsonl
        if self.bbox_format is not None and not may_be_jsonl:
            raise ValueError("bbox_format is for JSONL, and neither data.train_annotations nor data.val_annotations is")
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels {self.min_pixels} is above max_pixels {self.max_pixels}")
        return self

    def is_jsonl(self, annotations: Path | None) -> bool:
        """Return whether annotations are read as JSONL: by the format, or with format coco by their name."""
        if self.format == "jsonl":
            return True
        return self.format == "coco" and annotations is not None and annotations.suffix == ".jsonl"

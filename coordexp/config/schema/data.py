"""Section ``data``: where samples come from and how one becomes a sequence."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictBool, model_validator

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
    """Whether categories whose names are equal once case, width and spacing are folded are one; else such a file is
    refused."""


class Data(Section):
    """Where the data is and how a sample becomes a sequence."""

    format: Literal["shapes", "auto", "coco", "lvis", "jsonl"] = key("shapes", "results", decides=["data", "tokens"])
    """shapes: a generated data set, written as COCO files; auto: what data.path holds; coco: the four paths below data,
    annotations in COCO's format, or JSONL where a name ends in .jsonl; lvis: the same four paths in LVIS's format,
    whose federated AP is then what AP means; jsonl: the same four paths, annotations one image a line."""
    path: Path | None = key(None, "input", decides=["data", "tokens"])
    """A folder that holds pictures and labels in COCO's or LVIS's format, JSONL, Pascal VOC or YOLO, found by what is
    in it; it takes the place of the four paths."""
    val_fraction: Annotated[float, Field(strict=True, gt=0, lt=1)] = key(0.2, "results", decides=["data", "tokens"])
    """Share of the pictures of data.path that are for validation, where it does not say itself which are."""
    split_seed: Seed = key(0, "results", decides=["data", "tokens"])
    """Which pictures val_fraction chooses: the same for every group and every experiment.seed."""
    boxes_in: Literal["auto", "shown", "stored"] = key("auto", "results", decides=["data", "tokens"])
    """What boxes are of where a viewer turns a picture by its EXIF tag: the picture as shown, or its stored pixels;
    auto: what the boxes or the sizes beside them prove, else as shown."""
    categories: Categories = Categories()
    train_annotations: Path | None = key(None, "input", decides=["data", "tokens"])
    """Annotations of the training images."""
    train_images: Path | None = key(None, "input", decides=["data", "tokens"])
    """Folder of the training images."""
    val_annotations: Path | None = key(None, "input", decides=["data", "tokens"])
    """Annotations of the validation images, the ground truth of AP; of JSONL a COCO file is made, whose categories are
    the descriptions, and whose areas are those of the boxes."""
    val_images: Path | None = key(None, "input", decides=["data", "tokens"])
    """Folder of the validation images."""
    bbox_format: Literal["normalised", "norm1000", "pixels", "smart28"] | None = key(
        None, "results", decides=["data", "tokens"]
    )
    """What numbers are in boxes of JSONL records that do not say: fractions, thousandths of the image, pixels, or
    pixels of the copy that Qwen2.5-VL's processor makes (smart28); null: fractions in bbox, and in bbox_2d what their
    range proves."""
    shapes: Shapes = Shapes()
    structure: Literal["native", "spec"] = key("native", "results", decides=["base", "tokens"])
    """Markers around an object; native: Qwen3-VL's own, which are trained; spec: <obj_start> and <obj_end>, two new
    tokens."""
    prompt: Text = key("Describe all objects in the image with their bounding boxes.", "results", decides=["tokens"])
    """What the model is asked, in training and in evaluation."""
    ordering: Literal["top_left", "random", "size", "centre"] = key("top_left", "results", decides=["tokens"])
    """Order of the objects in an answer; top_left is easy to learn, size has the largest first, centre the most
    central, random is another one each epoch."""
    max_objects: PositiveInt = key(30, "results", decides=["tokens"])
    """The largest objects of an image, up to so many, are trained on; all of them count in AP."""
    max_length: PositiveInt = key(4096, "results", decides=["tokens"])
    """Tokens of a sample; a longer target loses its end, and the run counts it."""
    min_pixels: PositiveInt | None = key(None, "results", decides=["tokens"])
    """Smaller images are enlarged to so many pixels; null: the processor's own."""
    max_pixels: PositiveInt | None = key(None, "results", decides=["tokens"])
    """Larger images are shrunk to so many pixels, for fewer tokens; null: the processor's own."""
    max_bad_fraction: Fraction = key(0.0, "results", decides=["data"])
    """Share of rejected records that a run tolerates and leaves out; 0 stops at the first."""
    max_train_images: PositiveInt | None = key(None, "results", decides=["data", "tokens"])
    """Train on so many of the training images, chosen by chance; fewer are among more, and null takes all."""
    train_subset_seed: Seed = key(0, "results", decides=["data", "tokens"])
    """Which images max_train_images chooses: the same for every group and every experiment.seed."""
    length_buckets: StrictBool = key(True, "results", decides=["tokens"])
    """Batches of alike lengths: less padding, a less random order."""
    bucket_size: PositiveInt | None = key(None, "results", decides=["tokens"])
    """Images of alike lengths that stay together; they fill a step. null: a whole step. Fewer mix a step of several
    lengths, for better steps; that of a microbatch keeps the padding as small."""
    num_workers: NaturalInt = key(0, "machine")
    """Loader processes of each rank, 0: none beside it; raise it until throughput/data_wait_fraction is near 0."""
    image_cache_mib: NaturalInt = key(0, "machine")
    """Memory for decoded images of each rank in MiB, shared out over its loader processes."""

    @model_validator(mode="before")
    @classmethod
    def _path_takes_the_place_of_four(cls, said: object) -> object:
        if not isinstance(said, dict) or said.get("path") is None:
            return said
        return {**said, "format": "auto", **dict.fromkeys(FOUR)}

    @model_validator(mode="after")
    def _keys_agree(self) -> "Data":
        if self.format == "auto" and self.path is None:
            raise ValueError("format auto needs data.path, the folder of a data set")
        missing = [name for name in FOUR if self.model_dump()[name] is None]
        if self.format not in ("shapes", "auto") and missing:
            raise ValueError(f"format {self.format} needs {', '.join('data.' + name for name in missing)}")
        is_jsonl = self.path is not None or any(map(self.is_jsonl, (self.train_annotations, self.val_annotations)))
        if self.bbox_format is not None and not is_jsonl:
            raise ValueError("bbox_format is for JSONL, and neither data.train_annotations nor data.val_annotations is")
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels {self.min_pixels} is above max_pixels {self.max_pixels}")
        return self

    def is_jsonl(self, annotations: Path | None) -> bool:
        """Return whether an annotation file of this data set is JSONL."""
        return self.format == "jsonl" or (
            self.format == "coco" and annotations is not None and annotations.suffix == ".jsonl"
        )

"""Section ``data``: where samples come from and how one becomes a sequence."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictBool, model_validator

from coordexp.config.schema.fields import Fraction, NaturalInt, PositiveInt, Section


class Shapes(Section):
    """The generated data set, for ``data.format: shapes``."""

    num_train: PositiveInt = 2400
    num_val: PositiveInt = 300
    max_objects: PositiveInt = 4
    min_side_px: Annotated[int, Field(strict=True, ge=8, le=128)] = 40
    max_side_px: Annotated[int, Field(strict=True, ge=9, le=128)] = 124
    seed: NaturalInt = 0

    @model_validator(mode="after")
    def _sides_are_a_range(self) -> "Shapes":
        if self.min_side_px >= self.max_side_px:
            raise ValueError(f"min_side_px {self.min_side_px} is not below max_side_px {self.max_side_px}")
        return self


class Data(Section):
    """Where the data is and how a sample becomes a sequence."""

    format: Literal["shapes", "coco"] = "shapes"
    train_annotations: Path | None = None
    train_images: Path | None = None
    val_annotations: Path | None = None
    val_images: Path | None = None
    shapes: Shapes = Shapes()
    structure: Literal["native", "spec"] = "native"
    prompt: str = Field(default="Describe all objects in the image with their bounding boxes.", min_length=1)
    ordering: Literal["top_left", "random"] = "top_left"
    max_objects: PositiveInt = 30
    max_length: PositiveInt = 4096
    min_pixels: PositiveInt | None = None
    max_pixels: PositiveInt | None = None
    max_bad_fraction: Fraction = 0.0
    length_buckets: StrictBool = True
    packing: StrictBool = Field(default=False, description="the samples of a microbatch as one row without padding")
    num_workers: NaturalInt = Field(default=0, description="loader processes of each rank; 0: the training process")
    image_cache_mib: NaturalInt = Field(default=0, description="decoded images kept by each rank, in MiB")

    @model_validator(mode="after")
    def _coco_needs_files(self) -> "Data":
        missing = [
            name
            for name in ("train_annotations", "train_images", "val_annotations", "val_images")
            if self.format == "coco" and self.model_dump()[name] is None
        ]
        if missing:
            raise ValueError(f"format coco needs {', '.join('data.' + name for name in missing)}")
        return self

    @model_validator(mode="after")
    def _pixels_are_a_range(self) -> "Data":
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels {self.min_pixels} is above max_pixels {self.max_pixels}")
        return self

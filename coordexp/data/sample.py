"""The unified sample: one image and its objects, whatever file format they came from."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DetectionObject:
    """One object of a sample.

    Attributes:
        desc: free-form description, not empty.
        box_norm_xyxy: corners as fractions of image width and height, inside [0, 1].
    """

    desc: str
    box_norm_xyxy: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """One image with its objects, in the order in which a reader found them.

    Attributes:
        image: path of the image file.
        width: width of the image in pixels.
        height: height of the image in pixels.
        image_id: id in the annotation file.
        objects: training targets; crowd boxes are not among them.
    """

    image: Path
    width: int
    height: int
    image_id: int
    objects: tuple[DetectionObject, ...]

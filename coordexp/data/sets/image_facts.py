"""Path, unit and tags of the validation images, in a file that goes with the results.

{"unit_by": "clip", "images": [{"id": 7, "file": "a/7.jpg", "unit": "a", "tags": {"weather": "rain"}}]}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coordexp.data.sets.split_arrays import SplitArrays
from coordexp.files import read_model, write_json


@dataclass(frozen=True)
class ImageFact:
    """One image; ``unit`` is "" for an image that is a unit of its own."""

    id: int
    file: str
    unit: str = ""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class ImageFacts:
    """All images of a validation split; ``unit_by`` is the rule that made their units, None without units."""

    unit_by: str | None
    images: tuple[ImageFact, ...]

    @property
    def units(self) -> dict[int, str | None]:
        """The unit of each image by its id; None for an image that is a unit of its own."""
        return {image.id: image.unit or None for image in self.images}

    def tag_values(self, tag: str) -> dict[int, str]:
        """Return the value of a tag by image id; images without a value are absent."""
        return {image.id: image.tags[tag] for image in self.images if image.tags.get(tag)}


def write_image_facts(path: Path, arrays: SplitArrays, *, unit_by: str | None) -> None:
    """Write the facts of a split's images; what an image does not have is left out."""
    images: list[dict[str, object]] = []
    for index, image_id in enumerate(arrays.image_ids.tolist()):
        fact: dict[str, object] = {"id": image_id, "file": arrays.names[index]}
        if arrays.units and arrays.units[index]:
            fact["unit"] = arrays.units[index]
        tags = {tag: values[index] for tag, values in arrays.tags.items() if values[index]}
        if tags:
            fact["tags"] = tags
        images.append(fact)
    write_json(path, {"unit_by": unit_by, "images": images})


def read_image_facts(path: Path) -> ImageFacts:
    """Read a file of :func:`write_image_facts`, packed or not; a DataError says what is wrong with it."""
    return read_model(ImageFacts, path, what="ids, units and tags of images")

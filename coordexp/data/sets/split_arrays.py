"""One split of a data set as arrays: every image, every object, and nothing that a format of annotations has.

What ``data/sources`` makes of a user's files, and what a file of the set holds (:mod:`coordexp.data.sets.data_set`).
Shapes: I images, N objects.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coordexp.coord_tokens.bins import are_thin
from coordexp.data.sample import Samples

TARGET, CROWD, IGNORED = 0, 1, 2
"""What an object is: something to learn; a crowd; one that annotations say to ignore."""
NO_EXTENT = 4
"""Added to the kind of a box without a width or a height: no target, but a ground truth of COCO keeps it."""

Column: TypeAlias = NDArray[Any]
"""A column of a file: its type is the one it was written with."""
IMAGE_COLUMNS = ("sizes_px", "orientations", "image_ids", "clipped", "swapped", "no_extent")
OBJECT_COLUMNS = (
    "text_index", "boxes_norm_xyxy", "kinds", "category_ids", "boxes_px_xywh", "areas_px2", "annotation_ids",
)  # fmt: skip
SAMPLE_COLUMNS = ("sizes_px", "image_ids", "first", "text_index", "boxes_norm_xyxy", "kinds")


@dataclass(frozen=True, eq=False)
class Lists:
    """A list of numbers for each image, such as LVIS's ``neg_category_ids``.

    Attributes:
        first: ``[I + 1]``; the list of image ``i`` is ``values[first[i] : first[i + 1]]``.
        values: all lists, one after the other.
    """

    first: NDArray[np.int64]
    values: NDArray[np.int64]

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> "Lists":
        lengths = [len(numbers) for numbers in lists]
        flat = [number for numbers in lists for number in numbers]
        return cls(np.cumsum([0, *lengths], dtype=np.int64), np.array(flat, np.int64))

    def __getitem__(self, image: int) -> list[int]:
        return self.values[self.first[image] : self.first[image + 1]].tolist()

    def take(self, images: Sequence[int]) -> "Lists":
        return Lists.of([self[image] for image in images])


@dataclass(frozen=True, eq=False)
class SplitArrays:
    """All images and objects of a split; the objects of an image stand together.

    Attributes:
        folder: root of ``names``.
        names: ``I`` paths of pictures relative to ``folder``.
        sizes_px: ``[I, 2]`` int64 width and height as a viewer shows the picture.
        orientations: ``[I]`` uint8 EXIF orientation that is applied when a picture is opened; 1 leaves it.
        image_ids: ``[I]`` int64.
        first: ``[I + 1]`` int64; the objects of image ``i`` are ``first[i] .. first[i + 1]``.
        texts: the different descriptions.
        text_index: ``[N]`` int64, which of them each object has.
        boxes_norm_xyxy: ``[N, 4]`` float64, inside [0, 1].
        kinds: ``[N]`` int8: ``TARGET``, ``CROWD`` or ``IGNORED``, and ``NO_EXTENT`` more without one.
        category_ids: ``[N]`` int64; all 0 where the format has no categories.
        boxes_px_xywh: ``[N, 4]`` float64 in the shown picture, not clipped: what AP is measured on.
        areas_px2: ``[N]`` float64 as the annotations say, else of the box.
        annotation_ids: ``[N]`` int64; 0 where there is none.
        clipped, swapped, no_extent: ``[I]`` int64, how many boxes of the image the rule for boxes changed
            (:mod:`coordexp.data.box_rule`): targets cut at the border, corners put in order, boxes left out.
        split_names: ``I`` names by which a set without a split is divided.
        units: ``I`` names of units; "" for an image that is one of its own. Empty without ``data.unit_by``.
        tags: ``I`` values of each tag, "" where an image has none.
        lists: further lists of numbers of each image, by the name that LVIS has for them.
    """

    folder: Path
    names: list[str]
    sizes_px: NDArray[np.int64]
    orientations: NDArray[np.uint8]
    image_ids: NDArray[np.int64]
    first: NDArray[np.int64]
    texts: tuple[str, ...]
    text_index: NDArray[np.int64]
    boxes_norm_xyxy: NDArray[np.float64]
    kinds: NDArray[np.int8]
    category_ids: NDArray[np.int64]
    boxes_px_xywh: NDArray[np.float64]
    areas_px2: NDArray[np.float64]
    annotation_ids: NDArray[np.int64]
    clipped: NDArray[np.int64]
    swapped: NDArray[np.int64]
    no_extent: NDArray[np.int64]
    split_names: Sequence[str]
    units: Sequence[str] = ()
    tags: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    lists: Mapping[str, Lists] = field(default_factory=dict[str, Lists])

    def __len__(self) -> int:
        return len(self.names)

    def num_units(self) -> int:
        """Return how many units the images form; an image without one is its own."""
        named = {unit for unit in self.units if unit}
        return len(named) + sum(not unit for unit in self.units)

    def samples(self) -> Samples:
        """Return what is trained and evaluated: the images with their targets."""
        return samples_of(self.folder, self.names, self.texts, {name: getattr(self, name) for name in SAMPLE_COLUMNS})

    def take(self, images: Sequence[int]) -> "SplitArrays":
        """Return some of the images, in the given order, with their objects."""
        chosen = np.array(images, np.int64)
        lengths = np.diff(self.first)[chosen]
        first = np.concatenate([[0], np.cumsum(lengths)])
        # The place of each object: the first one of its image, and its number within it.
        objects = np.repeat(self.first[chosen] - first[:-1], lengths) + np.arange(first[-1])
        return replace(
            self,
            names=[self.names[image] for image in images],
            first=first,
            split_names=[self.split_names[image] for image in images],
            units=[self.units[image] for image in images] if self.units else (),
            tags={tag: [values[image] for image in images] for tag, values in self.tags.items()},
            lists={name: lists.take(images) for name, lists in self.lists.items()},
            **{name: getattr(self, name)[chosen] for name in IMAGE_COLUMNS},
            **{name: getattr(self, name)[objects] for name in OBJECT_COLUMNS},
        )

    def counts(self) -> dict[str, int]:
        """Return the numbers of :class:`coordexp.data.split_data.SplitData` that follow from the arrays."""
        is_target = self.kinds == TARGET
        targets_before = np.concatenate([[0], np.cumsum(is_target)])
        return {
            "boxes": int(is_target.sum()),
            "crowd": int((self.kinds == CROWD).sum()),
            "ignored": int((self.kinds == IGNORED).sum()),
            "clipped": int(self.clipped.sum()),
            "swapped": int(self.swapped.sum()),
            "no_extent": int(self.no_extent.sum()),
            "thin": int(are_thin(self.boxes_norm_xyxy[is_target]).sum()),
            "images_without_objects": int((np.diff(targets_before[self.first]) == 0).sum()),
        }

    def digest(self) -> str:
        """Return a SHA-256 over all that decides a number of a run: neither ids of annotations, units nor tags."""
        digest = hashlib.sha256()
        for column in ("sizes_px", "orientations", "image_ids", "first", "text_index", "boxes_norm_xyxy", "kinds"):
            digest.update(np.ascontiguousarray(getattr(self, column)).tobytes())
        digest.update("\0".join((*self.names, *self.texts)).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def of_image(self, image: int) -> tuple[object, ...]:
        """Return what decides a number of one image, comparable."""
        rows = slice(int(self.first[image]), int(self.first[image + 1]))
        return (
            self.names[image],
            self.sizes_px[image].tolist(),
            int(self.orientations[image]),
            int(self.image_ids[image]),
            [self.texts[at] for at in self.text_index[rows].tolist()],
            self.boxes_norm_xyxy[rows].tolist(),
            self.kinds[rows].tolist(),
        )


def samples_of(folder: Path, names: list[str], texts: tuple[str, ...], arrays: Mapping[str, Column]) -> Samples:
    is_target = arrays["kinds"] == TARGET
    text_index, boxes = arrays["text_index"], arrays["boxes_norm_xyxy"]
    first = arrays["first"]
    if not is_target.all():
        first = np.concatenate([[0], np.cumsum(is_target)])[first]
        text_index, boxes = text_index[is_target], boxes[is_target]
    return Samples(
        folder=folder,
        names=names,
        sizes_px=arrays["sizes_px"],
        image_ids=arrays["image_ids"],
        first=first,
        texts=texts,
        text_index=text_index,
        boxes_norm_xyxy=boxes,
    )

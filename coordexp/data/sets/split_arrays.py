"""One split of a data set as arrays: every image and every object, without a trace of the format of the annotations.

``data/sources`` makes them of a user's files, and a set holds them (:mod:`coordexp.data.sets.data_set`).

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

TARGET = 0
"""The kind of an object that is something to learn."""
CROWD = 1
"""The kind of a crowd."""
IGNORED = 2
"""The kind of an object that annotations say to ignore."""
NO_EXTENT = 4
"""Added to the kind of a box without a width or a height: it is no target, but a ground truth of COCO keeps it."""

Column: TypeAlias = NDArray[Any]
"""A column of a file; it has the type with which it was written."""
IMAGE_COLUMNS = ("sizes_px", "orientations", "image_ids", "clipped", "swapped", "no_extent")
"""Arrays with one row for each image."""
OBJECT_COLUMNS = (
    "text_index", "boxes_norm_xyxy", "kinds", "category_ids", "boxes_px_xywh", "areas_px2", "annotation_ids",
)  # fmt: skip
"""Arrays with one row for each object."""
SAMPLE_COLUMNS = ("sizes_px", "image_ids", "first", "text_index", "boxes_norm_xyxy", "kinds")
"""The arrays of which samples are made."""


@dataclass(frozen=True, eq=False)
class Lists:
    """One list of numbers for each image, such as LVIS's ``neg_category_ids``.

    Attributes:
        first: ``[I + 1]``; the list of image ``i`` is ``values[first[i] : first[i + 1]]``.
        values: all lists, one after the other.
    """

    first: NDArray[np.int64]
    values: NDArray[np.int64]

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> "Lists":
        """Return the lists of all images, one after the other, as two arrays."""
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
        orientations: ``[I]`` uint8 EXIF orientation that is applied when a picture is opened; 1 leaves the picture.
        image_ids: ``[I]`` int64.
        first: ``[I + 1]`` int64; the objects of image ``i`` are ``first[i] .. first[i + 1]``.
        texts: the different descriptions.
        text_index: ``[N]`` int64, index in ``texts`` of each object's description.
        boxes_norm_xyxy: ``[N, 4]`` float64, inside [0, 1].
        kinds: ``[N]`` int8: ``TARGET``, ``CROWD`` or ``IGNORED``, plus ``NO_EXTENT`` for a box of no extent.
        category_ids: ``[N]`` int64; all 0 if the format has no categories.
        boxes_px_xywh: ``[N, 4]`` float64 in the shown picture, not clipped: what AP is measured on.
        areas_px2: ``[N]`` float64 as the annotations say, else the area of the box.
        annotation_ids: ``[N]`` int64; 0 without an id.
        clipped, swapped, no_extent: ``[I]`` int64, how many boxes of the image the rule for boxes changed
            (:mod:`coordexp.data.box_rule`): targets cut at the border, corners put in order, boxes left out.
        split_names: ``I`` names by which a set without a split is divided.
        units: ``I`` names of units; "" for an image that is a unit of its own. Empty without ``data.unit_by``.
        tags: ``I`` values of each tag; "" for an image without a value.
        lists: further lists of numbers of each image, by LVIS's name for them.
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
        """Return how many units the images form; an image without a unit is one of its own."""
        named_units = {unit for unit in self.units if unit}
        num_without_unit = sum(not unit for unit in self.units)
        return len(named_units) + num_without_unit

    def samples(self) -> Samples:
        """Return what is trained and evaluated: the images with their targets."""
        columns = {name: getattr(self, name) for name in SAMPLE_COLUMNS}
        return samples_of(self.folder, self.names, self.texts, columns)

    def take(self, images: Sequence[int]) -> "SplitArrays":
        """Return some of the images, in the given order, with their objects."""
        chosen = np.array(images, np.int64)
        num_objects = np.diff(self.first)[chosen]
        first = np.concatenate([[0], np.cumsum(num_objects)])
        # Row of each object = first row of its image here + number of the object within its image. The new rows count
        # on from image to image, so their number within an image is the row minus the image's new first row.
        objects = np.repeat(self.first[chosen] - first[:-1], num_objects) + np.arange(first[-1])
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
        """Return the counts of :class:`coordexp.data.split_data.SplitData` that follow from the arrays."""
        is_target = self.kinds == TARGET
        targets_before = np.concatenate([[0], np.cumsum(is_target)])  # [N + 1], before each row
        targets_of_image = np.diff(targets_before[self.first])
        return {
            "boxes": int(is_target.sum()),
            "crowd": int((self.kinds == CROWD).sum()),
            "ignored": int((self.kinds == IGNORED).sum()),
            "clipped": int(self.clipped.sum()),
            "swapped": int(self.swapped.sum()),
            "no_extent": int(self.no_extent.sum()),
            "thin": int(are_thin(self.boxes_norm_xyxy[is_target]).sum()),
            "images_without_objects": int((targets_of_image == 0).sum()),
        }

    def digest(self) -> str:
        """Return a SHA-256 over everything that decides a number of a run.

        Ids of annotations, units and tags are no part of it: they may change while runs go on.
        """
        digest = hashlib.sha256()
        for column in ("sizes_px", "orientations", "image_ids", "first", "text_index", "boxes_norm_xyxy", "kinds"):
            digest.update(np.ascontiguousarray(getattr(self, column)).tobytes())
        digest.update("\0".join((*self.names, *self.texts)).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def of_image(self, image: int) -> tuple[object, ...]:
        """Return what decides a number of one image, in a form that can be compared."""
        rows = slice(int(self.first[image]), int(self.first[image + 1]))
        return (
            self.names[image],
            self.sizes_px[image].tolist(),
            int(self.orientations[image]),
            int(self.image_ids[image]),
            [self.texts[text] for text in self.text_index[rows].tolist()],
            self.boxes_norm_xyxy[rows].tolist(),
            self.kinds[rows].tolist(),
        )


def samples_of(folder: Path, names: list[str], texts: tuple[str, ...], columns: Mapping[str, Column]) -> Samples:
    """Return the images with their targets; other objects are left out.

    Args:
        folder: root of ``names``.
        names: of the pictures.
        texts: the different descriptions.
        columns: the arrays of ``SAMPLE_COLUMNS``.
    """
    is_target = columns["kinds"] == TARGET
    first = columns["first"]
    text_index = columns["text_index"]
    boxes = columns["boxes_norm_xyxy"]
    if not is_target.all():
        targets_before = np.concatenate([[0], np.cumsum(is_target)])
        first = targets_before[first]
        text_index = text_index[is_target]
        boxes = boxes[is_target]
    return Samples(
        folder=folder,
        names=names,
        sizes_px=columns["sizes_px"],
        image_ids=columns["image_ids"],
        first=first,
        texts=texts,
        text_index=text_index,
        boxes_norm_xyxy=boxes,
    )

"""Labels beside pictures -> entries as in COCO's format, so that all formats go the same way from there."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coordexp.data.box_rule import ordered_corners
from coordexp.data.coco.entries import Annotation, BadEntry, Category, Entries, Image
from coordexp.data.coco.file import CocoFile


@dataclass(frozen=True)
class Labelled:
    """A picture with its labels.

    Attributes:
        name: of the picture, relative to its folder.
        size: width and height in pixels as the labels say; None if they do not.
        boxes: category and corners in pixels of each object: left, top, right, bottom.
    """

    name: str
    size: tuple[int, int] | None
    boxes: Sequence[tuple[str, tuple[float, float, float, float]]]


def coco_of(
    path: Path,
    pictures: Iterable[Labelled],
    *,
    categories: Sequence[str] = (),
    bad: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> CocoFile:
    """Return labelled pictures as a COCO file: ids count from 1, corners are put in order.

    Args:
        path: the file or folder of the labels.
        pictures: with their labels.
        categories: the first categories, in this order; others follow by name.
        bad: labels that could not be read, a sentence each with file and line.
        notes: what was repaired, a sentence each.
    """
    pictures = list(pictures)
    other_categories = {name for picture in pictures for name, _ in picture.boxes} - set(categories)
    names = [*categories, *sorted(other_categories)]
    # A name that stands twice has the id of its first place, and the order of its last one. Both decide the bytes of
    # the ground truth, and so whether a set is still the same.
    id_of_category: dict[str, int] = {}
    for category_id, name in reversed([*enumerate(names, start=1)]):
        id_of_category[name] = category_id

    images: list[Image] = []
    annotations: list[Annotation] = []
    for image_id, picture in enumerate(pictures, start=1):
        width, height = picture.size or (None, None)
        images.append(Image(id=image_id, file_name=picture.name, width=width, height=height))
        written_corners = np.array([box for _, box in picture.boxes], np.float64).reshape(-1, 4)
        corners, was_swapped = ordered_corners(written_corners)
        columns = zip(picture.boxes, corners.tolist(), was_swapped.tolist(), strict=True)
        for (name, _), (left, top, right, bottom), is_swapped in columns:
            box = left, top, right - left, bottom - top
            annotation_id = len(annotations) + 1
            annotations.append(
                Annotation(image_id, id_of_category[name], box, id=annotation_id, was_swapped=is_swapped)
            )

    num_good = len(annotations)
    bad_entries = [BadEntry(place, "", reason) for place, reason in enumerate(bad, start=num_good)]
    category_entries = [Category(category_id, name) for name, category_id in reversed(id_of_category.items())]
    return CocoFile(
        path=path,
        categories=Entries(category_entries, [], np.arange(len(category_entries))),
        images=Entries(images, [], np.arange(len(images))),
        annotations=Entries(annotations, bad_entries, np.arange(num_good)),
        notes=tuple(notes),
    )

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
    """A picture, named relative to its folder, with the size that its labels say and the corners of boxes in pixels."""

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

    ``categories`` come first in their order, others follow by name. ``bad`` says what labels could not be read, with
    file and line; ``notes`` what was repaired.
    """
    pictures = list(pictures)
    others = sorted({name for picture in pictures for name, _ in picture.boxes} - set(categories))
    names = [*categories, *others]
    ids = {name: at for at, name in reversed([*enumerate(names, start=1)])}
    images: list[Image] = []
    annotations: list[Annotation] = []
    for image_id, picture in enumerate(pictures, start=1):
        width, height = picture.size or (None, None)
        images.append(Image(id=image_id, file_name=picture.name, width=width, height=height))
        corners, was_swapped = ordered_corners(np.array([box for _, box in picture.boxes], np.float64).reshape(-1, 4))
        columns = zip(picture.boxes, corners.tolist(), was_swapped.tolist(), strict=True)
        for (name, _), (left, top, right, bottom), swapped in columns:
            box = left, top, right - left, bottom - top
            annotation = Annotation(image_id, ids[name], box, id=len(annotations) + 1, was_swapped=swapped)
            annotations.append(annotation)
    total = len(annotations)
    rejected = [BadEntry(total + at, "", reason) for at, reason in enumerate(bad)]
    return CocoFile(
        path=path,
        categories=Entries([Category(key, name) for name, key in ids.items()][::-1], [], np.arange(len(ids))),
        images=Entries(images, [], np.arange(len(images))),
        annotations=Entries(annotations, rejected, np.arange(total)),
        notes=tuple(notes),
    )

"""Labels beside pictures -> entries as in COCO's format, so that all formats go the same way from there."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coordexp.data.box_rule import ordered_corners
from coordexp.data.coco_file import Annotation, BadEntry, Category, CocoFile, Entries, Image
from coordexp.errors import DataError
from coordexp.files import is_lfs_pointer, lfs_problem

_DECLARED = re.compile(rb"\s*<\?xml[^>]*encoding=[\"']([A-Za-z][\w.-]*)[\"']")


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


def read_text(path: Path) -> str:
    """Return the text of a file of labels, with or without a byte-order mark, its lines ended by a line feed.

    Raises:
        DataError: if it cannot be read, or is no text.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read ({error.strerror})") from None
    if is_lfs_pointer(content):
        raise DataError(lfs_problem(path))
    encodings = ["utf-16"] if content[:2] in (b"\xff\xfe", b"\xfe\xff") else ["utf-8-sig", "cp1252"]
    declared = _DECLARED.match(content)
    if declared is not None:
        encodings.insert(0, declared[1].decode("ascii"))
    for encoding in encodings:
        try:
            return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
        except (UnicodeDecodeError, LookupError):
            continue
    raise DataError(f"{path}: not text in UTF-8; expected a file of labels")


def lines_of(path: Path) -> list[str]:
    return [line.strip() for line in read_text(path).split("\n") if line.strip()]

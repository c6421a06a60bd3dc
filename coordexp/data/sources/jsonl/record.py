"""One parsed record -> one usable record, its boxes by the rule."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coordexp.coord_tokens.validator import (
    Box,
    PrequantisedError,
    RecordBoxes,
    check_scaling,
    record_boxes,
)
from coordexp.data.box_rule import apply_box_rule
from coordexp.data.coco.ids import MAX_ID, id_of
from coordexp.data.images.files import Header, size_problem
from coordexp.data.images.folder import ImageFolder
from coordexp.data.images.orientation import turn_boxes
from coordexp.data.reading import Reading
from coordexp.data.sample import Objects, Sample
from coordexp.data.sources.frame import ResizedCopies, beyond_problem
from coordexp.data.sources.jsonl.write import FLAGS, NOT_TARGETS, Flag
from coordexp.data.sources.turned import Turned
from coordexp.errors import DataError, is_name, show

# What of a record is no field of its picture.
_NOT_FIELDS = ("objects", NOT_TARGETS, "messages", "conversations", "images")


class _Ruled(NamedTuple):
    """The objects of a record whose boxes have an extent, and how many the rule for boxes changed."""

    objects: Objects
    kept: list[int]  # the place of each among those of the record
    num_swapped: int
    num_clipped: int
    num_no_extent: int


class Record(NamedTuple):
    """A usable record: its image with the targets, and the boxes that are none, with their flags."""

    sample: Sample
    not_targets: Objects
    flags: list[dict[Flag, int]]
    name: str  # of the picture, relative to the image folder
    orientation: int  # how a viewer turns the picture (EXIF)
    ruled: tuple[int, int, int]  # boxes that the rule for boxes changed: clipped, put in order, of no extent
    fields: Mapping[str, object]  # what else the record says of its picture

    def joined(self, other: "Record") -> "Record":
        pairs = zip(self.sample.objects.descs, self.sample.objects.boxes_norm_xyxy.tolist(), strict=True)
        known = {(desc, *box) for desc, box in pairs}
        new = zip(other.sample.objects.descs, other.sample.objects.boxes_norm_xyxy.tolist(), strict=True)
        added = other.sample.objects.take(np.flatnonzero([(desc, *box) not in known for desc, box in new]))
        num_clipped, num_swapped, num_no_extent = self.ruled
        return self._replace(
            sample=replace(self.sample, objects=joined_objects(self.sample.objects, added)),
            not_targets=joined_objects(self.not_targets, other.not_targets),
            flags=[*self.flags, *other.flags],
            ruled=(num_clipped + other.ruled[0], num_swapped + other.ruled[1], num_no_extent + other.ruled[2]),
            fields={**other.fields, **self.fields},
        )


def joined_objects(first: Objects, second: Objects) -> Objects:
    boxes = np.concatenate([first.boxes_norm_xyxy, second.boxes_norm_xyxy])
    return Objects((*first.descs, *second.descs), boxes)


class LocatedRecord(NamedTuple):
    """A record with the number of its line, and the picture that is there."""

    number: int
    record: dict[str, object]
    name: str
    has_size: bool


@dataclass
class Tally:
    """What the boxes of a file are like; pictures are named by their place among the records."""

    swapped: list[int] = field(default_factory=list[int])  # the picture of each box that was put in order
    clipped: list[int] = field(default_factory=list[int])
    no_extent: list[int] = field(default_factory=list[int])
    num_trimmed: int = 0
    prequantised: str = ""  # why the first boxes that are bins already need a switch
    raw_corners: list[Box] = field(default_factory=list[Box])  # as fractions; without bins, which cannot be beyond
    resized: ResizedCopies = field(default_factory=ResizedCopies)

    def look(self, record: Mapping[str, object], boxes: RecordBoxes, reading: Reading) -> None:
        """Keep what tells the frame of a whole file, also of a record that cannot be used."""
        if not boxes.prequantised:
            self.raw_corners += boxes.boxes_norm_xyxy
        if boxes.form == "pixels" and record.get("bbox_format", reading.bbox_format) in (None, "pixels"):
            self.resized.look(raw_boxes(record), record.get("width"), record.get("height"))

    def add(self, place: int, boxes: RecordBoxes, ruled: _Ruled) -> None:
        self.num_trimmed += sum(item.get("desc") != str(item.get("desc")).strip() for item in boxes.objects)
        self.swapped += [place] * ruled.num_swapped
        self.clipped += [place] * ruled.num_clipped
        self.no_extent += [place] * ruled.num_no_extent

    def frame_warning(self, path: Path, *, max_bad_fraction: float) -> str | None:
        """Refuse boxes of another frame, or return what they look like where all are to be taken; else None."""
        self.resized.refuse(path)
        problem = beyond_problem(np.array(self.raw_corners, np.float64).reshape(-1, 4))
        if problem is not None and max_bad_fraction < 1:
            raise DataError(
                f"{path}: {problem}; expected left, top, right, bottom inside each image. Correct them, or set "
                "data.max_bad_fraction to 1 to take them as they are"
            )
        return problem


def usable_record(
    found: LocatedRecord, place: int, folder: ImageFolder, turned: Turned, reading: Reading, tally: Tally
) -> Record:
    """Return what is learnt of a record, its boxes by the rule and in the picture as shown.

    Raises:
        DataError: if the record cannot be used.
    """
    number, record, name = found[:3]
    header = turned.headers.get(place)
    if header is not None and (record.get("width"), record.get("height")) in (header[:2], header.shown):
        record["width"], record["height"] = turned.frame(place)
    boxes = record_boxes(record, bbox_format=reading.bbox_format)
    tally.prequantised = tally.prequantised or _prequantised(boxes, f"line {number}")
    tally.look(record, boxes, reading)
    ruled = _objects(boxes)
    sample = _sample(record, ruled.objects, folder.root / name, number)
    not_targets, flags = _not_targets(record, reading)
    fields = {key: value for key, value in record.items() if key not in _NOT_FIELDS}
    orientation = 1 if header is None else header.orientation
    changes = ruled.num_clipped, ruled.num_swapped, ruled.num_no_extent
    usable = Record(sample, not_targets, flags, name, orientation, changes, fields)
    tally.add(place, boxes, ruled)
    return _as_shown(usable, turned.headers[place]) if place in turned.stored else usable


def _prequantised(boxes: RecordBoxes, where: str) -> str:
    """Return why boxes that are bins already cannot be taken without ``custom.coord_tokens.skip_bbox_norm``; or ""."""
    try:
        check_scaling(boxes, accept_prequantised=False)
    except PrequantisedError as error:
        return f"{where}: {error}"
    return ""


def raw_boxes(record: Mapping[str, object]) -> list[list[float]]:
    """Return the boxes of a record as they are written, where they are numbers."""
    items = record.get("objects")
    items = items if isinstance(items, list) else []
    boxes = [item.get("bbox_2d", item.get("bbox")) for item in items if isinstance(item, dict)]
    return [
        box
        for box in boxes
        if isinstance(box, list) and len(box) == 4 and all(isinstance(value, int | float) for value in box)
    ]


def _as_shown(record: Record, header: Header) -> Record:
    """Return a record, whose boxes are of the stored pixels, in the picture as a viewer shows it."""
    width, height = header.shown

    def turned(objects: Objects) -> Objects:
        return replace(objects, boxes_norm_xyxy=turn_boxes(objects.boxes_norm_xyxy, header.orientation))

    sample = replace(record.sample, width=width, height=height, objects=turned(record.sample.objects))
    return record._replace(sample=sample, not_targets=turned(record.not_targets))


def _sample(record: Mapping[str, object], objects: Objects, image: Path, number: int) -> Sample:
    width, height = (_whole(record.get(name), name, lowest=1) for name in ("width", "height"))
    problem = size_problem(width, height)
    if problem is not None:
        raise DataError(problem)
    image_id = number if record.get("image_id") is None else id_of(record["image_id"])
    return Sample(image, width, height, _whole(image_id, "image_id", lowest=-MAX_ID), objects)


def _not_targets(record: Mapping[str, object], reading: Reading) -> tuple[Objects, list[dict[Flag, int]]]:
    """Return the boxes that are crowds or ignored, and what each says of itself."""
    entries = record.get(NOT_TARGETS, [])
    try:
        boxes = record_boxes({**record, "objects": entries}, bbox_format=reading.bbox_format)
        ruled = _objects(boxes)
    except DataError as error:
        raise DataError(f"{NOT_TARGETS}: {error}") from None
    flags: list[dict[Flag, int]] = [
        {flag: 1 for flag in FLAGS if boxes.objects[at].get(flag) == 1} for at in ruled.kept
    ]
    return ruled.objects, flags


def _objects(boxes: RecordBoxes) -> _Ruled:
    """Return the objects of a record by the rule for boxes; a DataError names the first that cannot be used."""
    descs: list[str] = []
    for index, item in enumerate(boxes.objects):
        desc = item.get("desc")
        if not isinstance(desc, str) or not is_name(desc.strip()):
            raise DataError(f"objects[{index}]: desc is {show(desc)}, expected text without control characters")
        descs.append(desc.strip())
    corners = np.array(boxes.boxes_norm_xyxy, np.float64).reshape(-1, 4)
    ruled = apply_box_rule(corners, np.ones((len(corners), 2)))
    # Equal bins are final: such a box is one bin wide, as in the sequence that is learnt.
    has_extent = np.ones(len(corners), np.bool_) if boxes.prequantised else ruled.has_extent
    for index in np.flatnonzero(ruled.is_outside & has_extent).tolist():
        shown = show([round(value, 4) for value in corners[index].tolist()])
        raise DataError(f"objects[{index}]: the box {shown}, as fractions of its image, lies outside it")
    kept = np.flatnonzero(has_extent)
    return _Ruled(
        objects=Objects(tuple(descs[at] for at in kept.tolist()), ruled.corners_xyxy[kept]),
        kept=kept.tolist(),
        num_swapped=int(ruled.was_swapped.sum()),
        num_clipped=int(ruled.was_clipped[kept].sum()),
        num_no_extent=len(corners) - len(kept),
    )


def _whole(value: object, name: str, *, lowest: int) -> int:
    if type(value) is not int or not lowest <= value <= MAX_ID:
        raise DataError(f"{name} is {show(value)}, expected a whole number{' of pixels' if lowest == 1 else ''}")
    return value

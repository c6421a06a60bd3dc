"""One parsed record -> one usable record, its boxes by the rule."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coordexp.coord_tokens.validator import RecordBoxes, record_boxes
from coordexp.data.box_rule import apply_box_rule
from coordexp.data.coco.ids import MAX_ID, id_of
from coordexp.data.images.files import Header, size_problem
from coordexp.data.images.folder import ImageFolder
from coordexp.data.images.orientation import turn_boxes
from coordexp.data.reading import Reading
from coordexp.data.sample import Objects, Sample
from coordexp.data.sources.jsonl.tally import BoxChanges, Tally
from coordexp.data.sources.jsonl.write import FLAGS, NOT_TARGETS, Flag
from coordexp.data.sources.turned import Turned
from coordexp.errors import DataError, is_name, show

# The keys of a record that are no fields of its picture.
_NOT_FIELDS = ("objects", NOT_TARGETS, "messages", "conversations", "images")


class LocatedRecord(NamedTuple):
    """A parsed record whose picture is there.

    Attributes:
        line: number of its line.
        record: what it holds; its size was added if it had none.
        name: of the picture, relative to the image folder.
        has_size: whether the record itself says the size.
    """

    line: int
    record: dict[str, object]
    name: str
    has_size: bool


class Record(NamedTuple):
    """A usable record.

    Attributes:
        sample: the image with its targets.
        not_targets: objects that are no targets.
        flags: of each of these, why.
        name: of the picture, relative to the image folder.
        orientation: how a viewer turns the picture (EXIF).
        changes: how many boxes the rule for boxes changed.
        fields: what else the record says of its picture.
    """

    sample: Sample
    not_targets: Objects
    flags: list[dict[Flag, int]]
    name: str
    orientation: int
    changes: BoxChanges
    fields: Mapping[str, object]

    def joined(self, other: "Record") -> "Record":
        """Return this record with the objects of another record of the same picture; equal targets stand once."""
        own_targets = set(_described_boxes(self.sample.objects))
        is_new = [target not in own_targets for target in _described_boxes(other.sample.objects)]
        new_targets = other.sample.objects.take(np.flatnonzero(is_new))
        return self._replace(
            sample=replace(self.sample, objects=joined_objects(self.sample.objects, new_targets)),
            not_targets=joined_objects(self.not_targets, other.not_targets),
            flags=[*self.flags, *other.flags],
            changes=self.changes.plus(other.changes),
            fields={**other.fields, **self.fields},
        )


def _described_boxes(objects: Objects) -> list[tuple[str | float, ...]]:
    """Return description and corners of each object, comparable."""
    boxes = objects.boxes_norm_xyxy.tolist()
    return [(desc, *box) for desc, box in zip(objects.descs, boxes, strict=True)]


def joined_objects(first: Objects, second: Objects) -> Objects:
    boxes = np.concatenate([first.boxes_norm_xyxy, second.boxes_norm_xyxy])
    return Objects((*first.descs, *second.descs), boxes)


def usable_record(
    located: LocatedRecord, index: int, folder: ImageFolder, turned: Turned, reading: Reading, tally: Tally
) -> Record:
    """Return what is learnt of a record, its boxes by the rule and in the picture as shown.

    Args:
        located: the record.
        index: of the record among those of the split.
        folder: of the pictures.
        turned: which pictures a viewer turns, by the index of their records.
        reading: how records are read if they do not say it themselves.
        tally: what the boxes of the file are like; the record is added.

    Raises:
        DataError: if the record cannot be used.
    """
    record = located.record
    header = turned.headers.get(index)
    if header is not None and (record.get("width"), record.get("height")) in (header[:2], header.shown):
        # Boxes in pixels are fractions of the frame in which they stand.
        record["width"], record["height"] = turned.frame(index)
    boxes = record_boxes(record, bbox_format=reading.bbox_format)
    tally.look(record, boxes, reading, line=located.line)
    ruled = _ruled_objects(boxes)
    sample = _sample(record, ruled.objects, folder.root / located.name, located.line)
    not_targets, flags = _not_targets(record, reading)
    usable = Record(
        sample=sample,
        not_targets=not_targets,
        flags=flags,
        name=located.name,
        orientation=1 if header is None else header.orientation,
        changes=ruled.changes,
        fields={key: value for key, value in record.items() if key not in _NOT_FIELDS},
    )
    tally.add(index, boxes, ruled.changes)
    return _as_shown(usable, turned.headers[index]) if index in turned.stored else usable


def _as_shown(record: Record, header: Header) -> Record:
    """Return a record whose boxes are of the stored pixels, in the picture as a viewer shows it."""
    width, height = header.shown

    def turned(objects: Objects) -> Objects:
        return replace(objects, boxes_norm_xyxy=turn_boxes(objects.boxes_norm_xyxy, header.orientation))

    sample = replace(record.sample, width=width, height=height, objects=turned(record.sample.objects))
    return record._replace(sample=sample, not_targets=turned(record.not_targets))


def _sample(record: Mapping[str, object], objects: Objects, image: Path, line: int) -> Sample:
    """Return a record as a sample; without an id of its own, the number of its line is its id."""
    width, height = (_whole_number(record.get(name), name, lowest=1) for name in ("width", "height"))
    problem = size_problem(width, height)
    if problem is not None:
        raise DataError(problem)
    image_id = line if record.get("image_id") is None else id_of(record["image_id"])
    return Sample(image, width, height, _whole_number(image_id, "image_id", lowest=-MAX_ID), objects)


def _not_targets(record: Mapping[str, object], reading: Reading) -> tuple[Objects, list[dict[Flag, int]]]:
    """Return the objects that are crowds or ignored, and what each says of itself."""
    entries = record.get(NOT_TARGETS, [])
    try:
        boxes = record_boxes({**record, "objects": entries}, bbox_format=reading.bbox_format)
        ruled = _ruled_objects(boxes)
    except DataError as error:
        raise DataError(f"{NOT_TARGETS}: {error}") from None
    flags: list[dict[Flag, int]] = []
    for index in ruled.indices:
        entry = boxes.objects[index]
        flags.append({flag: 1 for flag in FLAGS if entry.get(flag) == 1})
    return ruled.objects, flags


class _RuledObjects(NamedTuple):
    """The objects of a record whose boxes have an extent.

    Attributes:
        objects: with their boxes by the rule.
        indices: of each among the record's objects.
        changes: how many boxes the rule changed.
    """

    objects: Objects
    indices: list[int]
    changes: BoxChanges


def _ruled_objects(boxes: RecordBoxes) -> _RuledObjects:
    """Apply the rule for boxes to the objects of a record; a DataError names the first that cannot be used."""
    descs = _descs(boxes.objects)
    corners = np.array(boxes.boxes_norm_xyxy, np.float64).reshape(-1, 4)
    ruled = apply_box_rule(corners, np.ones((len(corners), 2)))
    # Equal bins are final: such a box is one bin wide, as in the sequence that is learnt.
    has_extent = np.ones(len(corners), np.bool_) if boxes.prequantised else ruled.has_extent
    for index in np.flatnonzero(ruled.is_outside & has_extent).tolist():
        shown = show([round(value, 4) for value in corners[index].tolist()])
        raise DataError(f"objects[{index}]: the box {shown}, as fractions of its image, lies outside it")
    indices = np.flatnonzero(has_extent)
    changes = BoxChanges(
        num_clipped=int(ruled.was_clipped[indices].sum()),
        num_swapped=int(ruled.was_swapped.sum()),
        num_no_extent=len(corners) - len(indices),
    )
    objects = Objects(tuple(descs[index] for index in indices.tolist()), ruled.corners_xyxy[indices])
    return _RuledObjects(objects, indices.tolist(), changes)


def _descs(items: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the description of each object, or raise a DataError that names the first bad one."""
    descs: list[str] = []
    for index, item in enumerate(items):
        desc = item.get("desc")
        if not isinstance(desc, str) or not is_name(desc.strip()):
            raise DataError(f"objects[{index}]: desc is {show(desc)}, expected text without control characters")
        descs.append(desc.strip())
    return descs


def _whole_number(value: object, name: str, *, lowest: int) -> int:
    if type(value) is not int or not lowest <= value <= MAX_ID:
        raise DataError(f"{name} is {show(value)}, expected a whole number{' of pixels' if lowest == 1 else ''}")
    return value

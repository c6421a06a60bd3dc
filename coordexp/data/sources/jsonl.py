"""Samples <-> JSONL: one record an image; every field is checked. A validation split becomes a COCO file once.

``{"image": "a.jpg", "width": 640, "height": 480, "image_id": 7, "objects": [{"desc": "cat", "bbox": [...]}]}``

``image`` and ``objects`` are enough: width and height then come from the image's header, the id is the number of the
line. :mod:`coordexp.coord_tokens.validator` says what boxes may be, and :mod:`coordexp.data.sources.records` what other
trainers write, also as one list in a file. Lines of one picture are joined.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import msgspec
import numpy as np

from coordexp.coord_tokens.bins import decode_array, quantise_boxes
from coordexp.coord_tokens.validator import (
    AmbiguousBoxesError,
    Box,
    PrequantisedError,
    RecordBoxes,
    check_scaling,
    record_boxes,
)
from coordexp.data.box_rule import apply_box_rule, box_notes
from coordexp.data.builder import JsonLinesBuilder
from coordexp.data.coco_content import with_description_categories
from coordexp.data.coco_file import MAX_ID, has_mark, id_of, read_unmarked
from coordexp.data.image_file import Header, read_header, read_headers_ahead, size_problem, turn_boxes, turned_headers
from coordexp.data.image_folder import ImageFolder
from coordexp.data.originals import Part
from coordexp.data.reading import Reading
from coordexp.data.recognised import recognised
from coordexp.data.sample import Objects, Rejections, Sample, Samples, Split, SplitData
from coordexp.data.sources.frame import ResizedCopies, Turned, beyond_problem, find_turned
from coordexp.data.sources.read_split import ReadSplit, as_coco
from coordexp.data.sources.records import as_record
from coordexp.data.split_arrays import CROWD, IGNORED, TARGET, SplitArrays
from coordexp.errors import DataError, counted, is_name, kind_of, show
from coordexp.files import kept_json, sha256_of_file, write_json

Flag = Literal["iscrowd", "ignore"]
_FLAGS: tuple[Flag, ...] = get_args(Flag)
_NOT_TARGETS = "ignored_objects"
_GROUND_TRUTH_VERSION = 2
# What of a record is no field of its picture.
_NOT_FIELDS = ("objects", _NOT_TARGETS, "messages", "conversations", "images")


@dataclass(frozen=True)
class JsonlSource:
    """A split as JSONL."""

    annotations: Path
    images: Path
    ground_truth_file: Path  # the COCO file that is made of it for AP
    reading: Reading = field(default_factory=Reading)
    part: Part | None = None  # which of the pictures belong to the split; None for all
    split: Split = "train"
    generated = None

    @property
    def name(self) -> str:
        return self.annotations.absolute().parent.name

    @property
    def given_images(self) -> Path:
        return self.images

    def read(self, *, max_bad_fraction: float, accept_prequantised: bool) -> SplitData:
        """Read the split as samples; the categories of a validation split are its descriptions."""
        read = self.read_split(max_bad_fraction=max_bad_fraction)
        if read.prequantised and not accept_prequantised:
            raise DataError(read.prequantised)
        return read.data

    def read_split(self, *, max_bad_fraction: float) -> ReadSplit:
        """Read the split; boxes that are bins already are no reason to stop here.

        Raises:
            DataError: if the file cannot be used, or more than ``max_bad_fraction`` of its records are bad.
        """
        read = _read(self, max_bad_fraction=max_bad_fraction)
        return with_categories(read) if self.split == "val" else read

    def ground_truth(self) -> Path:
        """Make the COCO file of the records, unless it is there.

        Boxes are at original pixel size, and an object's area is that of its box. Categories are the descriptions,
        equal ones folded as :class:`coordexp.detection.names.categories.CategoryIndex` does.
        """
        if not self.annotations.is_file():
            raise DataError(f"{self.annotations}: file not found")
        stamp: dict[str, object] = {
            "description": _description(self.annotations),
            "version": _GROUND_TRUTH_VERSION,
            "jsonl_sha256": sha256_of_file(self.annotations),
            "reading": asdict(self.reading),
            "part": None if self.part is None else asdict(self.part),
        }
        made = kept_json(self.ground_truth_file)
        if not isinstance(made, dict) or made.get("info") != stamp:
            read = _read(self, max_bad_fraction=self.reading.max_bad_fraction)
            write_json(self.ground_truth_file, {"info": stamp, **as_coco(with_categories(read))})
        return self.ground_truth_file

    def count_images(self) -> int:
        return sum(1 for _ in _lines(self.annotations))


def _description(annotations: Path) -> str:
    return f"made of {annotations.name}: categories are its descriptions, areas those of boxes"


def ground_truth_name(split: Split) -> str:
    return f"{split}_ground_truth.json"


def format_record(
    sample: Sample,
    *,
    image: str,
    coord_tokens: bool,
    bins: bool = False,
    not_targets: Objects | None = None,
    flags: Sequence[Flag] = (),
    extras: Mapping[str, Sequence[int]] | None = None,
) -> str:
    """Return a record as one line, without its end.

    Boxes are four ``<|coord_k|>`` strings, or ``bins`` with ``"bbox_format": "norm1000"``, or numbers in [0, 1]. Those
    that are no targets, each with the flag that says why, stand under a key of their own, so that a reader which only
    knows ``objects`` does not learn them. ``extras`` are further fields.
    """
    builder = JsonLinesBuilder(enabled=coord_tokens, skip_bbox_norm=True) if coord_tokens or bins else None

    def written(objects: Objects, **fields: object) -> dict[str, object]:
        boxes = objects.boxes_norm_xyxy.tolist()
        entries = [{"desc": desc, "bbox": box} for desc, box in zip(objects.descs, boxes, strict=True)]
        record: dict[str, object] = {**fields, "objects": entries}
        return record if builder is None else builder.build(record)

    record = written(sample.objects, image=image, width=sample.width, height=sample.height, image_id=sample.image_id)
    if not_targets is not None and len(not_targets):
        entries = written(not_targets)["objects"]
        assert isinstance(entries, list)
        record[_NOT_TARGETS] = [entry | {flag: 1} for entry, flag in zip(entries, flags, strict=True)]
    return json.dumps(record | dict(extras or {}), ensure_ascii=False)


class _Ruled(NamedTuple):
    """The objects of a record whose boxes have an extent, and how many the rule for boxes changed."""

    objects: Objects
    kept: list[int]  # the place of each among those of the record
    num_swapped: int
    num_clipped: int
    num_no_extent: int


class _Record(NamedTuple):
    """A usable record: its image with the targets, and the boxes that are none, with their flags."""

    sample: Sample
    not_targets: Objects
    flags: list[dict[Flag, int]]
    name: str  # of the picture, relative to the image folder
    orientation: int  # how a viewer turns the picture (EXIF)
    ruled: tuple[int, int, int]  # boxes that the rule for boxes changed: clipped, put in order, of no extent
    fields: Mapping[str, object]  # what else the record says of its picture

    def joined(self, other: "_Record") -> "_Record":
        pairs = zip(self.sample.objects.descs, self.sample.objects.boxes_norm_xyxy.tolist(), strict=True)
        known = {(desc, *box) for desc, box in pairs}
        new = zip(other.sample.objects.descs, other.sample.objects.boxes_norm_xyxy.tolist(), strict=True)
        added = other.sample.objects.take(np.flatnonzero([(desc, *box) not in known for desc, box in new]))
        num_clipped, num_swapped, num_no_extent = self.ruled
        return self._replace(
            sample=replace(self.sample, objects=_both(self.sample.objects, added)),
            not_targets=_both(self.not_targets, other.not_targets),
            flags=[*self.flags, *other.flags],
            ruled=(num_clipped + other.ruled[0], num_swapped + other.ruled[1], num_no_extent + other.ruled[2]),
            fields={**other.fields, **self.fields},
        )


def _both(first: Objects, second: Objects) -> Objects:
    boxes = np.concatenate([first.boxes_norm_xyxy, second.boxes_norm_xyxy])
    return Objects((*first.descs, *second.descs), boxes)


class _Found(NamedTuple):
    """A record with the number of its line, and the picture that is there."""

    number: int
    record: dict[str, object]
    name: str
    has_size: bool


@dataclass
class _Tally:
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
            self.resized.look(_raw_boxes(record), record.get("width"), record.get("height"))

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


def _read(source: JsonlSource, *, max_bad_fraction: float) -> ReadSplit:
    path = source.annotations
    folder, bad = ImageFolder(source.images), Rejections(path)
    found = _find_pictures(path, folder, bad)
    all_names = [one.name for one in found]
    if source.part is not None:
        chosen = source.part.choose(all_names)
        found = [one for one in found if one.name in chosen]
    num_records = len(found) + bad.count("records")
    turned = _turned(found, folder, source.reading)
    tally = _Tally()
    made: list[tuple[_Found, _Record]] = []
    for place, one in enumerate(found):
        try:
            usable = _usable(one, place, folder, turned, source.reading, tally)
        except AmbiguousBoxesError as error:
            # A missing or wrong switch, not a bad record: no fraction of such records is accepted.
            raise DataError(f"{path}: line {one.number}: {error}") from None
        except DataError as error:
            bad.add("records", f"line {one.number}", str(error))
        else:
            made.append((one, usable))
    frame_warning = tally.frame_warning(path, max_bad_fraction=max_bad_fraction)
    rejected = bad.accept({"records": num_records}, max_bad_fraction=max_bad_fraction)
    records, num_repeated, joined = _joined(made)
    if not records:
        raise DataError(f"{path}: there is no record to use; expected one JSON object a line")
    arrays = _arrays(records, folder.root)
    counts = {
        "records": num_records,
        **{name: count for name, count in arrays.counts().items() if name != "crowd"},
        "ignored": sum(len(record.not_targets) for record in records),
        "clipped": len(tally.clipped),
        "no_extent": len(tally.no_extent),
        "swapped": len(tally.swapped),
        "trimmed_names": tally.num_trimmed,
        "repeated_file_names": num_repeated,
        "rejected_records": len(rejected),
    }
    warnings, frame_notes = turned.said(len(found))
    if frame_warning is not None:
        warnings.append(frame_warning)
    notes = [*folder.notes]
    if has_mark(path):
        notes.append("the file starts with a byte-order mark")
    notes += frame_notes + joined
    notes += box_notes(
        lambda place: found[place].name, clipped=tally.clipped, no_extent=tally.no_extent, swapped=tally.swapped
    )
    return ReadSplit(
        arrays=arrays,
        rejected=rejected,
        counts=counts,
        categories={},
        warnings=tuple(warnings),
        notes=tuple(notes),
        all_split_names=all_names,
        description=_description(path),
        prequantised=f"{path}: {tally.prequantised}" if tally.prequantised else "",
        image_fields={record.sample.image_id: record.fields for record in records},
    )


def _usable(found: _Found, place: int, folder: ImageFolder, turned: Turned, reading: Reading, tally: _Tally) -> _Record:
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
    usable = _Record(sample, not_targets, flags, name, orientation, changes, fields)
    tally.add(place, boxes, ruled)
    return _as_shown(usable, turned.headers[place]) if place in turned.stored else usable


def _prequantised(boxes: RecordBoxes, where: str) -> str:
    """Return why boxes that are bins already cannot be taken without ``custom.coord_tokens.skip_bbox_norm``; or ""."""
    try:
        check_scaling(boxes, accept_prequantised=False)
    except PrequantisedError as error:
        return f"{where}: {error}"
    return ""


def _find_pictures(path: Path, folder: ImageFolder, bad: Rejections) -> list[_Found]:
    """Return the records of a file whose pictures are there, with a size."""
    located: list[tuple[int, dict[str, object], str]] = []
    problems: dict[int, str] = {}
    for number, line in _lines(path):
        try:
            record = as_record(_parsed(line))
            located.append((number, record, folder.locate(record.get("image"))))
        except DataError as error:
            problems[number] = str(error)
    read_headers_ahead([folder.root / name for _, record, name in located if not _has_size(record)])
    found: list[_Found] = []
    for number, record, name in located:
        has_size = _has_size(record)
        try:
            if not has_size:
                record["width"], record["height"] = read_header(folder.root / name).shown
            found.append(_Found(number, record, name, has_size))
        except DataError as error:
            problems[number] = str(error)
    for number, problem in sorted(problems.items()):
        bad.add("records", f"line {number}", problem)
    return found


def _has_size(record: Mapping[str, object]) -> bool:
    return record.get("width") is not None or record.get("height") is not None


def _turned(found: Sequence[_Found], folder: ImageFolder, reading: Reading) -> Turned:
    headers = turned_headers([folder.root / one.name for one in found])
    recorded: dict[int, tuple[float, float] | None] = {}
    reach: dict[int, tuple[float, float]] = {}
    for place in headers:
        record = found[place].record
        width, height = record.get("width"), record.get("height")
        recorded[place] = None
        if found[place].has_size and isinstance(width, int) and isinstance(height, int):
            recorded[place] = width, height
        if (boxes := _raw_boxes(record)) and record.get("bbox_format", reading.bbox_format) == "pixels":
            reach[place] = max(box[2] for box in boxes), max(box[3] for box in boxes)
    return find_turned(headers, recorded, reach, reading.boxes_in)


def _joined(made: Sequence[tuple[_Found, _Record]]) -> tuple[list[_Record], int, list[str]]:
    """Return the records, lines of one picture joined to one; how many name a known picture; and what was changed.

    One with an id of its own and several objects stays an image of its own; ids that others have are numbered anew.
    """
    records: list[_Record] = []
    places: dict[str, int] = {}
    ids: set[int] = set()
    highest, low_ids = 0, itertools.count(1)
    num_repeated = num_joined = num_renumbered = 0
    for one, record in made:
        place = places.setdefault(one.name, len(records))
        image_id = record.sample.image_id
        if place < len(records):
            known = records[place]
            has_id = one.record.get("image_id") is not None
            if not has_id or image_id == known.sample.image_id or len(record.sample.objects) <= 1:
                num_joined += 1
                records[place] = known.joined(record)
                continue
            num_repeated += 1
        if image_id in ids:
            num_renumbered += 1
            # Above all others so far; where that is no id any more, the lowest that is free.
            image_id = highest + 1 if highest < MAX_ID else next(free for free in low_ids if free not in ids)
        highest = max(highest, image_id) if ids else image_id
        ids.add(image_id)
        records.append(record._replace(sample=replace(record.sample, image_id=image_id)))
    notes: list[str] = []
    if num_joined:
        notes.append(
            f"{counted(num_joined, 'line')} of a picture that an earlier one names: joined to "
            f"{counted(len(records), 'image')}"
        )
    if num_renumbered:
        notes.append(
            f"renumbered, since they share an image_id with another picture: {counted(num_renumbered, 'record')}"
        )
    return records, num_repeated, notes


def _raw_boxes(record: Mapping[str, object]) -> list[list[float]]:
    """Return the boxes of a record as they are written, where they are numbers."""
    items = record.get("objects")
    items = items if isinstance(items, list) else []
    boxes = [item.get("bbox_2d", item.get("bbox")) for item in items if isinstance(item, dict)]
    return [
        box
        for box in boxes
        if isinstance(box, list) and len(box) == 4 and all(isinstance(value, int | float) for value in box)
    ]


def _as_shown(record: _Record, header: Header) -> _Record:
    """Return a record, whose boxes are of the stored pixels, in the picture as a viewer shows it."""
    width, height = header.shown

    def turned(objects: Objects) -> Objects:
        return replace(objects, boxes_norm_xyxy=turn_boxes(objects.boxes_norm_xyxy, header.orientation))

    sample = replace(record.sample, width=width, height=height, objects=turned(record.sample.objects))
    return record._replace(sample=sample, not_targets=turned(record.not_targets))


def with_categories(read: ReadSplit) -> ReadSplit:
    """Return a split of records, whose categories are its descriptions."""
    arrays, categories = with_description_categories(read.arrays)
    return replace(read, arrays=arrays, categories=categories)


def _arrays(records: Sequence[_Record], folder: Path) -> SplitArrays:
    """Return records as arrays; of each image the targets come first."""
    kinds: list[int] = []
    boxes_px: list[list[float]] = []
    whole = [_both(record.sample.objects, record.not_targets) for record in records]
    for record in records:
        kinds += [TARGET] * len(record.sample.objects)
        kinds += [CROWD if "iscrowd" in flags else IGNORED for flags in record.flags]
        boxes_px += _boxes_px_xywh(record.sample.objects, record.sample)
        boxes_px += _boxes_px_xywh(record.not_targets, record.sample)
    columns = Samples.of(
        replace(record.sample, objects=objects) for record, objects in zip(records, whole, strict=True)
    )
    boxes_px_xywh = np.array(boxes_px, np.float64).reshape(-1, 4)
    ruled = np.array([record.ruled for record in records], np.int64).reshape(-1, 3)
    return SplitArrays(
        folder=folder,
        names=[record.name for record in records],
        sizes_px=columns.sizes_px,
        orientations=np.array([record.orientation for record in records], np.uint8),
        image_ids=columns.image_ids,
        first=columns.first,
        texts=columns.texts,
        text_index=columns.text_index,
        boxes_norm_xyxy=columns.boxes_norm_xyxy,
        kinds=np.array(kinds, np.int8),
        category_ids=np.zeros(len(kinds), np.int64),
        boxes_px_xywh=boxes_px_xywh,
        areas_px2=boxes_px_xywh[:, 2] * boxes_px_xywh[:, 3],
        annotation_ids=np.zeros(len(kinds), np.int64),
        clipped=ruled[:, 0],
        swapped=ruled[:, 1],
        no_extent=ruled[:, 2],
        split_names=[record.name for record in records],
    )


def _boxes_px_xywh(objects: Objects, sample: Sample) -> list[list[float]]:
    boxes = objects.boxes_norm_xyxy
    # Bins may be equal: such a box is one bin wide, as in the sequence that is learnt.
    is_flat = np.any(boxes[:, :2] >= boxes[:, 2:], axis=1, keepdims=True)
    boxes = np.where(is_flat, decode_array(quantise_boxes(boxes)), boxes)
    corners_px = boxes * np.array([sample.width, sample.height] * 2)
    return np.concatenate([corners_px[:, :2], corners_px[:, 2:] - corners_px[:, :2]], axis=1).tolist()


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a file with their numbers: its lines, or the entries of its one list."""
    other = recognised(path)
    if other:
        raise DataError(other)
    content = read_unmarked(path)
    if content.lstrip()[:1] == b"[":
        try:
            entries = msgspec.json.decode(content, type=list[msgspec.Raw])
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: not valid JSON ({error}); is the file complete?") from None
        yield from ((number, bytes(entry)) for number, entry in enumerate(entries, start=1))
        return
    yield from ((number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip())


def _parsed(line: bytes) -> dict[str, object]:
    try:
        record = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        record = _leniently_parsed(line)
    if not isinstance(record, dict):
        raise DataError(f"the record is {kind_of(record)}, expected an object")
    return record


def _leniently_parsed(line: bytes) -> object:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"byte {error.start} of the line is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise DataError(f"column {error.colno}: not valid JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid JSON ({error})") from None


def _sample(record: Mapping[str, object], objects: Objects, image: Path, number: int) -> Sample:
    width, height = (_whole(record.get(name), name, lowest=1) for name in ("width", "height"))
    problem = size_problem(width, height)
    if problem is not None:
        raise DataError(problem)
    image_id = number if record.get("image_id") is None else id_of(record["image_id"])
    return Sample(image, width, height, _whole(image_id, "image_id", lowest=-MAX_ID), objects)


def _not_targets(record: Mapping[str, object], reading: Reading) -> tuple[Objects, list[dict[Flag, int]]]:
    """Return the boxes that are crowds or ignored, and what each says of itself."""
    entries = record.get(_NOT_TARGETS, [])
    try:
        boxes = record_boxes({**record, "objects": entries}, bbox_format=reading.bbox_format)
        ruled = _objects(boxes)
    except DataError as error:
        raise DataError(f"{_NOT_TARGETS}: {error}") from None
    flags: list[dict[Flag, int]] = [
        {flag: 1 for flag in _FLAGS if boxes.objects[at].get(flag) == 1} for at in ruled.kept
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

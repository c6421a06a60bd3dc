"""Samples <-> JSONL: one record an image; every field is checked. A validation split becomes a COCO file once.

``{"image": "a.jpg", "width": 640, "height": 480, "image_id": 7, "objects": [{"desc": "cat", "bbox": [...]}]}``

``image`` and ``objects`` are enough: width and height then come from the image's header, the id is the number of the
line. ``"images": ["a.jpg"]`` is the same as ``image``. :mod:`coordexp.coord_tokens.validator` says what boxes may be.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import msgspec
import numpy as np

from coordexp.coord_tokens.bins import are_thin, decode_array, quantise_boxes
from coordexp.coord_tokens.validator import AmbiguousBoxesError, BBoxFormat, RecordBoxes, check_scaling, record_boxes
from coordexp.data.builder import JsonLinesBuilder
from coordexp.data.image_file import ImageFolder, size_problem, stored_size
from coordexp.data.sample import Objects, Rejections, Sample, Samples, SplitData, fold
from coordexp.data.sources.coco_file import MAX_ID
from coordexp.errors import DataError, is_name, kind_of, show
from coordexp.files import sha256_of_file, write_json

Flag = Literal["iscrowd", "ignore"]
_FLAGS: tuple[Flag, ...] = get_args(Flag)
_NOT_TARGETS = "ignored_objects"
_GROUND_TRUTH_VERSION = 1


@dataclass(frozen=True)
class JsonlSource:
    """A split as JSONL.

    Attributes:
        annotations: the file.
        images: folder of its images.
        split: which split it is.
        ground_truth_file: the COCO file that is made of it for AP.
        bbox_format: what numbers are in boxes, where a record does not say.
        max_bad_fraction: largest accepted fraction of bad records, for the ground truth.
    """

    annotations: Path
    images: Path
    split: Literal["train", "val"]
    ground_truth_file: Path
    bbox_format: BBoxFormat | None = None
    max_bad_fraction: float = 0.0
    generated = None

    @property
    def name(self) -> str:
        """Return the name of the folder that was prepared."""
        return self.annotations.absolute().parent.name

    def read(self, *, max_bad_fraction: float, accept_prequantised: bool) -> SplitData:
        """Read the split; the categories of a validation split are its descriptions."""
        records, read = _read(
            self.annotations,
            self.images,
            max_bad_fraction=max_bad_fraction,
            accept_prequantised=accept_prequantised,
            bbox_format=self.bbox_format,
        )
        return replace(read, categories=_categories(records)) if self.split == "val" else read

    def ground_truth(self) -> Path:
        """Make the COCO file of the records, unless it is there.

        Boxes are at original pixel size, and an object's area is that of its box. Categories are the descriptions,
        equal ones folded as :class:`coordexp.detection.categories.CategoryIndex` does.
        """
        if not self.annotations.is_file():
            raise DataError(f"{self.annotations}: file not found")
        stamp: dict[str, object] = {
            "description": f"made of {self.annotations.name}: categories are its descriptions, areas those of boxes",
            "version": _GROUND_TRUTH_VERSION,
            "jsonl_sha256": sha256_of_file(self.annotations),
            "bbox_format": self.bbox_format,
            "max_bad_fraction": self.max_bad_fraction,
        }
        if not _is_made_of(self.ground_truth_file, stamp):
            records, _ = _read(
                self.annotations,
                self.images,
                max_bad_fraction=self.max_bad_fraction,
                accept_prequantised=True,  # nothing is scaled here
                bbox_format=self.bbox_format,
            )
            write_json(self.ground_truth_file, {"info": stamp, **_as_coco(records, self.images)})
        return self.ground_truth_file

    def count_images(self) -> int:
        """Return how many records the file holds."""
        return sum(1 for _ in _lines(self.annotations))


def ground_truth_name(split: Literal["train", "val"]) -> str:
    """Return the name of the COCO file that is made of a split in JSONL."""
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

    Args:
        sample: the image and its targets.
        image: path of the image as it shall be written.
        coord_tokens: boxes as four ``<|coord_k|>`` strings; otherwise as numbers in [0, 1].
        bins: instead of these numbers, bins, and ``"bbox_format": "norm1000"``.
        not_targets: boxes that are crowds or ignored. They stand under a key of their own, so that a
            reader which only knows ``objects`` does not learn them.
        flags: for each of them, the field that says why.
        extras: further fields.
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


def read_jsonl(
    path: Path,
    image_root: Path,
    *,
    max_bad_fraction: float = 0.0,
    accept_prequantised: bool = False,
    bbox_format: BBoxFormat | None = None,
) -> SplitData:
    """Read a JSONL file; blank lines are skipped.

    Args:
        path: the file.
        image_root: folder of the images; a record's path is relative to it, or absolute and inside.
        max_bad_fraction: largest accepted fraction of bad records.
        accept_prequantised: whether boxes may be coord tokens or bins, see
            :func:`coordexp.coord_tokens.template_adapter.keeps_boxes`.
        bbox_format: what numbers are in boxes, where a record does not say.

    Raises:
        DataError: if the file is missing or holds no usable record, more than the accepted fraction
            of its records is bad (it names their lines and reasons), or boxes are bins already and
            would be scaled a second time.
    """
    return _read(
        path,
        image_root,
        max_bad_fraction=max_bad_fraction,
        accept_prequantised=accept_prequantised,
        bbox_format=bbox_format,
    )[1]


class _Record(NamedTuple):
    """A usable record: its image with the targets, and the boxes that are none, with their flags."""

    sample: Sample
    not_targets: Objects
    flags: list[dict[Flag, int]]


def _read(
    path: Path,
    image_root: Path,
    *,
    max_bad_fraction: float,
    accept_prequantised: bool,
    bbox_format: BBoxFormat | None,
) -> tuple[list[_Record], SplitData]:
    folder = ImageFolder(image_root)
    bad = Rejections(path)
    found: dict[int, _Record] = {}
    num_records = num_trimmed = 0
    for number, line in _lines(path):
        num_records += 1
        try:
            record = _completed(_parsed(line), folder, number)
            boxes = record_boxes(record, bbox_format=bbox_format)
        except (
            AmbiguousBoxesError
        ) as error:  # a missing switch, not a bad record: no fraction of such records is accepted
            raise DataError(f"{path}: line {number}: {error}") from None
        except DataError as error:
            bad.add("records", f"line {number}", str(error))
            continue
        try:
            check_scaling(boxes, accept_prequantised=accept_prequantised)
        except DataError as error:  # a wrong switch, too
            raise DataError(f"{path}: line {number}: {error}") from None
        try:
            made = _Record(_sample(record, boxes, folder), *_not_targets(record, bbox_format))
            if made.sample.image_id in found:
                raise DataError(f"image_id {made.sample.image_id} was used before")
        except DataError as error:
            bad.add("records", f"line {number}", str(error))
        else:
            found[made.sample.image_id] = made
            descs = zip(boxes.objects, made.sample.objects.descs, strict=True)
            num_trimmed += sum(item.get("desc") != desc for item, desc in descs)
    rejected = bad.accept({"records": num_records}, max_bad_fraction=max_bad_fraction)
    if not found:
        raise DataError(f"{path}: there is no record to use; expected one JSON object a line")
    samples = Samples.of(record.sample for record in found.values())
    counts = {
        "records": num_records,
        "boxes": len(samples.boxes_norm_xyxy),
        "ignored": sum(len(record.not_targets) for record in found.values()),
        "thin": int(are_thin(samples.boxes_norm_xyxy).sum()),
        "images_without_objects": int((np.diff(samples.first) == 0).sum()),
        "trimmed_names": num_trimmed,
        "repeated_file_names": len(samples) - len(set(samples.names)),
        "rejected_records": len(rejected),
    }
    return [*found.values()], SplitData(samples, rejected, counts, categories={})


def _categories(records: Sequence[_Record]) -> dict[int, str]:
    """Return the descriptions by category id: from 1, in the order of their folded forms; the first spelling counts."""
    names: dict[str, str] = {}
    for record in records:
        for desc in (*record.sample.objects.descs, *record.not_targets.descs):
            names.setdefault(fold(desc), desc)
    return {key: names[folded] for key, folded in enumerate(sorted(names), start=1)}


def _as_coco(records: Sequence[_Record], image_root: Path) -> dict[str, list[dict[str, object]]]:
    """Return the sections of COCO's instances format."""
    categories = _categories(records)
    ids = {fold(name): key for key, name in categories.items()}
    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    for sample, not_targets, flags in records:
        name = sample.image.relative_to(image_root).as_posix()
        images.append({"id": sample.image_id, "file_name": name, "width": sample.width, "height": sample.height})
        for objects, of_each in ((sample.objects, [{}] * len(sample.objects)), (not_targets, flags)):
            for desc, box, flag in zip(objects.descs, _boxes_px_xywh(objects, sample), of_each, strict=True):
                entry: dict[str, object] = {"id": len(annotations) + 1, "image_id": sample.image_id}
                entry |= {"category_id": ids[fold(desc)], "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
                annotations.append(entry | flag)
    return {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": key, "name": name} for key, name in categories.items()],
    }


def _boxes_px_xywh(objects: Objects, sample: Sample) -> list[list[float]]:
    boxes = objects.boxes_norm_xyxy
    # Bins may be equal: such a box is one bin wide, as in the sequence that is learnt.
    is_flat = np.any(boxes[:, :2] >= boxes[:, 2:], axis=1, keepdims=True)
    boxes = np.where(is_flat, decode_array(quantise_boxes(boxes)), boxes)
    corners_px = boxes * np.array([sample.width, sample.height] * 2)
    return np.concatenate([corners_px[:, :2], corners_px[:, 2:] - corners_px[:, :2]], axis=1).tolist()


def _is_made_of(path: Path, stamp: Mapping[str, object]) -> bool:
    """Return whether a file is there, made of the same records in the same way."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Made)
    except (OSError, msgspec.MsgspecError):
        return False
    return found.info == stamp


class _Made(msgspec.Struct):
    """What a made ground truth says of itself."""

    info: dict[str, object]


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as handle:
            yield from ((number, line) for number, line in enumerate(handle, start=1) if line.strip())
    except FileNotFoundError:
        raise DataError(f"{path}: file not found") from None
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read ({error.strerror})") from None


def _parsed(line: bytes) -> dict[str, object]:
    try:
        record = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        record = _leniently_parsed(line)
    if not isinstance(record, dict):
        raise DataError(f"the record is {kind_of(record)}, expected an object")
    return record


def _leniently_parsed(line: bytes) -> object:
    """Parse what is not strict JSON, or say what is wrong with it."""
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"byte {error.start} of the line is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise DataError(f"column {error.colno}: not valid JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid JSON ({error})") from None


def _completed(record: dict[str, object], folder: ImageFolder, number: int) -> dict[str, object]:
    """Return a record with ``image``, ``width``, ``height`` and ``image_id``, whatever of them it leaves out."""
    if "images" in record:
        names = record["images"]
        if not isinstance(names, list) or len(names) != 1:
            raise DataError(f"images is {kind_of(names)}, expected a list of one image")
        if "image" in record:
            raise DataError("the record has both image and images, expected one of them")
        record = {**record, "image": names[0]}
    record.setdefault("image_id", number)
    if "width" not in record and "height" not in record:
        record["width"], record["height"] = stored_size(folder.path_of(record.get("image")))
    return record


def _sample(record: Mapping[str, object], boxes: RecordBoxes, folder: ImageFolder) -> Sample:
    width, height = (_whole(record, name, lowest=1) for name in ("width", "height"))
    problem = size_problem(width, height)
    if problem is not None:
        raise DataError(problem)
    return Sample(
        image=folder.path_of(record.get("image")),
        width=width,
        height=height,
        image_id=_whole(record, "image_id", lowest=-MAX_ID),
        objects=_objects(boxes),
    )


def _not_targets(record: Mapping[str, object], bbox_format: BBoxFormat | None) -> tuple[Objects, list[dict[Flag, int]]]:
    """Return the boxes that are crowds or ignored, and what each says of itself."""
    entries = record.get(_NOT_TARGETS, [])
    try:
        boxes = record_boxes({**record, "objects": entries}, bbox_format=bbox_format)
        flags: list[dict[Flag, int]] = [{flag: 1 for flag in _FLAGS if item.get(flag) == 1} for item in boxes.objects]
        return _objects(boxes), flags
    except DataError as error:
        raise DataError(f"{_NOT_TARGETS}: {error}") from None


def _objects(boxes: RecordBoxes) -> Objects:
    return Objects(
        descs=tuple(_desc(item, index) for index, item in enumerate(boxes.objects)),
        boxes_norm_xyxy=np.array(boxes.boxes_norm_xyxy, np.float64).reshape(-1, 4),
    )


def _whole(record: Mapping[str, object], name: str, *, lowest: int) -> int:
    value = record.get(name)
    if type(value) is not int or not lowest <= value <= MAX_ID:
        raise DataError(f"{name} is {show(value)}, expected a whole number{' of pixels' if lowest == 1 else ''}")
    return value


def _desc(item: Mapping[str, object], index: int) -> str:
    desc = item.get("desc")
    if not isinstance(desc, str) or not is_name(desc.strip()):
        raise DataError(f"objects[{index}]: desc is {show(desc)}, expected text without control characters")
    return desc.strip()

"""Samples <-> JSONL: one record an image, boxes as numbers or as coord tokens; every field is checked.

``{"image": "a.jpg", "width": 640, "height": 480, "image_id": 7, "objects": [{"desc": "cat", "bbox": [...]}]}``
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from coordexp.coord_tokens.bins import are_thin
from coordexp.coord_tokens.validator import RecordBoxes, annotate_coord_tokens, check_scaling, record_boxes
from coordexp.data.image_file import ImageFolder, size_problem
from coordexp.data.sample import Objects, Rejections, Sample, Samples, SplitData
from coordexp.data.sources.coco_file import MAX_ID
from coordexp.errors import DataError, is_text, kind_of, show

Flag = Literal["iscrowd", "ignore"]
_NOT_TARGETS = "ignored_objects"


@dataclass(frozen=True)
class JsonlSource:
    """A split as JSONL, such as ``prepare`` writes: for training only."""

    annotations: Path
    images: Path
    generated = None

    @property
    def name(self) -> str:
        """Return the name of the folder that was prepared."""
        return self.annotations.absolute().parent.name

    def read(self, *, max_bad_fraction: float, accept_prequantised: bool) -> SplitData:
        """Read the split."""
        return read_jsonl(
            self.annotations,
            self.images,
            max_bad_fraction=max_bad_fraction,
            accept_prequantised=accept_prequantised,
        )

    def ground_truth(self) -> Path:
        """Refuse: a record keeps neither outlines nor areas."""
        raise DataError(f"{self.annotations}: AP is measured on the original annotations; expected COCO JSON")


def format_record(
    sample: Sample,
    *,
    image: str,
    coord_tokens: bool,
    not_targets: Objects | None = None,
    flags: Sequence[Flag] = (),
    extras: Mapping[str, Sequence[int]] | None = None,
) -> str:
    """Return a record as one line, without its end.

    Args:
        sample: the image and its targets.
        image: path of the image as it shall be written.
        coord_tokens: boxes as four ``<|coord_k|>`` strings; otherwise as numbers in [0, 1].
        not_targets: boxes that are crowds or ignored. They stand under a key of their own, so that a
            reader which only knows ``objects`` does not learn them.
        flags: for each of them, the field that says why.
        extras: further fields.
    """
    record: dict[str, object] = {
        "image": image,
        "width": sample.width,
        "height": sample.height,
        "image_id": sample.image_id,
        "objects": _entries(sample.objects, coord_tokens=coord_tokens),
    }
    if not_targets is not None and len(not_targets):
        entries = _entries(not_targets, coord_tokens=coord_tokens)
        record[_NOT_TARGETS] = [entry | {flag: 1} for entry, flag in zip(entries, flags, strict=True)]
    return json.dumps(record | dict(extras or {}), ensure_ascii=False)


def read_jsonl(
    path: Path, image_root: Path, *, max_bad_fraction: float = 0.0, accept_prequantised: bool = False
) -> SplitData:
    """Read a JSONL file; blank lines are skipped.

    Args:
        path: the file.
        image_root: folder of the images; a record's path is relative to it, or absolute and inside.
        max_bad_fraction: largest accepted fraction of bad records.
        accept_prequantised: whether boxes may be coord tokens or bins, see
            :func:`coordexp.coord_tokens.template_adapter.keeps_boxes`.

    Raises:
        DataError: if the file is missing or holds no usable record, more than the accepted fraction
            of its records is bad (it names their lines and reasons), or boxes are bins already and
            would be scaled a second time.
    """
    folder = ImageFolder(image_root)
    bad = Rejections(path)
    found: dict[int, Sample] = {}
    num_records = num_ignored = 0
    for number, line in _lines(path):
        num_records += 1
        try:
            record = _parsed(line)
            boxes = record_boxes(record)
        except DataError as error:
            bad.add("records", f"line {number}", str(error))
            continue
        try:
            check_scaling(boxes, accept_prequantised=accept_prequantised)
        except DataError as error:  # a wrong switch, not a bad record: no fraction of such records is accepted
            raise DataError(f"{path}: line {number}: {error}") from None
        try:
            sample = _sample(record, boxes, folder)
            num_not_targets = _num_not_targets(record)
            if sample.image_id in found:
                raise DataError(f"image_id {sample.image_id} was used before")
        except DataError as error:
            bad.add("records", f"line {number}", str(error))
        else:
            found[sample.image_id] = sample
            num_ignored += num_not_targets
    rejected = bad.accept({"records": num_records}, max_bad_fraction=max_bad_fraction)
    if not found:
        raise DataError(f"{path}: there is no record to use; expected one JSON object a line")
    samples = Samples.of(found.values())
    counts = {
        "records": num_records,
        "boxes": len(samples.boxes_norm_xyxy),
        "ignored": num_ignored,
        "thin": int(are_thin(samples.boxes_norm_xyxy).sum()),
        "images_without_objects": int((np.diff(samples.first) == 0).sum()),
        "repeated_file_names": len(samples) - len(set(samples.names)),
        "rejected_records": len(rejected),
    }
    return SplitData(samples, rejected, counts, categories={})


def _entries(objects: Objects, *, coord_tokens: bool) -> list[dict[str, object]]:
    entries: list[dict[str, object]] = [
        {"desc": desc, "bbox": box} for desc, box in zip(objects.descs, objects.boxes_norm_xyxy.tolist(), strict=True)
    ]
    if not coord_tokens:
        return entries
    annotate_coord_tokens({"objects": entries})
    return [{"desc": entry["desc"], "bbox": entry["bbox_coord_tokens"]} for entry in entries]


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
        objects=Objects(
            descs=tuple(_desc(item, index) for index, item in enumerate(boxes.objects)),
            boxes_norm_xyxy=np.array(boxes.boxes_norm_xyxy, np.float64).reshape(-1, 4),
        ),
    )


def _num_not_targets(record: Mapping[str, object]) -> int:
    if _NOT_TARGETS not in record:
        return 0
    try:
        return len(record_boxes({**record, "objects": record[_NOT_TARGETS]}).objects)
    except DataError as error:
        raise DataError(f"{_NOT_TARGETS}: {error}") from None


def _whole(record: Mapping[str, object], name: str, *, lowest: int) -> int:
    value = record.get(name)
    if type(value) is not int or not lowest <= value <= MAX_ID:
        raise DataError(f"{name} is {show(value)}, expected a whole number{' of pixels' if lowest == 1 else ''}")
    return value


def _desc(item: Mapping[str, object], index: int) -> str:
    desc = item.get("desc")
    if not isinstance(desc, str) or not is_text(desc):
        raise DataError(f"objects[{index}]: desc is {show(desc)}, expected text")
    return desc

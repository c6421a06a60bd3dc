"""One JSONL record (DESIGN 5): written from an image and its objects, and read back with every field checked."""

import json
from collections.abc import Mapping, Sequence

from coordexp.coord_tokens.bins import ints_to_tokens, quantise_boxes
from coordexp.coord_tokens.validator import RecordBoxes, check_scaling, record_boxes
from coordexp.data.images.image_file import size_problem
from coordexp.data.images.image_folder import ImageFolder
from coordexp.data.sample import DetectionObject, Sample
from coordexp.data.sources.coco import CROWD
from coordexp.data.sources.coco_file import MAX_ID
from coordexp.errors import DataError, is_text, kind_of, show

NOT_TARGETS = "ignored_objects"


def format_record(
    sample: Sample,
    *,
    image: str,
    coord_tokens: bool,
    not_targets: Sequence[tuple[int, DetectionObject]] = (),
    extras: Mapping[str, Sequence[int]] | None = None,
) -> str:
    """Return a record as one line, without its end.

    Args:
        sample: the image and its targets.
        image: path of the image as it shall be written.
        coord_tokens: boxes as four ``<|coord_k|>`` strings; otherwise as numbers in [0, 1].
        not_targets: kind (crowd or ignored) and object of boxes that are no targets. They stand
            under a key of their own, so that a reader which only knows ``objects`` does not learn them.
        extras: further fields.
    """
    record: dict[str, object] = {
        "image": image,
        "width": sample.width,
        "height": sample.height,
        "image_id": sample.image_id,
        "objects": _objects(sample.objects, coord_tokens=coord_tokens),
    }
    if not_targets:
        entries = _objects([item for _, item in not_targets], coord_tokens=coord_tokens)
        for entry, (kind, _) in zip(entries, not_targets, strict=True):
            entry["iscrowd" if kind == CROWD else "ignore"] = 1
        record[NOT_TARGETS] = entries
    return json.dumps(record | dict(extras or {}), ensure_ascii=False)


def parse_record(line: bytes) -> dict[str, object]:
    """Parse a line.

    Raises:
        DataError: if it is no JSON object.
    """
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"byte {error.start} of the line is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise DataError(f"column {error.colno}: not valid JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid JSON ({error})") from None
    if not isinstance(record, dict):
        raise DataError(f"the record is {kind_of(record)}, expected an object")
    return record


def boxes_of(record: Mapping[str, object], *, key: str = "objects") -> RecordBoxes:
    """Read the boxes of a record; those of :data:`NOT_TARGETS` may be missing.

    Raises:
        DataError: naming the object.
    """
    if key == "objects":
        return record_boxes(record)
    try:
        return record_boxes({**record, "objects": record.get(key, [])})
    except DataError as error:
        raise DataError(f"{key}: {error}") from None


def sample_of(record: Mapping[str, object], boxes: RecordBoxes, folder: ImageFolder) -> Sample:
    """Make a sample of a record and its boxes.

    Raises:
        DataError: if a field is wrong, or the image is not in its folder.
    """
    width, height = (_whole(record, name, lowest=1) for name in ("width", "height"))
    problem = size_problem(width, height)
    if problem is not None:
        raise DataError(problem)
    return Sample(
        image=folder.path_of(record.get("image")),
        width=width,
        height=height,
        image_id=_whole(record, "image_id", lowest=-MAX_ID),
        objects=tuple(
            DetectionObject(_desc(item, index), box)
            for index, (item, box) in enumerate(zip(boxes.objects, boxes.boxes_norm_xyxy, strict=True))
        ),
    )


def refuse_double_scaling(boxes: RecordBoxes, where: str, *, accept_prequantised: bool) -> None:
    """Stop at a record of bins unless the switches say that nothing scales them again.

    Raises:
        DataError: naming the record and the switches. It is a wrong switch, not a bad record: no
            fraction of such records is accepted.
    """
    try:
        check_scaling(boxes, accept_prequantised=accept_prequantised)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def _objects(items: Sequence[DetectionObject], *, coord_tokens: bool) -> list[dict[str, object]]:
    if not coord_tokens:
        return [{"desc": item.desc, "bbox": item.box_norm_xyxy} for item in items]
    bins = quantise_boxes([item.box_norm_xyxy for item in items]).tolist()
    return [{"desc": item.desc, "bbox": ints_to_tokens(box)} for item, box in zip(items, bins, strict=True)]


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

"""Read the boxes of a JSONL record in any of their forms, and annotate them with coord tokens.

An object has its box in ``bbox`` or ``bbox_2d``, as ``[x1, y1, x2, y2]``. All boxes of a record are in one form:

- Coord tokens: four ``<|coord_k|>`` strings.
- Numbers. The record's ``"bbox_format"`` says which: ``normalised`` in [0, 1]; ``norm1000``, integer thousandths of the
  image (bins in ``bbox``; ``bbox_2d`` may also hold 1000, the border itself); ``pixels``; or ``smart28``, pixels of the
  copy to which Qwen2.5-VL's processor resizes the image.

Without ``bbox_format``, numbers in ``bbox`` are normalised. ``bbox_2d`` is used for thousandths (Qwen2-VL, Qwen3-VL)
and for pixels (Qwen2.5-VL). So the record must say which they are, or its numbers must fit only one of the two.

Coord tokens and thousandths are *pre-quantised*: nothing may scale them again.

:func:`annotate_coord_tokens` refuses boxes that are inverted, empty, or clearly beyond the image. A box slightly beyond
it is clipped: YOLO's six digits can round outwards. :func:`record_boxes` returns boxes as they are written. Readers of
whole data sets use it, because they have a rule of their own (:mod:`coordexp.data.box_rule`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Literal, cast, get_args

import numpy as np

from coordexp.coord_tokens.bins import NUM_BINS, encode_array, ints_to_tokens, quantise_boxes, tokens_to_ints
from coordexp.coord_tokens.smart_resize import smart_resize
from coordexp.errors import DataError, kind_of, show

BBoxFormat = Literal["normalised", "norm1000", "pixels", "smart28"]
BBOX_FORMAT: BBoxFormat = "norm1000"
_SLACK = 0.02
"""In image sides: how far beyond the image a box may reach and still be clipped."""
_FARTHEST = 0.5
"""In image sides: a number farther beyond the image is not a fraction at all, but for example a pixel."""
_LARGEST_PX = 1e9  # no image has more pixels on a side

Box = tuple[float, float, float, float]
_Form = Literal["numbers in [0, 1]", "coord tokens", "integer bins", "pixels"]


class AmbiguousBoxesError(DataError):
    """Numbers that may be pixels or thousandths, and neither the record nor a key says which."""


class PrequantisedError(DataError):
    """Boxes that are already bins, and would be scaled a second time by the switches of the configuration."""


@dataclass(frozen=True, slots=True)
class RecordBoxes:
    """The boxes of a record."""

    objects: list[dict[str, object]]  # as they are in the record
    boxes_norm_xyxy: list[Box]  # one per object, corners as written; a bin k is k / 1000
    prequantised: bool  # whether the record holds coord tokens or bins
    form: _Form | None  # None if the record has no boxes


def annotate_coord_tokens(record: dict[str, object]) -> bool:
    """Add ``bbox_coord_tokens`` and ``bbox_coord_ints`` to each object of a record, in place.

    Numbers are quantised so that every box is at least one bin wide and high. Tokens and bins are final and stay as
    they are. A refused record is not changed. Annotating twice changes nothing.

    Args:
        record: an image's record; ``objects`` is a list of ``{"desc": ..., "bbox": [...]}``.

    Returns:
        Whether the record was pre-quantised. A record without objects is, if it says ``norm1000``.

    Raises:
        DataError: if a box is wrong, or boxes are in different forms; the message names the object.
    """
    boxes = record_boxes(record)
    for index, (item, box) in enumerate(zip(boxes.objects, boxes.boxes_norm_xyxy, strict=True)):
        written = show(item.get("bbox", item.get("bbox_2d")))
        _check_strictly(f"objects[{index}]: bbox {written}", box, boxes)
    quantise = encode_array if boxes.prequantised else quantise_boxes
    bins = quantise(np.clip(boxes.boxes_norm_xyxy, 0.0, 1.0)).tolist()
    for item, ints in zip(boxes.objects, bins, strict=True):
        item["bbox_coord_ints"] = ints
        item["bbox_coord_tokens"] = ints_to_tokens(ints)
    return boxes.prequantised


def record_boxes(record: Mapping[str, object], *, bbox_format: BBoxFormat | None = None) -> RecordBoxes:
    """Read the boxes of a record as they are written.

    Args:
        record: an image's record.
        bbox_format: what numbers are if the record does not say; None for the rule at the top of this file.

    Raises:
        DataError: if a box cannot be read, or boxes are in different forms; the message names the object.
    """
    stated_format = record.get("bbox_format")
    if "bbox_format" in record and stated_format not in get_args(BBoxFormat):
        allowed = ", ".join(repr(name) for name in get_args(BBoxFormat))
        raise DataError(f"bbox_format is {show(stated_format)}, expected one of {allowed}, or no such key")
    entries = record.get("objects")
    if not isinstance(entries, list):
        raise DataError(f"objects is {kind_of(entries)}, expected a list")
    numbers_are = cast("BBoxFormat | None", stated_format) or bbox_format or _format_by_range(record, entries)
    objects: list[dict[str, object]] = []
    boxes: list[Box] = []
    form: _Form | None = None
    for index, item in enumerate(entries):
        try:
            if not isinstance(item, dict):
                raise DataError(f"the object is {kind_of(item)}, expected desc and bbox")
            form_of_item, box = _read_box(item, numbers_are, record)
            form = form or form_of_item
            if form_of_item != form:
                raise DataError(f"its bbox holds {form_of_item}, those before it {form}; a record has one form")
        except DataError as error:
            raise DataError(f"objects[{index}]: {error}") from None
        objects.append(item)
        boxes.append(box)
    prequantised = form in ("coord tokens", "integer bins")
    if form is None:
        prequantised = stated_format == BBOX_FORMAT
    return RecordBoxes(objects, boxes, prequantised, form)


def _check_strictly(subject: str, box: Box, boxes: RecordBoxes) -> None:
    """Refuse a box that is inverted, empty or outside of the image. ``subject`` begins the message.

    Two equal bins are not empty: such a box is one bin wide.
    """
    x1, y1, x2, y2 = box
    if boxes.prequantised:
        if x2 < x1 or y2 < y1:
            raise DataError(f"{subject} is inverted, expected x1 <= x2 and y1 <= y2")
        return
    if not all(-_SLACK <= value <= 1 + _SLACK for value in box):
        inside = "[0, 1]" if boxes.form == "numbers in [0, 1]" else "its image"
        raise DataError(f"{subject} is not inside {inside}")
    if min(1.0, x2) <= max(0.0, x1) or min(1.0, y2) <= max(0.0, y1):
        raise DataError(f"{subject} is empty or inverted, expected x1 < x2 and y1 < y2")


def smart28(width: int, height: int) -> tuple[int, int]:
    """Return the size to which Qwen2.5-VL's processor resizes an image."""
    return smart_resize(width, height, factor=28, low=56 * 56, high=12_845_056)


def check_scaling(boxes: RecordBoxes, *, accept_prequantised: bool) -> None:
    """Raise a PrequantisedError for bins that would be scaled.

    Args:
        boxes: the boxes of a record.
        accept_prequantised: :func:`coordexp.coord_tokens.template_adapter.keeps_boxes` of the configuration.
    """
    if boxes.prequantised and not accept_prequantised:
        raise PrequantisedError(
            "its boxes are already bins and would be scaled a second time; set custom.coord_tokens.enabled and "
            "custom.coord_tokens.skip_bbox_norm to true, or write the boxes as numbers in [0, 1]"
        )


def _format_by_range(record: Mapping[str, object], entries: list[object]) -> BBoxFormat:
    """Return what the numbers of a record are that does not say so. Only ``bbox_2d`` leaves that open."""
    values = [item["bbox_2d"] for item in entries if isinstance(item, dict) and "bbox_2d" in item]
    boxes = [box for box in values if isinstance(box, list | tuple) and len(box) == 4 and all(map(_is_number, box))]
    numbers = list(chain(*boxes))
    # Fractions, or no numbers at all. As thousandths or pixels these boxes would be at most 1 wide, which is no object.
    if all(0 <= number <= 1 for number in numbers):
        return "normalised"
    width, height = _size(record)
    are_integers = all(type(number) is int for number in numbers)
    slack = 0.0 if are_integers else _SLACK  # rounded pixels end at the border, fractional ones may be slightly beyond
    xs = chain(*(box[0::2] for box in boxes))
    ys = chain(*(box[1::2] for box in boxes))
    are_xs = all(-slack * width <= x <= width * (1 + slack) for x in xs)
    are_ys = all(-slack * height <= y <= height * (1 + slack) for y in ys)
    are_pixels = are_xs and are_ys
    are_thousandths = are_integers and all(0 <= number <= NUM_BINS for number in numbers)
    if are_pixels and are_thousandths:
        raise AmbiguousBoxesError(
            f"bbox_2d {show(boxes[0])} may be pixels of the {width} x {height} image or thousandths of it; say which "
            'with "bbox_format": "pixels" or "norm1000" in the record, or with data.bbox_format for all records'
        )
    if not are_pixels and not are_thousandths:
        raise DataError(
            f"bbox_2d: its numbers are neither pixels inside the {width} x {height} image nor integers in 0..{NUM_BINS}"
        )
    return "pixels" if are_pixels else "norm1000"


def _is_number(value: object) -> bool:
    return type(value) is int or type(value) is float  # by exact type, because True and False are ints in Python


def _size(record: Mapping[str, object]) -> tuple[int, int]:
    """Return width and height of a record's image, or raise a DataError."""
    width = record.get("width")
    height = record.get("height")
    if type(width) is not int or type(height) is not int or width < 1 or height < 1:
        raise DataError(f"boxes in pixels need width and height, got {show(width)} and {show(height)}")
    return width, height


def _read_box(item: Mapping[str, object], numbers_are: BBoxFormat, record: Mapping[str, object]) -> tuple[_Form, Box]:
    """Return the form of an object's box, and the box as fractions. A box of bins may be thinner than a bin."""
    if "bbox" in item and "bbox_2d" in item:
        raise DataError("the object has both bbox and bbox_2d, expected one of them")
    name = "bbox_2d" if "bbox_2d" in item else "bbox"
    bbox = item.get(name)
    if not isinstance(bbox, list | tuple) or len(bbox) != 4:
        raise DataError(f"{name} is {kind_of(bbox)}, expected four values [x1, y1, x2, y2]")
    if all(type(value) is str for value in bbox):
        try:
            bins = tokens_to_ints(bbox)
        except ValueError as error:
            raise DataError(f"bbox {error}") from None
        return "coord tokens", _from_bins(bins, largest=NUM_BINS - 1)
    if numbers_are == BBOX_FORMAT:
        if not all(type(value) is int for value in bbox):
            raise DataError(f"{name} {show(bbox)} is no list of integers, but bbox_format says {BBOX_FORMAT}")
        return "integer bins", _from_bins(list(bbox), largest=NUM_BINS if name == "bbox_2d" else NUM_BINS - 1)
    if not all(map(_is_number, bbox)):
        raise DataError(f"{name} {show(bbox)} mixes kinds; expected four numbers or four coord tokens")
    if numbers_are == "normalised":
        return "numbers in [0, 1]", _from_fractions(bbox)
    if not all(-_LARGEST_PX <= value <= _LARGEST_PX for value in bbox):  # also refuses NaN
        raise DataError(f"{name} {show(bbox)} are no pixels of an image")
    width, height = _size(record) if numbers_are == "pixels" else smart28(*_size(record))
    x1, y1, x2, y2 = bbox
    return "pixels", (x1 / width, y1 / height, x2 / width, y2 / height)


def _from_bins(bins: list[int], *, largest: int) -> Box:
    if not all(0 <= k <= largest for k in bins):
        raise DataError(f"bbox {show(bins)} has a bin outside 0..{largest}")
    x1, y1, x2, y2 = bins
    return x1 / NUM_BINS, y1 / NUM_BINS, x2 / NUM_BINS, y2 / NUM_BINS


def _from_fractions(values: list[float] | tuple[float, ...]) -> Box:
    if not all(-_FARTHEST <= value <= 1 + _FARTHEST for value in values):  # also refuses NaN
        hint = ""
        if all(type(value) is int for value in values):
            hint = f'; bins need "bbox_format": "{BBOX_FORMAT}"'
        raise DataError(f"bbox {show(values)} is not inside [0, 1]{hint}")
    x1, y1, x2, y2 = map(float, values)
    return x1, y1, x2, y2

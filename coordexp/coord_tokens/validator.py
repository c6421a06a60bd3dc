"""Read the boxes of a JSONL record, whichever way they are written, and annotate them with coord tokens.

An object holds its box as ``bbox`` or ``bbox_2d``, ``[x1, y1, x2, y2]``. All boxes of a record are in one form:

- coord tokens: four ``<|coord_k|>`` strings;
- numbers, and ``"bbox_format"`` in the record says which: ``normalised`` in [0, 1], ``norm1000`` integer thousandths
  of the image (bins in ``bbox``; ``bbox_2d`` may also hold 1000, the border itself), ``pixels``, or ``smart28``, pixels
  of the copy to which Qwen2.5-VL's processor resizes the image.

Without ``bbox_format``, ``bbox`` is normalised. ``bbox_2d`` is in use for thousandths (Qwen2-VL, Qwen3-VL) and for
pixels (Qwen2.5-VL), so that a record must say which, or prove it: numbers that fit only one of the readings.

Coord tokens and thousandths are *pre-quantised*: nothing may scale them again.

:func:`annotate_coord_tokens` refuses boxes that are inverted, of no extent, or more than slightly beyond the image (six
digits of YOLO are slightly beyond, and clipped). :func:`record_boxes` returns boxes as they are written, for readers of
whole data sets, which have a rule of their own for these (:mod:`coordexp.data.box_rule`).
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
"""Of an image's side: so far beyond it a box may reach, and is clipped."""
_FARTHEST = 0.5
"""Of an image's side: a number farther beyond it is no fraction of the image, but something else."""
_LARGEST_PX = 1e9

Box = tuple[float, float, float, float]
_Form = Literal["numbers in [0, 1]", "coord tokens", "integer bins", "pixels"]


class AmbiguousBoxesError(DataError):
    """Numbers that may be pixels or thousandths: the record or a key must say which."""


class PrequantisedError(DataError):
    """Boxes that are bins already, where something would scale them once more: a switch is set wrong."""


@dataclass(frozen=True, slots=True)
class RecordBoxes:
    """The boxes of a record."""

    objects: list[dict[str, object]]  # as they stand in the record
    boxes_norm_xyxy: list[Box]  # of each object, corners as they are written; a bin k is k / 1000
    prequantised: bool  # whether the record holds coord tokens or bins
    form: _Form | None  # None where a record has no boxes


def annotate_coord_tokens(record: dict[str, object]) -> bool:
    """Add ``bbox_coord_tokens`` and ``bbox_coord_ints`` to each object of a record, in place.

    Numbers are quantised so that every box is at least one bin wide and high; tokens and bins are
    final and stay as they are. A record that is refused is left as it was. Annotating twice changes
    nothing.

    Args:
        record: an image's record; ``objects`` is a list of ``{"desc": ..., "bbox": [...]}``.

    Returns:
        Whether the record was pre-quantised. One without objects is, if it says ``norm1000``.

    Raises:
        DataError: if a box is wrong, or boxes are written in different forms; it names the object.
    """
    found = record_boxes(record)
    for index, (item, box) in enumerate(zip(found.objects, found.boxes_norm_xyxy, strict=True)):
        _check_strictly(f"objects[{index}]: bbox {show(item.get('bbox', item.get('bbox_2d')))}", box, found)
    quantise = encode_array if found.prequantised else quantise_boxes
    bins = quantise(np.clip(found.boxes_norm_xyxy, 0.0, 1.0)).tolist()
    for item, ints in zip(found.objects, bins, strict=True):
        item["bbox_coord_ints"] = ints
        item["bbox_coord_tokens"] = ints_to_tokens(ints)
    return found.prequantised


def record_boxes(record: Mapping[str, object], *, bbox_format: BBoxFormat | None = None) -> RecordBoxes:
    """Read and check the boxes of a record, with the errors of :func:`annotate_coord_tokens`.

    ``bbox_format`` is what numbers are, if the record does not say; None: see the top of this file.
    """
    written = record.get("bbox_format")
    if "bbox_format" in record and written not in get_args(BBoxFormat):
        shown = ", ".join(map(repr, get_args(BBoxFormat)))
        raise DataError(f"bbox_format is {show(written)}, expected one of {shown}, or no such key")
    entries = record.get("objects")
    if not isinstance(entries, list):
        raise DataError(f"objects is {kind_of(entries)}, expected a list")
    numbers_are = cast("BBoxFormat | None", written) or bbox_format or _format_by_range(record, entries)
    objects: list[dict[str, object]] = []
    boxes: list[Box] = []
    form: _Form | None = None
    for index, item in enumerate(entries):
        try:
            if not isinstance(item, dict):
                raise DataError(f"the object is {kind_of(item)}, expected desc and bbox")
            own, box = _read_box(item, numbers_are, record)
            form = form or own
            if own != form:
                raise DataError(f"its bbox holds {own}, those before it {form}; a record has one form")
        except DataError as error:
            raise DataError(f"objects[{index}]: {error}") from None
        objects.append(item)
        boxes.append(box)
    prequantised = written == BBOX_FORMAT if form is None else form in ("coord tokens", "integer bins")
    return RecordBoxes(objects, boxes, prequantised, form)


def _check_strictly(what: str, box: Box, record: RecordBoxes) -> None:
    """Refuse a box that is not one inside the image; bins may be equal, and are then a bin wide."""
    x1, y1, x2, y2 = box
    if record.prequantised:
        if x2 < x1 or y2 < y1:
            raise DataError(f"{what} is inverted, expected x1 <= x2 and y1 <= y2")
        return
    if not all(-_SLACK <= value <= 1 + _SLACK for value in box):
        inside = "[0, 1]" if record.form == "numbers in [0, 1]" else "its image"
        raise DataError(f"{what} is not inside {inside}")
    if min(1.0, x2) <= max(0.0, x1) or min(1.0, y2) <= max(0.0, y1):
        raise DataError(f"{what} is empty or inverted, expected x1 < x2 and y1 < y2")


def smart28(width: int, height: int) -> tuple[int, int]:
    """Return the size to which Qwen2.5-VL's processor resizes an image."""
    return smart_resize(width, height, factor=28, low=56 * 56, high=12_845_056)


def check_scaling(boxes: RecordBoxes, *, accept_prequantised: bool) -> None:
    """Refuse pre-quantised boxes where :func:`coordexp.coord_tokens.template_adapter.keeps_boxes` says no."""
    if boxes.prequantised and not accept_prequantised:
        raise PrequantisedError(
            "its boxes are bins already, and would be scaled a second time; set custom.coord_tokens.enabled and "
            "custom.coord_tokens.skip_bbox_norm to true, or write the boxes as numbers in [0, 1]"
        )


def _format_by_range(record: Mapping[str, object], entries: list[object]) -> BBoxFormat:
    """Return what numbers are in a record that does not say so, which only ``bbox_2d`` leaves open."""
    boxes = [item["bbox_2d"] for item in entries if isinstance(item, dict) and "bbox_2d" in item]
    found = [box for box in boxes if isinstance(box, list | tuple) and len(box) == 4 and all(map(_is_number, box))]
    if all(0 <= value <= 1 for value in chain(*found)):  # also none; a thousandth or a pixel of extent is no object
        return "normalised"
    width, height = _size(record)
    # Whole numbers prove the border; others may be slightly beyond it.
    slack = 0.0 if all(type(value) is int for value in chain(*found)) else _SLACK
    are_pixels = all(
        -slack * side <= value <= side * (1 + slack)
        for box in found
        for value, side in zip(box, (width, height) * 2, strict=True)
    )
    are_thousandths = all(type(value) is int and 0 <= value <= NUM_BINS for value in chain(*found))
    if are_pixels and are_thousandths:
        raise AmbiguousBoxesError(
            f"bbox_2d {show(found[0])} may be pixels of the {width} x {height} image or thousandths of it; say which "
            'with "bbox_format": "pixels" or "norm1000" in the record, or with data.bbox_format for all records'
        )
    if not are_pixels and not are_thousandths:
        raise DataError(
            f"bbox_2d: its numbers are neither pixels inside the {width} x {height} image nor integers in 0..{NUM_BINS}"
        )
    return "pixels" if are_pixels else "norm1000"


def _is_number(value: object) -> bool:
    return type(value) is int or type(value) is float  # by exact type: true and false are no coordinates


def _size(record: Mapping[str, object]) -> tuple[int, int]:
    width, height = record.get("width"), record.get("height")
    if type(width) is not int or type(height) is not int or width < 1 or height < 1:
        raise DataError(f"boxes in pixels need width and height, got {show(width)} and {show(height)}")
    return width, height


def _read_box(item: Mapping[str, object], numbers_are: BBoxFormat, record: Mapping[str, object]) -> tuple[_Form, Box]:
    """Return the form of an object's box, and the box; a box of bins may be thinner than a bin."""
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
        hint = f'; bins need "bbox_format": "{BBOX_FORMAT}"' if all(type(value) is int for value in values) else ""
        raise DataError(f"bbox {show(values)} is not inside [0, 1]{hint}")
    x1, y1, x2, y2 = map(float, values)
    return x1, y1, x2, y2

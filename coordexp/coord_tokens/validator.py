"""Check the boxes of a JSONL record, whichever way they are written, and annotate them with coord tokens.

A record writes all its boxes in one of three forms:

- normalised: numbers in [0, 1], no ``bbox_format`` key;
- coord tokens: four ``<|coord_k|>`` strings;
- bins: integers in 0..999, and ``"bbox_format": "norm1000"`` in the record.

The last two are *pre-quantised*: nothing may scale them again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coordexp.coord_tokens.bins import NUM_BINS, encode_array, ints_to_tokens, quantise_boxes, tokens_to_ints
from coordexp.errors import DataError, kind_of, show

BBOX_FORMAT = "norm1000"

Box = tuple[float, float, float, float]
_Form = Literal["numbers in [0, 1]", "coord tokens", "integer bins"]


@dataclass(frozen=True, slots=True)
class RecordBoxes:
    """The boxes of a record.

    Attributes:
        objects: the objects, as they stand in the record.
        boxes_norm_xyxy: box of each object; a bin ``k`` is ``k / 1000``.
        prequantised: whether the record holds coord tokens or bins.
    """

    objects: list[dict[str, object]]
    boxes_norm_xyxy: list[Box]
    prequantised: bool


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
    quantise = encode_array if found.prequantised else quantise_boxes
    bins = quantise(found.boxes_norm_xyxy).tolist()
    for item, ints in zip(found.objects, bins, strict=True):
        item["bbox_coord_ints"] = ints
        item["bbox_coord_tokens"] = ints_to_tokens(ints)
    return found.prequantised


def record_boxes(record: Mapping[str, object]) -> RecordBoxes:
    """Read and check the boxes of a record.

    Raises:
        DataError: as :func:`annotate_coord_tokens`.
    """
    is_norm1000 = _is_norm1000(record)
    entries = record.get("objects")
    if not isinstance(entries, list):
        raise DataError(f"objects is {kind_of(entries)}, expected a list")
    objects: list[dict[str, object]] = []
    boxes: list[Box] = []
    forms: list[_Form] = []
    for index, item in enumerate(entries):
        try:
            if not isinstance(item, dict):
                raise DataError(f"the object is {kind_of(item)}, expected desc and bbox")
            form, box = _read_box(item.get("bbox"), is_norm1000=is_norm1000)
            if forms and form != forms[0]:
                raise DataError(f"its bbox holds {form}, those before it {forms[0]}; a record has one form")
        except DataError as error:
            raise DataError(f"objects[{index}]: {error}") from None
        objects.append(item)
        boxes.append(box)
        forms.append(form)
    return RecordBoxes(objects, boxes, prequantised=is_norm1000 if not forms else forms[0] != "numbers in [0, 1]")


def check_scaling(boxes: RecordBoxes, *, accept_prequantised: bool) -> None:
    """Refuse pre-quantised boxes where something would scale them once more.

    Args:
        boxes: the boxes of a record.
        accept_prequantised: ``custom.coord_tokens.enabled and custom.coord_tokens.skip_bbox_norm``:
            only then does nothing scale boxes that are bins already.

    Raises:
        DataError: naming the switch.
    """
    if boxes.prequantised and not accept_prequantised:
        raise DataError(
            "its boxes are bins already, and would be scaled a second time; set custom.coord_tokens.enabled and "
            "custom.coord_tokens.skip_bbox_norm to true, or write the boxes as numbers in [0, 1]"
        )


def _is_norm1000(record: Mapping[str, object]) -> bool:
    if "bbox_format" not in record:
        return False
    if record["bbox_format"] != BBOX_FORMAT:
        raise DataError(f"bbox_format is {show(record['bbox_format'])}, expected {BBOX_FORMAT!r} or no such key")
    return True


def _read_box(bbox: object, *, is_norm1000: bool) -> tuple[_Form, Box]:
    if not isinstance(bbox, list | tuple) or len(bbox) != 4:
        raise DataError(f"bbox is {kind_of(bbox)}, expected four values [x1, y1, x2, y2]")
    # By exact type: true and false are no coordinates.
    tokens = [value for value in bbox if type(value) is str]
    bins = [value for value in bbox if type(value) is int]
    numbers = [value for value in bbox if type(value) is int or type(value) is float]
    if len(tokens) == 4:
        return "coord tokens", _from_bins(_token_bins(tokens))
    if is_norm1000 and len(bins) == 4:
        return "integer bins", _from_bins(bins)
    if is_norm1000:
        raise DataError(f"bbox {show(bbox)} is no list of integers, but bbox_format says {BBOX_FORMAT}")
    if len(numbers) == 4:
        return "numbers in [0, 1]", _from_fractions(numbers)
    raise DataError(f"bbox {show(bbox)} mixes kinds; expected four numbers or four coord tokens")


def _token_bins(tokens: list[str]) -> list[int]:
    try:
        return tokens_to_ints(tokens)
    except ValueError as error:
        raise DataError(f"bbox {error}") from None


def _from_bins(bins: list[int]) -> Box:
    """Decode bins; a box thinner than a bin has equal corners, and is kept."""
    if not all(0 <= k < NUM_BINS for k in bins):
        raise DataError(f"bbox {show(bins)} has a bin outside 0..{NUM_BINS - 1}")
    if bins[2] < bins[0] or bins[3] < bins[1]:
        raise DataError(f"bbox {show(bins)} is inverted, expected x1 <= x2 and y1 <= y2")
    x1, y1, x2, y2 = (k / NUM_BINS for k in bins)
    return x1, y1, x2, y2


def _from_fractions(values: list[float]) -> Box:
    if not all(0 <= value <= 1 for value in values):  # also refuses NaN
        hint = f'; bins need "bbox_format": "{BBOX_FORMAT}"' if all(type(value) is int for value in values) else ""
        raise DataError(f"bbox {show(values)} is not inside [0, 1]{hint}")
    x1, y1, x2, y2 = map(float, values)
    if x2 <= x1 or y2 <= y1:
        raise DataError(f"bbox {show(values)} is empty or inverted, expected x1 < x2 and y1 < y2")
    return x1, y1, x2, y2

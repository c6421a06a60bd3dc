"""The names under which tools write image, category, score and box of a detection, and what each of them means.

Names are compared folded: ``imageId``, ``image_id`` and ``Image ID`` are one. A name that could mean two things is not
among them, such as ``x, y, width, height`` beside a class: centres for Roboflow, corners for others.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeGuard

from coordexp.detection.forms.frames import Frame

Key = int | str
Json = dict[str, object]
Fields = Mapping[str, object]
"""An entry's values by folded name."""

Image = tuple[Key | None, str]
"""An id, a name, or both."""

NO_IMAGE: Image = (None, "")

_IDS = ("imageid", "imgid")
_NAMES = (
    "filename", "imagename", "file", "imgpath", "imagepath", "imgname", "image", "img", "picture", "path", "filepath",
    "imagefile", "imagefilename", "imgfile", "imageurl", "url",
)  # fmt: skip
_CATEGORY_NAMES = (
    "categoryname", "classname", "labelname", "name", "desc", "description", "classlabel", "categorylabel", "labeltext",
)  # fmt: skip
_CATEGORIES = (
    "category", "classid", "class", "cls", "label", "labelid", "clsid", "catid", "classidx", "classindex", "labels",
    "classes", "categories", "categoryids", "classids", "predclass", "predlabel", "object",
)  # fmt: skip
_SCORES = ("score", "confidence", "conf", "probability", "prob")
_OTHER_SCORE = re.compile(
    r"(pred|prediction|predicted|det|detection|box|bbox|class|cls|category|label|conf|confidence|object|avg|mean)?"
    r"(score|confidence|conf|probability|prob)s?"
)
NESTED = frozenset({
    "detections", "predictions", "instances", "predinstances", "annotations", "objects", "results", "data", "dets",
    "preds", "prediction", "detectedobjects", "items", "output", "result", "boxes", "bboxes", "boundingboxes",
    "predboxes",
})  # fmt: skip
"""What holds the detections of an image, or of a whole file."""

COLUMN_LABELS = (
    "labels", "predclasses", "predlabels", "classes", "categoryids", "classids", "categorynames", "classnames",
    "labelnames", "names", "categories", "category", "label", "class", "clsids", "cls",
)  # fmt: skip
COLUMN_SCORES = (
    "scores", "predscores", "confidences", "confidencescores", "confs", "probs", "probabilities", "score", "confidence",
    "conf",
)  # fmt: skip

_CORNERS, _THOUSANDTHS = Frame("px", "xyxy"), Frame("norm1000", "xyxy")
_FRAMES = {
    "bbox": Frame(), "box": Frame(), "boundingbox": Frame(), "bndbox": Frame(), "rect": Frame(), "rectangle": Frame(),
    "xywh": Frame(), "bboxxywh": Frame(), "boxxywh": Frame(), "predbox": Frame(), "predbbox": Frame(),
    "bboxpred": Frame(), "predictedbox": Frame(), "predictedbbox": Frame(), "detectionbox": Frame(),
    "xyxy": _CORNERS, "bboxxyxy": _CORNERS, "boxxyxy": _CORNERS, "expectedpx": _CORNERS,
    "cxcywh": Frame("px", "cxcywh"), "bboxcxcywh": Frame("px", "cxcywh"), "boxcxcywh": Frame("px", "cxcywh"),
    "xyxyn": Frame("norm1", "xyxy"),
    "bbox2d": _THOUSANDTHS, "box2d": _THOUSANDTHS,
    "boxes": _CORNERS, "bboxes": Frame(), "boundingboxes": Frame(), "predboxes": _CORNERS,
}  # fmt: skip
"""The frame in which tools write boxes under a name; of the last line as columns, see below."""

_COLUMN_FRAMES = {
    **_FRAMES,
    "boxes": _CORNERS,  # torchmetrics, torchvision, Hugging Face
    "predboxes": _CORNERS,  # detectron2
    "boundingboxes": _CORNERS,
    "bboxes": Frame("px", "xyxy", "index0"),  # mmdetection
}
EITHER_LAYOUT = frozenset({"boxes", "boundingboxes", "predboxes", "bboxes"})
"""Under these names some write corners and others sizes: the numbers decide."""

_NAMED_CORNERS = (
    ("x1", "y1", "x2", "y2"), ("xmin", "ymin", "xmax", "ymax"), ("left", "top", "right", "bottom"),
    ("x0", "y0", "x1", "y1"), ("minx", "miny", "maxx", "maxy"), ("startx", "starty", "endx", "endy"),
    ("xtl", "ytl", "xbr", "ybr"),
)  # fmt: skip
_NAMED_SIZES = (("left", "top", "width", "height"), ("xmin", "ymin", "width", "height"))
_NAMED_SIZES_IN_A_BOX = (*_NAMED_SIZES, ("x", "y", "width", "height"), ("x", "y", "w", "h"))
_NAMED_CENTRES = (
    ("cx", "cy", "w", "h"), ("cx", "cy", "width", "height"), ("xcenter", "ycenter", "width", "height"),
    ("centerx", "centery", "width", "height"),
)  # fmt: skip


class Box(NamedTuple):
    """Four numbers, the frame in which their names have them, and the folded name under which they were."""

    numbers: list[float]
    frame: Frame
    name: str


@dataclass(frozen=True)
class NotABox:
    """What stands under the name of a box and is none."""

    name: str
    value: object


@functools.lru_cache(maxsize=4096)
def folded(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).casefold()


def fields_of(entry: Json) -> Fields:
    """Return the values of an entry by folded name; of two that fold to one, the first."""
    fields: dict[str, object] = {}
    for name, value in entry.items():
        fields.setdefault(folded(name), value)
    return fields


def is_box_name(name: str) -> bool:
    """Return whether a box, or a list of detections, stands under this name."""
    return folded(name) in _FRAMES or folded(name) in NESTED


def is_object(value: object) -> TypeGuard[Json]:
    return isinstance(value, dict)


def is_key(value: object) -> TypeGuard[Key]:
    return isinstance(value, int | str) and not isinstance(value, bool) and value != ""


def as_number(key: Key) -> Key:
    """Return the number that an id is as text, else the key itself."""
    return int(key) if isinstance(key, str) and re.fullmatch(r"-?(0|[1-9]\d{0,17})", key) else key


def image_of(fields: Fields) -> Image:
    """Return what names the image of an entry."""
    ids = [as_number(value) for name in _IDS if is_key(value := fields.get(name))]
    names = [value for name in _NAMES if isinstance(value := fields.get(name), str)]
    return ids[0] if ids else None, names[0] if names else ""


def category_of(fields: Fields) -> Key | None:
    """Return the category of an entry: COCO's id, else a name, else a number of whatever kind."""
    if is_key(fields.get("categoryid")):
        return as_number(fields["categoryid"])  # pyright: ignore[reportArgumentType]
    names = [str(value) for name in _CATEGORY_NAMES if is_key(value := fields.get(name))]
    others = [as_number(value) for name in _CATEGORIES if is_key(value := fields.get(name))]
    names += [value for value in others if isinstance(value, str)]
    return next(iter([*names, *others]), None)


def score_of(fields: Fields) -> object:
    """Return the score of an entry, which CVAT has among its attributes; None where there is none."""
    attributes = fields.get("attributes")
    for place in (fields, fields_of(attributes) if is_object(attributes) else {}):
        for name in _SCORES:
            if place.get(name) is not None:
                return place[name]
        for name, value in place.items():
            if value is not None and not isinstance(value, list) and _OTHER_SCORE.fullmatch(name):
                return value
    return None


def box_of(fields: Fields) -> Box | NotABox | None:
    """Return the box of an entry; None where no name of one is there."""
    for name, frame in _FRAMES.items():
        value = fields.get(name)
        if value is None or (name in NESTED and not _is_four_numbers(value)):
            continue
        if is_object(value):
            named = _of_named_corners(fields_of(value), sizes=_NAMED_SIZES_IN_A_BOX)
            return NotABox(name, value) if named is None else Box(named, Frame(), name)
        return box_from(value, name, frame) or NotABox(name, value)
    named = _of_named_corners(fields, sizes=_NAMED_SIZES)
    return None if named is None else Box(named, Frame(), "corners")


def column_boxes(fields: Fields) -> tuple[str, list[object], Frame] | None:
    """Return boxes that stand as a column beside columns of labels and scores: their name, values and frame."""
    for name, frame in _COLUMN_FRAMES.items():
        values = fields.get(name)
        if not isinstance(values, list) or _is_four_numbers(values):
            continue
        is_of_lists = bool(values) and all(isinstance(value, list) for value in values)
        has_labels = column(fields, COLUMN_LABELS) is not None
        if has_labels or is_of_lists:
            return name, values, frame
    return None


def column(fields: Fields, names: Sequence[str]) -> list[object] | None:
    """Return the first column under one of these names."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, list):
            return value  # pyright: ignore[reportUnknownVariableType]
    return None


def box_from(value: object, name: str, frame: Frame) -> Box | None:
    """Return four numbers, or a box of named corners, that stand under a name of this frame."""
    if is_object(value):
        named = _of_named_corners(fields_of(value), sizes=_NAMED_SIZES_IN_A_BOX)
        return None if named is None else Box(named, Frame(categories=frame.categories), name)
    numbers = numbers_of(value)
    if numbers is None:
        return None
    if name == "box2d":  # Gemini's: y before x
        y1, x1, y2, x2 = numbers
        return Box([x1, y1, x2, y2], frame, name)
    if frame == _CORNERS and name not in EITHER_LAYOUT:
        return Box(_from_corners(numbers), Frame(), name)
    if frame == Frame("px", "cxcywh"):
        return Box(_from_centre(numbers), Frame(), name)
    return Box(numbers, frame, name)


def says_nothing_found(fields: Fields) -> bool:
    """Return whether an entry is of an image and says by an empty list, and nothing else, that nothing was found."""
    holders = [fields[name] for name in {*_FRAMES, *NESTED} if fields.get(name) is not None]
    if not holders or any(holder != [] for holder in holders):
        return False
    return category_of(fields) is None and score_of(fields) in (None, [])


def number_of(value: object) -> float | None:
    """Return a number, also one that is written as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def numbers_of(value: object) -> list[float] | None:
    """Return four numbers, also those of a list that a table wrote as text."""
    if isinstance(value, str) and value.startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, list):
        return None
    numbers = [number_of(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    four = [number for number in numbers if number is not None]
    return four if len(numbers) == len(four) == 4 else None


def _is_four_numbers(value: object) -> bool:
    return numbers_of(value) is not None


def _of_named_corners(fields: Fields, *, sizes: Sequence[tuple[str, ...]]) -> list[float] | None:
    """Return left, top, width and height of corners, sizes or centres that have names of their own."""
    kinds: tuple[tuple[Literal["corners", "sizes", "centres"], Sequence[tuple[str, ...]]], ...] = (
        ("corners", _NAMED_CORNERS),
        ("sizes", sizes),
        ("centres", _NAMED_CENTRES),
    )
    for kind, choices in kinds:
        for names in choices:
            numbers = numbers_of([fields.get(name) for name in names])
            if numbers is None:
                continue
            if kind == "corners":
                return _from_corners(numbers)
            return numbers if kind == "sizes" else _from_centre(numbers)
    return None


def _from_corners(numbers: list[float]) -> list[float]:
    x1, y1, x2, y2 = numbers
    return [x1, y1, x2 - x1, y2 - y1]


def _from_centre(numbers: list[float]) -> list[float]:
    x, y, width, height = numbers
    return [x - width / 2, y - height / 2, width, height]

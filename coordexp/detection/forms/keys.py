"""The names under which tools write image, category, score and box of a detection, and what each of them means.

Names are compared folded: ``imageId``, ``image_id`` and ``Image ID`` are one. A name that could mean two things is left
out, such as ``x, y, width, height`` beside a class: x and y are the centre for Roboflow and a corner for others.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard

from coordexp.detection.forms.frames import Frame

Key = int | str
Json = dict[str, object]
Fields = Mapping[str, object]
"""An entry's values by folded name."""

Image = tuple[Key | None, str]
"""What names an image: an id or None, and the name of a file or ""."""

NO_IMAGE: Image = (None, "")

# Names of an image's id and file, of a category's name, of its id or name, and of a score. The first one counts that
# has a value.
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
# Longer names of a score, such as pred_scores or box_confidence: only if none of the names above has a value.
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

# Columns that stand beside a column of boxes, one value for each box.
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
"""The frame in which tools write the box of one detection under a name."""

_COLUMN_FRAMES = {
    **_FRAMES,
    "boxes": _CORNERS,  # torchmetrics, torchvision, Hugging Face
    "predboxes": _CORNERS,  # detectron2
    "boundingboxes": _CORNERS,
    "bboxes": Frame("px", "xyxy", "index0"),  # mmdetection
}
"""The frame in which tools write the boxes of an image under a name, beside columns of labels and scores."""

EITHER_LAYOUT = frozenset({"boxes", "boundingboxes", "predboxes", "bboxes"})
"""Under these names some tools write corners and others sizes: the numbers decide."""

# Numbers of a box that have names of their own. x, y, width and height are clear within a box only: beside a class, x
# and y may be the centre.
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
    """A box as it stands: four numbers, the frame that their names imply, and the folded name of the box."""

    numbers: list[float]
    frame: Frame
    name: str


@dataclass(frozen=True)
class NotABox:
    """A value under the name of a box that is not a box."""

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
    """Return whether tools write a box, or a list of detections, under this name."""
    return folded(name) in _FRAMES or folded(name) in NESTED


def is_object(value: object) -> TypeGuard[Json]:
    return isinstance(value, dict)


def is_key(value: object) -> TypeGuard[Key]:
    return isinstance(value, int | str) and not isinstance(value, bool) and value != ""


def as_number(key: Key) -> Key:
    """Return the number that a text writes, such as an id; any other key as it is.

    Text with leading zeros stays text: it is the name of a file.
    """
    if isinstance(key, str) and re.fullmatch(r"-?(0|[1-9]\d{0,17})", key):
        return int(key)
    return key


def keys_under(fields: Fields, names: Sequence[str]) -> list[Key]:
    """Return the ids and names that stand under some names, in the order of these names."""
    values = [fields.get(name) for name in names]
    return [value for value in values if is_key(value)]


def image_of(fields: Fields) -> Image:
    """Return what names the image of an entry; :data:`NO_IMAGE` if nothing does."""
    ids = keys_under(fields, _IDS)
    names = [value for value in map(fields.get, _NAMES) if isinstance(value, str)]
    image_id = as_number(ids[0]) if ids else None
    return image_id, names[0] if names else ""


def category_of(fields: Fields) -> Key | None:
    """Return the category of an entry: COCO's id if there is one, otherwise a name, otherwise any other number."""
    coco_id = fields.get("categoryid")
    if is_key(coco_id):
        return as_number(coco_id)
    names = [str(key) for key in keys_under(fields, _CATEGORY_NAMES)]
    ids_or_names = [as_number(key) for key in keys_under(fields, _CATEGORIES)]
    names += [key for key in ids_or_names if isinstance(key, str)]
    candidates: list[Key] = [*names, *ids_or_names]
    return candidates[0] if candidates else None


def score_of(fields: Fields) -> object:
    """Return the score of an entry, which CVAT has among its attributes; None if there is none."""
    attributes = fields.get("attributes")
    holders = [fields]
    if is_object(attributes):
        holders.append(fields_of(attributes))
    for holder in holders:
        for name in _SCORES:
            if holder.get(name) is not None:
                return holder[name]
        for name, value in holder.items():
            if value is not None and not isinstance(value, list) and _OTHER_SCORE.fullmatch(name):
                return value
    return None


def box_of(fields: Fields) -> Box | NotABox | None:
    """Return the box of an entry; None if no name of a box is there."""
    for name, frame in _FRAMES.items():
        value = fields.get(name)
        holds_detections = name in NESTED and numbers_of(value) is None
        if value is None or holds_detections:
            continue
        if is_object(value):
            numbers = _of_named_corners(fields_of(value), sizes=_NAMED_SIZES_IN_A_BOX)
            return NotABox(name, value) if numbers is None else Box(numbers, Frame(), name)
        return box_from(value, name, frame) or NotABox(name, value)
    numbers = _of_named_corners(fields, sizes=_NAMED_SIZES)
    return None if numbers is None else Box(numbers, Frame(), "corners")


class BoxColumn(NamedTuple):
    """The boxes of an image as a column beside columns of labels and scores: its folded name, values and frame."""

    name: str
    values: list[object]
    frame: Frame


def column_boxes(fields: Fields) -> BoxColumn | None:
    """Return the column of boxes of an entry; None if it has none."""
    has_labels = column(fields, COLUMN_LABELS) is not None
    for name, frame in _COLUMN_FRAMES.items():
        values = fields.get(name)
        if not isinstance(values, list) or numbers_of(values) is not None:
            continue
        is_of_lists = bool(values) and all(isinstance(value, list) for value in values)
        if has_labels or is_of_lists:
            return BoxColumn(name, values, frame)
    return None


def column(fields: Fields, names: Sequence[str]) -> list[object] | None:
    """Return the first list that stands under one of some names; None if there is none."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, list):
            return value  # pyright: ignore[reportUnknownVariableType]
    return None


def box_from(value: object, name: str, frame: Frame) -> Box | None:
    """Return the box that a value is: four numbers, or an object with named corners or sizes; None for no box.

    Args:
        value: as it stands in the file.
        name: the folded name under which it stands.
        frame: the frame of boxes under this name.
    """
    if is_object(value):
        named_numbers = _of_named_corners(fields_of(value), sizes=_NAMED_SIZES_IN_A_BOX)
        return None if named_numbers is None else Box(named_numbers, Frame(categories=frame.categories), name)
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
    """Return whether an entry says that nothing was found in its image, by an empty list and nothing else.

    An entry with a category or a score is a detection whose box is missing, so it says no such thing.
    """
    box_values = [fields[name] for name in {*_FRAMES, *NESTED} if fields.get(name) is not None]
    if not box_values or any(value != [] for value in box_values):
        return False
    return category_of(fields) is None and score_of(fields) in (None, [])


def number_of(value: object) -> float | None:
    """Return a number, also one that is written as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def numbers_of(value: object) -> list[float] | None:
    """Return four numbers, also of a list that a table wrote as text; None for anything else."""
    if isinstance(value, str) and value.startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, list) or len(value) != 4:  # pyright: ignore[reportUnknownArgumentType]
        return None
    numbers = [number_of(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    four_numbers = [number for number in numbers if number is not None]
    return four_numbers if len(four_numbers) == 4 else None


def _of_named_corners(fields: Fields, *, sizes: Sequence[tuple[str, ...]]) -> list[float] | None:
    """Return left, top, width and height of a box whose numbers have names of their own; None for no such box.

    Args:
        fields: of the box, or of the entry around it.
        sizes: names of left, top, width and height that are clear here.
    """
    corners = _numbers_under(fields, _NAMED_CORNERS)
    if corners is not None:
        return _from_corners(corners)
    left_top_and_size = _numbers_under(fields, sizes)
    if left_top_and_size is not None:
        return left_top_and_size
    centre_and_size = _numbers_under(fields, _NAMED_CENTRES)
    return None if centre_and_size is None else _from_centre(centre_and_size)


def _numbers_under(fields: Fields, choices: Sequence[tuple[str, ...]]) -> list[float] | None:
    """Return the four numbers under the first choice of names that are all there."""
    for names in choices:
        numbers = numbers_of([fields.get(name) for name in names])
        if numbers is not None:
            return numbers
    return None


def _from_corners(numbers: list[float]) -> list[float]:
    x1, y1, x2, y2 = numbers
    return [x1, y1, x2 - x1, y2 - y1]


def _from_centre(numbers: list[float]) -> list[float]:
    x, y, width, height = numbers
    return [x - width / 2, y - height / 2, width, height]

"""A file of detections of any form as columns: images, categories, boxes, scores.

COCO's list of results is decoded at once. All else is walked, since the forms differ in where a box finds its image:

- a whole COCO file whose annotations have scores (FiftyOne, CVAT); its own ids of images and categories go by names;
- a list or map of images with their boxes (detectron2, MegaDetector), or with columns of boxes, scores and labels
  (torchmetrics, torchvision, Hugging Face); what our own ``predict`` writes;
- one JSON value a line; a zip of one file; a folder with a file an image or a category.

**What cannot be read is never counted as empty.** An image without detections is one whose entry says so by an empty
list. An entry in which no box is found under a known name is refused, together with the file.

Legend of shapes: ``D`` detections.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from coordexp.detection.boxes import Floats, Ints
from coordexp.detection.forms.answers import answer_of
from coordexp.detection.forms.frames import Frame
from coordexp.detection.forms.keys import (
    COLUMN_LABELS,
    COLUMN_SCORES,
    EITHER_LAYOUT,
    NESTED,
    NO_IMAGE,
    Box,
    Fields,
    Image,
    Json,
    Key,
    NotABox,
    as_number,
    box_from,
    box_of,
    category_of,
    column,
    column_boxes,
    fields_of,
    folded,
    image_of,
    is_box_name,
    is_key,
    is_object,
    number_of,
    says_nothing_found,
    score_of,
)
from coordexp.detection.forms.named import format_of_entry
from coordexp.detection.ground_truth import LARGEST_NUMBER
from coordexp.errors import DataError, kind_of, show

_Row = tuple[int, int, list[float], float | None]
_MEGADETECTOR = Frame("norm1", "xywh")
_MOST_LEVELS = 20
_MOST_INVERTED = 0.05
"""Share of boxes that may have swapped corners before a layout is taken for the wrong one."""

_REMARKS_OF_NAMES = {
    "bbox2d": (
        "bbox_2d is read as Qwen3-VL writes it, corners in thousandths of the sides (norm1000:xyxy); Qwen2.5-VL writes "
        "pixels of the resized picture: --frame smart28:xyxy"
    ),
    "box2d": "box_2d is read as Gemini writes it: y1, x1, y2, x2 in thousandths of the sides",
}
_SPELLED = {"bbox2d": "bbox_2d", "box2d": "box_2d"}


@dataclass(frozen=True, eq=False)
class ResultFile:
    """A file as it stands: distinct images and categories, and for each detection its place among them.

    ``remarks``: what was read otherwise than it stands, or by a rule that could be wrong.
    """

    images: list[Image]
    image: Ints
    categories: list[Key]
    category: Ints
    boxes: Floats
    scores: Floats | None
    frame: Frame = Frame()  # noqa: RUF009
    is_plain: bool = False
    remarks: tuple[str, ...] = ()


class HoldsAnswersError(DataError):
    """A file that should hold boxes holds the texts in which a model wrote some.

    ``text``: the first of them, which tells whose it is; None where it is token ids.
    """

    def __init__(self, message: str, text: object) -> None:
        super().__init__(message)
        self.text = text


@dataclass
class Walk:
    """Collects the boxes of a file of any form.

    Attributes:
        path: the file or folder, for messages.
        file: of a folder the file that is being walked.
        frame: that of the boxes; where it is not given at the start, the first box's name decides.
        is_frame_given: whether the form of the file decides the frame, whatever boxes are called in it.
    """

    path: Path
    frame: Frame | None = None
    file: Path | None = None
    own_images: Mapping[Key, str] = field(default_factory=dict[Key, str])
    own_categories: Mapping[Key, str] = field(default_factory=dict[Key, str])
    images: dict[Image, int] = field(default_factory=dict[Image, int])
    categories: dict[Key, int] = field(default_factory=dict[Key, int])
    rows: list[_Row] = field(default_factory=list[_Row])
    box_names: dict[str, None] = field(default_factory=dict[str, None])
    unread: list[str] = field(default_factory=list[str])
    num_failed: int = 0
    number_names: set[str] = field(default_factory=set[str])
    remarks: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        """Remember whether the frame was given."""
        self.is_frame_given = self.frame is not None

    def file_of(self, value: object) -> ResultFile:
        """Return what a parsed file holds; its own images and categories have the truth's names, not always its ids."""
        if is_object(value):
            kinds = value.get("detection_categories")
            if is_object(kinds):
                self.own_categories = {as_number(key): str(name) for key, name in kinds.items()}
                self.frame, self.is_frame_given = _MEGADETECTOR, True
            if "annotations" in value:
                self.own_images = _names_by_id(value.get("images"), "file_name")
                self.own_categories = _names_by_id(value.get("categories"), "name")
        self.visit(value, NO_IMAGE, ())
        return self.finish()

    def finish(self) -> ResultFile:
        """Return what was collected.

        Raises:
            DataError: with the number of entries that could not be read and the first of them.
        """
        if self.unread:
            total = len(self.unread) + len(self.rows)
            how_many = f"{len(self.unread)} of {total} entries hold no box that can be read; " if total > 1 else ""
            raise DataError(f"{self.path}: {how_many}{self.unread[0]}")
        if self.own_images and self.rows and self.rows[0][3] is None:
            raise DataError(f"{self.path}: its annotations have no score, as those of a ground truth have none")
        if len({type(key) for key in self.categories}) > 1:
            some = next(key for key in self.categories if isinstance(key, str))
            raise DataError(f"{self.path}: some categories are ids and others names, such as {show(some)}")

        image, category, boxes, scores = zip(*self.rows, strict=True) if self.rows else ((), (), (), ())
        boxes_array = np.array(boxes, np.float64).reshape(-1, 4)
        result = ResultFile(
            images=list(self.images),
            image=np.array(image, np.int64),
            categories=list(self.categories),
            category=np.array(category, np.int64),
            boxes=boxes_array,
            scores=None if scores and scores[0] is None else np.array(scores, np.float64),
            frame=self._layout_that_fits(boxes_array),
            remarks=tuple(self._remarks(has_scores=bool(scores) and scores[0] is not None)),
        )
        check_finite(self.path, result.boxes, result.scores)
        return result

    def visit(self, value: object, image: Image, where: tuple[Key, ...]) -> None:
        """Collect the boxes below a value; ``image``: the one that what is around it names."""
        if len(where) > _MOST_LEVELS:
            self._fail(where[:3], f"the file is nested more than {_MOST_LEVELS} levels deep; no detections are")
        if isinstance(value, list):
            for place, item in enumerate(value):
                # What an outer list has, columns or lists, without naming images, is that of the image at its place.
                is_unnamed = image == NO_IMAGE and len(where) < 2
                is_columns = is_object(item) and column_boxes(fields_of(item)) is not None
                is_image = is_unnamed and (is_columns or isinstance(item, list))
                self.visit(item, (place, "") if is_image else image, (*where, place))
        elif is_object(value):
            self._visit_object(value, image, where)
        else:
            self._not_read(where, f"the entry is {kind_of(value)}, expected an object with a box")

    def _visit_object(self, value: Json, image: Image, where: tuple[Key, ...]) -> None:
        fields = fields_of(value)
        named = image_of(fields)
        image = image if named == NO_IMAGE else named
        columns = column_boxes(fields)
        if columns is not None:
            self._add_columns(fields, columns, image, where)
            return
        if says_nothing_found(fields) and (image != NO_IMAGE or not where):
            return
        match box_of(fields):
            case Box() as box:
                self._add(image, category_of(fields), box, score_of(fields), where)
                self._note_numbers(fields)
            case NotABox(name, given):
                self._not_read(where, f"{name} is {show(given)}, expected four numbers")
            case None:
                self._visit_below(value, fields, image, where)

    def _visit_below(self, value: Json, fields: Fields, image: Image, where: tuple[Key, ...]) -> None:
        """Visit what an object that is no detection holds; refuse it where that is nothing that is known."""
        holders = [name for name in NESTED if isinstance(fields.get(name), list | dict)]
        full = [name for name in holders if fields[name]]
        if len(full) > 1:
            self._not_read(where, f"there is {' and '.join(sorted(full))}: which of them are the detections?")
            return
        if holders:
            name = (full or holders)[0]
            self.visit(fields[name], image, (*where, _spelled(name, value)))
            return
        if isinstance(fields.get("failure"), str) and image != NO_IMAGE:  # MegaDetector's
            self.num_failed += 1
            return
        if not where and isinstance(value.get("images"), list):
            self.visit(value["images"], image, ("images",))
            return
        answer = answer_of(value, self._place(where))
        is_map_of_texts = not where and bool(value) and all(isinstance(item, str) for item in value.values())
        if answer is not None or is_map_of_texts:
            text = next(iter(value.values())) if answer is None else answer.text
            raise HoldsAnswersError(f"{self._place(where)} holds the text of a model's answer, not a box", text)
        if not where and value and all(isinstance(item, list | dict) for item in value.values()):
            for key, item in value.items():  # a map of images
                self.visit(item, (as_number(key), key), (key,))
            return
        expected = "expected [x, y, width, height], or [] where nothing was found"
        null = [name for name in value if value[name] is None and is_box_name(name)]
        if null:
            self._not_read(where, f"{null[0]} is null; {expected}")
            return
        names = ", ".join(list(value)[:8]) or "no keys at all"
        self._not_read(where, f"bbox is missing among {names}; {format_of_entry(value) or expected}")

    def _add_columns(
        self, fields: Fields, columns: tuple[str, list[object], Frame], image: Image, where: tuple[Key, ...]
    ) -> None:
        name, boxes, frame = columns
        labels, scores = column(fields, COLUMN_LABELS), column(fields, COLUMN_SCORES)
        if boxes and labels is None:
            only = category_of(fields)  # one category for all of them
            labels = None if only is None else [only] * len(boxes)
        lengths = {len(boxes), *(len(values) for values in (labels, scores) if values is not None)}
        if (boxes and labels is None) or len(lengths) > 1:
            self._not_read(where, f"{name}, labels and scores are no lists of one length")
            return
        for place, value in enumerate(boxes):
            label = None if labels is None else labels[place]
            box = box_from(value, name, frame)
            if box is None:
                self._not_read((*where, name, place), f"{show(value)} is no box, expected four numbers")
                continue
            score = scores[place] if scores else None
            self._add(image, label if is_key(label) else None, box, score, (*where, name, place))

    def _add(self, image: Image, label: Key | None, box: Box, score: object, where: tuple[Key, ...]) -> None:
        if label is None:
            self._fail(where, "category_id is missing, expected a whole number, or a name in category_name")
        if image == NO_IMAGE:
            self._fail(where, "image_id is missing, expected the id of an image, or its name in file_name")
        if image[0] is not None and image[0] in self.own_images:
            image = (image[0], self.own_images[image[0]])
        number = number_of(score)
        if score is not None and number is None:
            self._fail(where, f"score is {show(score)}, expected a number")
        if self.rows and (number is None) != (self.rows[0][3] is None):
            self._fail(where, "score is missing, which others have" if number is None else "score: others have none")
        if self.frame is None:
            self.frame = box.frame
        elif not self.is_frame_given and box.frame != self.frame:
            first, name = (_SPELLED.get(name, name) for name in (next(iter(self.box_names)), box.name))
            self._fail(
                where, f"{name} is read as {box.frame}, but {first} before it as {self.frame}; expected one kind of box"
            )
        self.box_names.setdefault(box.name)
        at = self.images.setdefault(image, len(self.images))
        kind = self.categories.setdefault(self.own_categories.get(label, label), len(self.categories))
        self.rows.append((at, kind, box.numbers, number))

    def _note_numbers(self, fields: Fields) -> None:
        """Remember names of fractions, one of which may be a score under a name that is not known."""
        if len(self.rows) == 1:
            self.number_names = {name for name, value in fields.items() if isinstance(value, float)}

    def _layout_that_fits(self, boxes: Floats) -> Frame:
        """Return the frame; where a name is used for corners and for sizes, that which the numbers allow."""
        frame = self.frame or Frame()
        is_either = bool(self.box_names) and all(name in EITHER_LAYOUT for name in self.box_names)
        if self.is_frame_given or not is_either or frame.layout != "xyxy":
            return frame
        num_inverted = int(np.count_nonzero((boxes[:, 2:] < boxes[:, :2]).any(axis=1)))
        if num_inverted <= _MOST_INVERTED * len(boxes):
            return frame
        sizes = replace(frame, layout="xywh")
        self.remarks.append(
            f"as corners, {num_inverted} of {len(boxes)} boxes under {next(iter(self.box_names))} would end before "
            f"they begin: read as {sizes}"
        )
        return sizes

    def _remarks(self, *, has_scores: bool) -> list[str]:
        remarks = [*self.remarks, *(_REMARKS_OF_NAMES[name] for name in self.box_names if name in _REMARKS_OF_NAMES)]
        if self.num_failed:
            remarks.append(
                f"{self.num_failed} of its images could not be opened by the detector (failure) and count as images "
                "without boxes"
            )
        unknown = sorted(self.number_names - {"area", "iou", "width", "height", "x", "y"} - self.box_names.keys())
        if self.rows and not has_scores and unknown:
            remarks.append(f"no entry has a score under a known name; if {unknown[0]} is one, call it score")
        return remarks

    def _not_read(self, where: tuple[Key, ...], problem: str) -> None:
        self.unread.append(f"{self._place(where)}: {problem}")

    def _fail(self, where: tuple[Key, ...], problem: str) -> NoReturn:
        raise DataError(f"{self.path}: {self._place(where)}: {problem}")

    def _place(self, where: tuple[Key, ...]) -> str:
        place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in where)
        start = "detection" if where and isinstance(where[0], int) else ""
        named = (start + place).lstrip(".") or "the top level"
        return named if self.file is None else f"{self.file.name}: {named}"


def _spelled(name: str, value: Json) -> str:
    """Return a folded name as an object spells it."""
    return next(key for key in value if folded(key) == name)


def _names_by_id(entries: object, name: str) -> dict[Key, str]:
    rows = entries if isinstance(entries, list) else []
    return {
        as_number(key): own
        for row in rows
        if is_object(row) and isinstance(own := row.get(name), str) and is_key(key := row.get("id"))
    }


def check_finite(path: Path, boxes: Floats, scores: Floats | None) -> None:
    """Raise a DataError that names the first box or score that is not finite."""
    columns = {"bbox": boxes} if scores is None else {"bbox": boxes, "score": scores[:, None]}
    for name, values in columns.items():
        for place in np.flatnonzero(~(np.abs(values) < LARGEST_NUMBER).all(axis=1))[:1].tolist():
            shown = show(values[place].tolist() if name == "bbox" else float(values[place, 0]))
            raise DataError(f"{path}: detection[{place}]: {name} is {shown}, expected finite numbers")

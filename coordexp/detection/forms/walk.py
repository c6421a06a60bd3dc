"""A file of detections of any form as columns: images, categories, boxes, scores.

COCO's list of results is decoded at once (:mod:`coordexp.detection.forms.read`). All other forms are walked, since they
differ in where a box finds its image:

- a whole COCO file whose annotations have scores (FiftyOne, CVAT); its own ids of images and categories go by names;
- a list or map of images with their boxes (detectron2, MegaDetector), or with columns of boxes, scores and labels
  (torchmetrics, torchvision, Hugging Face); what our own ``predict`` writes;
- one JSON value a line; a zip of one file; a folder with a file for each image or each category.

The walk goes down and carries the image that the values around name; each object is one of these:

    visit -+- list -----> visit each item
           +- object -+-> columns of boxes, scores and labels of one image      _add_columns
                      +-> a box under a known name: one detection               _add
                      +-> an empty list: an image in which nothing was found    (nothing to add)
                      +-> a holder of detections, or of images                  _visit_below, and down again
                      +-> anything else: refused                                _not_read

**What cannot be read is never counted as empty.** An image has no detections only if its entry says so by an empty
list. If no box is found in an entry under a known name, the entry is refused, together with the file.

Legend of shapes: ``D`` detections.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from coordexp.detection.boxes import Floats
from coordexp.detection.forms.answers import answer_of
from coordexp.detection.forms.frames import Frame
from coordexp.detection.forms.keys import (
    COLUMN_LABELS,
    COLUMN_SCORES,
    EITHER_LAYOUT,
    NESTED,
    NO_IMAGE,
    Box,
    BoxColumn,
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
from coordexp.detection.forms.result_file import HoldsAnswersError, ResultFile, check_finite
from coordexp.errors import DataError, kind_of, show

_MEGADETECTOR = Frame("norm1", "xywh")
_MOST_LEVELS = 20
_NOT_SCORES = frozenset({"area", "iou", "width", "height", "x", "y"})
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
"""Folded name -> as people know it."""


class _Row(NamedTuple):
    """A detection: places of its image and category among the distinct ones, the numbers of its box, its score."""

    image: int
    category: int
    numbers: list[float]
    score: float | None


@dataclass
class Walk:
    """Collects the boxes of a file of any form.

    Attributes:
        path: the file or folder, for messages.
        frame: of the boxes; if it is not given at the start, the name of the first box decides.
        file: of a folder, the file that is being walked.
        own_images: id in the file -> name of the image, if the file has a list of its images.
        own_categories: id in the file -> name of the category, likewise.
        images: distinct images -> their places, in the order in which they were met.
        categories: distinct categories -> their places, likewise.
        rows: the detections.
        box_names: folded names under which boxes were found, in order; the values are not used.
        unread: a sentence for each entry in which no box could be read.
        num_failed: images that the detector could not open.
        number_names: names of the fractions in the first detection; one may be a score under an unknown name.
        remarks: what was read by a rule that could be wrong.
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

    def result_of(self, value: object) -> ResultFile:
        """Return what a parsed file holds.

        If the file lists its own images and categories, they are known by their names: its ids need not be those of
        the ground truth.
        """
        if is_object(value):
            megadetector_categories = value.get("detection_categories")
            if is_object(megadetector_categories):
                self.own_categories = {as_number(key): str(name) for key, name in megadetector_categories.items()}
                self.frame = _MEGADETECTOR
                self.is_frame_given = True
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
        lacks_scores = bool(self.rows) and self.rows[0].score is None  # :meth:`_add` refuses a mixture.
        if self.unread:
            total = len(self.unread) + len(self.rows)
            how_many = f"{len(self.unread)} of {total} entries hold no box that can be read; " if total > 1 else ""
            raise DataError(f"{self.path}: {how_many}{self.unread[0]}")
        if self.own_images and lacks_scores:
            raise DataError(
                f"{self.path}: its annotations have no score, as those of a ground truth; expected detections"
            )
        category_names = [key for key in self.categories if isinstance(key, str)]
        if 0 < len(category_names) < len(self.categories):
            raise DataError(f"{self.path}: some categories are ids and others names, such as {show(category_names[0])}")

        boxes = np.array([row.numbers for row in self.rows], np.float64).reshape(-1, 4)
        scores = None if lacks_scores else np.array([row.score for row in self.rows], np.float64)
        frame = self._frame_that_fits(boxes)
        check_finite(self.path, boxes, scores)
        return ResultFile(
            images=list(self.images),
            image=np.array([row.image for row in self.rows], np.int64),
            categories=list(self.categories),
            category=np.array([row.category for row in self.rows], np.int64),
            boxes=boxes,
            scores=scores,
            frame=frame,
            remarks=tuple(self._all_remarks(lacks_scores=lacks_scores)),
        )

    def visit(self, value: object, image: Image, where: tuple[Key, ...]) -> None:
        """Collect the boxes below a value.

        Args:
            value: a parsed value of JSON.
            image: the image that the values around it name.
            where: keys and places that lead to it from the top.
        """
        if len(where) > _MOST_LEVELS:
            self._fail(where[:3], f"the file is nested more than {_MOST_LEVELS} levels deep; no detections are")
        if isinstance(value, list):
            # In an outer list of columns or of lists that names no images, each item belongs to the image at its place.
            is_unnamed = image == NO_IMAGE and len(where) < 2
            for place, item in enumerate(value):
                is_columns = is_object(item) and column_boxes(fields_of(item)) is not None
                is_image = is_unnamed and (is_columns or isinstance(item, list))
                self.visit(item, (place, "") if is_image else image, (*where, place))
        elif is_object(value):
            self._visit_object(value, image, where)
        else:
            self._not_read(where, f"the entry is {kind_of(value)}, expected an object with a box")

    def _visit_object(self, value: Json, image: Image, where: tuple[Key, ...]) -> None:
        fields = fields_of(value)
        own_image = image_of(fields)
        if own_image != NO_IMAGE:
            image = own_image
        columns = column_boxes(fields)
        if columns is not None:
            self._add_columns(fields, columns, image, where)
            return
        if says_nothing_found(fields) and (image != NO_IMAGE or not where):
            return
        match box_of(fields):
            case Box() as box:
                self._add(image, category_of(fields), box, score_of(fields), where)
                self._note_fractions(fields)
            case NotABox(name, wrong_value):
                self._not_read(where, f"{name} is {show(wrong_value)}, expected four numbers")
            case None:
                self._visit_below(value, fields, image, where)

    def _visit_below(self, value: Json, fields: Fields, image: Image, where: tuple[Key, ...]) -> None:
        """Visit what an object that is no detection holds; refuse the object if it holds nothing of a known name.

        Args:
            value: the object.
            fields: its values by folded name.
            image: the image that it or the values around it name.
            where: keys and places that lead to it from the top.
        """
        reply = fields.get("result")
        if isinstance(reply, dict) and "message" in reply:  # Anthropic's batch; elsewhere "result" holds boxes
            self._refuse_answers(value, where)
        holders = [name for name in NESTED if isinstance(fields.get(name), list | dict)]
        full_holders = [name for name in holders if fields[name]]
        if len(full_holders) > 1:
            self._not_read(where, f"there is {' and '.join(sorted(full_holders))}: which of them are the detections?")
            return
        if holders:
            name = (full_holders or holders)[0]  # Of several empty holders any will do.
            self.visit(fields[name], image, (*where, _spelled(name, value)))
            return
        if isinstance(fields.get("failure"), str) and image != NO_IMAGE:  # MegaDetector's
            self.num_failed += 1
            return

        is_top = not where
        if is_top and isinstance(value.get("images"), list):
            self.visit(value["images"], image, ("images",))
            return
        self._refuse_answers(value, where)
        is_map_of_images = is_top and bool(value) and all(isinstance(item, list | dict) for item in value.values())
        if is_map_of_images:
            for key, item in value.items():
                self.visit(item, (as_number(key), key), (key,))
            return

        expected = "expected [x, y, width, height], or [] if nothing was found"
        null_names = [name for name in value if value[name] is None and is_box_name(name)]
        if null_names:
            self._not_read(where, f"{null_names[0]} is null; {expected}")
            return
        names = ", ".join(list(value)[:8]) or "no keys at all"
        self._not_read(where, f"bbox is missing among {names}; {format_of_entry(value) or expected}")

    def _refuse_answers(self, value: Json, where: tuple[Key, ...]) -> None:
        """Raise a HoldsAnswersError if an object is an answer, or at the top a map of image to answer."""
        answer = answer_of(value)
        is_map_of_texts = not where and bool(value) and all(isinstance(item, str) for item in value.values())
        if answer is None and not is_map_of_texts:
            return
        text = next(iter(value.values())) if answer is None else answer.text
        raise HoldsAnswersError(f"{self._place(where)} holds the text of a model's answer, not a box", text)

    def _add_columns(self, fields: Fields, columns: BoxColumn, image: Image, where: tuple[Key, ...]) -> None:
        labels = column(fields, COLUMN_LABELS)
        scores = column(fields, COLUMN_SCORES)
        num_boxes = len(columns.values)
        if labels is None:
            category_of_all = category_of(fields)
            labels = [category_of_all] * num_boxes if category_of_all is not None else None
        lacks_labels = labels is None and num_boxes > 0
        differ_in_length = any(values is not None and len(values) != num_boxes for values in (labels, scores))
        if lacks_labels or differ_in_length:
            self._not_read(where, f"{columns.name}, labels and scores are no lists of one length")
            return

        for place, value in enumerate(columns.values):
            box = box_from(value, columns.name, columns.frame)
            where_box = (*where, columns.name, place)
            if box is None:
                self._not_read(where_box, f"{show(value)} is no box, expected four numbers")
                continue
            label = None if labels is None else labels[place]
            score = scores[place] if scores else None
            self._add(image, label if is_key(label) else None, box, score, where_box)

    def _add(self, image: Image, label: Key | None, box: Box, score: object, where: tuple[Key, ...]) -> None:
        """Add a detection.

        Args:
            image: that it is in.
            label: its category as it stands.
            box: as it stands.
            score: as it stands; None if it has none.
            where: keys and places that lead to it from the top.

        Raises:
            DataError: if something of it is missing, or is of another kind than in the detections before.
        """
        if label is None:
            self._fail(where, "category_id is missing, expected a whole number, or a name in category_name")
        if image == NO_IMAGE:
            self._fail(where, "image_id is missing, expected the id of an image, or its name in file_name")
        image_id, _ = image
        if image_id is not None and image_id in self.own_images:
            image = (image_id, self.own_images[image_id])

        score_number = number_of(score)
        if score is not None and score_number is None:
            self._fail(where, f"score is {show(score)}, expected a number")
        if self.rows and score_number is None and self.rows[0].score is not None:
            self._fail(where, "score is missing, but entries before it have one")
        if self.rows and score_number is not None and self.rows[0].score is None:
            self._fail(where, "score is there, but entries before it have none")

        if self.frame is None:
            self.frame = box.frame
        elif not self.is_frame_given and box.frame != self.frame:
            first_name = next(iter(self.box_names))
            self._fail(
                where,
                f"{_SPELLED.get(box.name, box.name)} is read as {box.frame}, but "
                f"{_SPELLED.get(first_name, first_name)} before it as {self.frame}; expected one kind of box",
            )
        self.box_names.setdefault(box.name)
        category = self.own_categories.get(label, label)
        image_place = self.images.setdefault(image, len(self.images))
        category_place = self.categories.setdefault(category, len(self.categories))
        self.rows.append(_Row(image_place, category_place, box.numbers, score_number))

    def _note_fractions(self, fields: Fields) -> None:
        """Remember which names of the first detection hold fractions: one may be a score under an unknown name."""
        if len(self.rows) == 1:
            self.number_names = {name for name, value in fields.items() if isinstance(value, float)}

    def _frame_that_fits(self, boxes: Floats) -> Frame:
        """Return the frame of the boxes; if their name is used for corners and for sizes, the numbers decide."""
        frame = self.frame or Frame()
        may_be_sizes = bool(self.box_names) and all(name in EITHER_LAYOUT for name in self.box_names)
        if self.is_frame_given or not may_be_sizes or frame.layout != "xyxy":
            return frame
        num_inverted = int(np.count_nonzero((boxes[:, 2:] < boxes[:, :2]).any(axis=1)))
        if num_inverted <= _MOST_INVERTED * len(boxes):
            return frame
        frame_of_sizes = replace(frame, layout="xywh")
        self.remarks.append(
            f"as corners, {num_inverted} of {len(boxes)} boxes under {next(iter(self.box_names))} would end before "
            f"they begin: read as {frame_of_sizes}"
        )
        return frame_of_sizes

    def _all_remarks(self, *, lacks_scores: bool) -> list[str]:
        remarks = list(self.remarks)
        remarks += [_REMARKS_OF_NAMES[name] for name in self.box_names if name in _REMARKS_OF_NAMES]
        if self.num_failed:
            remarks.append(
                f"{self.num_failed} of its images could not be opened by the detector (failure) and count as images "
                "without boxes"
            )
        may_be_scores = sorted(self.number_names - _NOT_SCORES - self.box_names.keys())
        if lacks_scores and may_be_scores:
            remarks.append(f"no entry has a score under a known name; if {may_be_scores[0]} is one, call it score")
        return remarks

    def _not_read(self, where: tuple[Key, ...], problem: str) -> None:
        """Note an entry in which no box could be read; :meth:`finish` counts them and raises."""
        self.unread.append(f"{self._place(where)}: {problem}")

    def _fail(self, where: tuple[Key, ...], problem: str) -> NoReturn:
        raise DataError(f"{self.path}: {self._place(where)}: {problem}")

    def _place(self, where: tuple[Key, ...]) -> str:
        """Return how a message names a place: ``detection[3]`` in the top list, else ``images[2].detections[0]``."""
        path_in_file = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in where)
        is_in_top_list = bool(where) and isinstance(where[0], int)
        place = f"detection{path_in_file}" if is_in_top_list else path_in_file.lstrip(".")
        place = place or "the top level"
        return place if self.file is None else f"{self.file.name}: {place}"


def _spelled(name: str, value: Json) -> str:
    """Return a folded name as an object spells it."""
    return next(key for key in value if folded(key) == name)


def _names_by_id(entries: object, name: str) -> dict[Key, str]:
    """Return id -> name of the entries that have both; ``name``: the key of the name."""
    names: dict[Key, str] = {}
    for entry in entries if isinstance(entries, list) else []:  # pyright: ignore[reportUnknownVariableType]
        if not is_object(entry):
            continue
        entry_id = entry.get("id")
        entry_name = entry.get(name)
        if is_key(entry_id) and isinstance(entry_name, str):
            names[as_number(entry_id)] = entry_name
    return names

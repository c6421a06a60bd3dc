"""The formats in which other tools write detections, each as columns: images, categories, boxes, scores.

COCO's list of results is decoded at once. All else is walked, since the forms differ in where a box finds its image:

- a whole COCO file whose annotations have scores (FiftyOne, CVAT); its own ids of images and categories go by names;
- a list or map of images with their boxes (detectron2, MegaDetector), or with columns of boxes, scores and labels
  (torchmetrics, torchvision, Hugging Face); what our own ``predict`` writes;
- one JSON value a line; a zip of one file; a folder with a file an image (mmdetection's JSON, YOLO's lines of text).

Legend of shapes: ``D`` detections.
"""

import io
import json
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeGuard

import msgspec
import numpy as np
from msgspec import Struct

from coordexp.detection.boxes import Floats, Ints
from coordexp.detection.frames import Frame
from coordexp.detection.ground_truth import LARGEST_NUMBER
from coordexp.errors import DataError, kind_of, show
from coordexp.files import read_content, read_once

Key = int | str
_Json = dict[str, object]
_Row = tuple[int, int, list[float], float | None]
Image = tuple[Key | None, str]
"""An id, a name, or both."""

_IDS = ("image_id", "img_id")
_NAMES = (
    "file_name", "filename", "image_name", "file", "img_path", "image_path", "img_name", "image", "img", "picture",
    "path",
)  # fmt: skip
_CATEGORY_IDS = ("category_id", "category", "class_id", "class", "cls", "label")
_CATEGORY_NAMES = ("category_name", "class_name", "label_name", "name", "desc")
_SCORES = ("score", "confidence", "conf", "probability")
_BOXES = ("bbox", "box", "xywh", "xyxy", "expected_px")
_CORNERS = (
    ("x1", "y1", "x2", "y2"), ("xmin", "ymin", "xmax", "ymax"), ("x_min", "y_min", "x_max", "y_max"),
    ("left", "top", "right", "bottom"),
)  # fmt: skip
_COLUMNS = {"boxes": Frame("px", "xyxy"), "pred_boxes": Frame("px", "xyxy"), "bboxes": Frame("px", "xyxy", "index0")}
"""Columns of an image, in the frame of the tools that call them so: torchmetrics, detectron2, mmdetection."""
_LABELS, _COLUMN_SCORES = ("labels", "pred_classes", "classes", "category_ids"), ("scores", "pred_scores")
_NESTED = ("detections", "predictions", "instances", "pred_instances", "annotations", "objects", "results", "data")
_YOLO, _MEGADETECTOR = Frame("norm1", "cxcywh", "index0"), Frame("norm1", "xywh")


@dataclass(frozen=True, eq=False)
class ResultFile:
    """A file as it stands: distinct images and categories, and for each detection its place among them."""

    images: list[Image]
    image: Ints
    categories: list[Key]
    category: Ints
    boxes: Floats
    scores: Floats | None
    frame: Frame = Frame()  # noqa: RUF009
    is_plain: bool = False


class _Entry(Struct, gc=False):
    """A detection as pycocotools reads it; it may lack a score."""

    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    score: float | None = None
    file_name: str = ""


@read_once
def read_file(path: Path) -> ResultFile:
    """Read a file or folder of detections; as often as asked, once."""
    if path.is_dir():
        return _folder(path)
    content, is_packed = _content(path)
    try:
        rows = msgspec.json.decode(content, type=list[_Entry])
        image_ids = np.array([row.image_id for row in rows], np.int64)
        category_ids = np.array([row.category_id for row in rows], np.int64)
    except (ValueError, RecursionError, OverflowError):  # the first are msgspec's, and of the encoding
        return _Walk(path).file(_parse(content, path))
    if any(row.file_name for row in rows) or len({row.score is None for row in rows}) > 1:
        return _Walk(path).file(_parse(content, path))
    boxes = np.array([row.bbox for row in rows], np.float64).reshape(-1, 4)
    scores = None if rows and rows[0].score is None else np.array([row.score for row in rows], np.float64)
    _check_finite(path, boxes, scores)
    images, image = np.unique(image_ids, return_inverse=True)
    categories, category = np.unique(category_ids, return_inverse=True)
    keys = [(key, "") for key in images.tolist()]
    is_plain = scores is not None and not is_packed
    return ResultFile(keys, image, categories.tolist(), category, boxes, scores, is_plain=is_plain)


@dataclass
class _Walk:
    """Collects the boxes of a file of any form."""

    path: Path
    frame: Frame | None = None
    own_images: Mapping[Key, str] = field(default_factory=dict[Key, str])
    own_categories: Mapping[Key, str] = field(default_factory=dict[Key, str])
    images: dict[Image, int] = field(default_factory=dict[Image, int])
    categories: dict[Key, int] = field(default_factory=dict[Key, int])
    rows: list[_Row] = field(default_factory=list[_Row])

    def file(self, value: object) -> ResultFile:
        """Return what a parsed file holds; its own images and categories have the truth's names, not always its ids."""
        if _is_object(value):
            kinds = value.get("detection_categories")
            if _is_object(kinds):
                self.own_categories = {_number(key): str(name) for key, name in kinds.items()}
                self.frame = _MEGADETECTOR
            if "annotations" in value:
                self.own_images = _names_by_id(value.get("images"), "file_name")
                self.own_categories = _names_by_id(value.get("categories"), "name")
        self._visit(value, (None, ""), ())
        if self.own_images and self.rows and self.rows[0][3] is None:
            raise DataError(f"{self.path}: its annotations have no score, as those of a ground truth have none")
        if len({type(key) for key in self.categories}) > 1:
            some = next(key for key in self.categories if isinstance(key, str))
            raise DataError(f"{self.path}: some categories are ids and others names, such as {show(some)}")
        image, category, boxes, scores = zip(*self.rows, strict=True) if self.rows else ((), (), (), ())
        found = ResultFile(
            images=list(self.images),
            image=np.array(image, np.int64),
            categories=list(self.categories),
            category=np.array(category, np.int64),
            boxes=np.array(boxes, np.float64).reshape(-1, 4),
            scores=None if scores and scores[0] is None else np.array(scores, np.float64),
            frame=self.frame or Frame(),
        )
        _check_finite(self.path, found.boxes, found.scores)
        return found

    def _visit(self, value: object, image: Image, where: tuple[Key, ...]) -> None:
        if isinstance(value, list):
            for place, item in enumerate(value):
                # What an outer list has, columns or lists, without naming images, is that of the image at its place.
                is_image = image == (None, "") and len(where) < 2 and (_is_columns(item) or isinstance(item, list))
                self._visit(item, (place, "") if is_image else image, (*where, place))
        elif not _is_object(value):
            self._fail(where, f"the entry is {kind_of(value)}, expected an object with a box")
        else:
            image = image if (own := _image_of(value)) == (None, "") else own
            if _is_columns(value):
                self._add_columns(value, image, where)
            elif (box := self._box_of(value, where)) is not None:
                self._add(image, _category_of(value), box, _score_of(value), where)
            else:
                for item, of_item, place in self._below(value, image, where):
                    self._visit(item, of_item, place)

    def _below(self, value: _Json, image: Image, where: tuple[Key, ...]) -> list[tuple[object, Image, tuple[Key, ...]]]:
        """Return where an object that is no detection has some, each with its image and place."""
        nested = [key for key in _NESTED if isinstance(value.get(key), list | dict)]
        if nested:
            return [(value[key], image, (*where, key)) for key in nested]
        if not where and isinstance(value.get("images"), list):
            return [(value["images"], image, ("images",))]
        if not where and value and all(isinstance(item, list | dict) for item in value.values()):
            return [(item, (_number(key), key), (key,)) for key, item in value.items()]  # a map of images
        if image != (None, "") and where and _score_of(value) is None:
            return []  # an image without boxes
        return self._fail(where, f"bbox is missing among {', '.join(list(value)[:6])}; expected [x, y, width, height]")

    def _add_columns(self, value: _Json, image: Image, where: tuple[Key, ...]) -> None:
        name = next(key for key in _COLUMNS if key in value)
        boxes, labels, scores = (
            next((found for key in keys if isinstance(found := value.get(key), list)), None)
            for keys in ((name,), _LABELS, _COLUMN_SCORES)
        )
        if boxes is None or labels is None or len({len(boxes), len(labels), len(scores or boxes)}) > 1:
            self._fail(where, f"{name}, labels and scores are no lists of one length")
        self.frame = self.frame or _COLUMNS[name]
        for place, (box, label, score) in enumerate(zip(boxes, labels, scores or [None] * len(boxes), strict=True)):
            at, numbers = (*where, name, place), _numbers(box)
            if numbers is None:
                self._fail(at, f"{show(box)} is no box, expected four numbers")
            self._add(image, label if _is_key(label) else None, numbers, score, at)

    def _box_of(self, value: _Json, where: tuple[Key, ...]) -> list[float] | None:
        """Return the box of an entry as xywh where its corners are named, else as it stands; None where it has none."""
        key = next((key for key in _BOXES if key in value), None)
        box = value if key is None else value[key]
        names = next((names for names in _CORNERS if _is_object(box) and box.keys() >= set(names)), None)
        found = _numbers([box[name] for name in names] if names is not None and _is_object(box) else box)
        if found is None:
            return None if key is None else self._fail(where, f"{key} is {show(box)}, expected four numbers")
        is_corners = names is not None or key in ("xyxy", "expected_px")
        return [*found[:2], found[2] - found[0], found[3] - found[1]] if is_corners else found

    def _add(self, image: Image, label: Key | None, box: list[float], score: object, where: tuple[Key, ...]) -> None:
        if label is None:
            self._fail(where, "category_id is missing, expected a whole number, or a name in category_name")
        if image == (None, ""):
            self._fail(where, "image_id is missing, expected the id of an image, or its name in file_name")
        if image[0] is not None and image[0] in self.own_images:
            image = (image[0], self.own_images[image[0]])
        number = _float(score)
        if score is not None and number is None:
            self._fail(where, f"score is {show(score)}, expected a number")
        if self.rows and (number is None) != (self.rows[0][3] is None):
            self._fail(where, "score is missing, which others have" if number is None else "score: others have none")
        at = self.images.setdefault(image, len(self.images))
        kind = self.categories.setdefault(self.own_categories.get(label, label), len(self.categories))
        self.rows.append((at, kind, box, number))

    def _fail(self, where: tuple[Key, ...], problem: str) -> NoReturn:
        place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in where)
        start = "detection" if where and isinstance(where[0], int) else ""
        raise DataError(f"{self.path}: {(start + place).lstrip('.') or 'the top level'}: {problem}")


def _is_object(value: object) -> TypeGuard[_Json]:
    return isinstance(value, dict)


def _is_key(value: object) -> TypeGuard[Key]:
    return isinstance(value, int | str) and not isinstance(value, bool) and value != ""


def _is_columns(value: object) -> bool:
    return _is_object(value) and any(
        isinstance(value.get(name), list) and any(key in value for key in _LABELS) for name in _COLUMNS
    )


def _names_by_id(entries: object, name: str) -> dict[Key, str]:
    rows = entries if isinstance(entries, list) else []
    return {
        _number(key): own
        for row in rows
        if _is_object(row) and isinstance(own := row.get(name), str) and _is_key(key := row.get("id"))
    }


def _image_of(value: _Json) -> Image:
    key = next((_number(found) for name in _IDS if _is_key(found := value.get(name))), None)
    names = [found for name in _NAMES if isinstance(found := value.get(name), str)]
    return key, names[0] if names else ""


def _category_of(value: _Json) -> Key | None:
    keys = [_number(found) for name in _CATEGORY_IDS[:1] if _is_key(found := value.get(name))]
    keys += [str(found) for name in _CATEGORY_NAMES if _is_key(found := value.get(name))]
    keys += [_number(found) for name in _CATEGORY_IDS[1:] if _is_key(found := value.get(name))]
    return keys[0] if keys else None


def _score_of(value: _Json) -> object:
    more = value.get("attributes")  # CVAT
    places = (value, more) if _is_object(more) else (value,)
    return next((found[key] for found in places for key in _SCORES if found.get(key) is not None), None)


def _number(key: Key) -> Key:
    return int(key) if isinstance(key, str) and re.fullmatch(r"-?(0|[1-9]\d{0,17})", key) else key


def _float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _numbers(box: object) -> list[float] | None:
    found = [_float(one) for one in box] if isinstance(box, list) else []
    numbers = [number for number in found if number is not None]
    return numbers if len(found) == len(numbers) == 4 else None


def _check_finite(path: Path, boxes: Floats, scores: Floats | None) -> None:
    columns = {"bbox": boxes} if scores is None else {"bbox": boxes, "score": scores[:, None]}
    for name, values in columns.items():
        for place in np.flatnonzero(~(np.abs(values) < LARGEST_NUMBER).all(axis=1))[:1].tolist():
            shown = show(values[place].tolist() if name == "bbox" else float(values[place, 0]))
            raise DataError(f"{path}: detection[{place}]: {name} is {shown}, expected finite numbers")


def _content(path: Path) -> tuple[bytes, bool]:
    """Return the bytes of a file, and whether they were packed."""
    content = read_content(path)
    if not content.startswith(b"PK\x03\x04"):
        return content, path.suffix == ".gz"
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [name for name in archive.namelist() if re.search(r"^(?!__MACOSX).*\.jsonl?$", name)]
            if len(names) != 1:
                raise DataError(f"{path}: the archive holds {len(names)} files of JSON, expected one")
            return archive.read(names[0]), True
    except (zipfile.BadZipFile, RuntimeError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: the archive cannot be unpacked ({error}); is the file complete?") from None


def _parse(content: bytes, path: Path) -> object:
    """Return a file's JSON, or the values of its lines; also what only Python's parser takes, such as NaN."""
    try:
        text = content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; expected a JSON file") from None
    values: list[object] = []
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            place = f"line {error.lineno} column {error.colno}"
            raise DataError(f"{path}: {place}: not valid JSON ({error.msg}); is the file complete?") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error})") from None
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            values += [json.loads(line)] if line.strip() else []
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not valid JSON ({error}); is the file complete?") from None
    return values


def _folder(path: Path) -> ResultFile:
    """Return a folder with a file for each image, which is named by the file: JSON, or YOLO's lines of text."""
    values: list[object] = []
    files = sorted(found for found in path.rglob("*") if found.suffix in (".json", ".txt"))
    if not files:
        raise DataError(f"{path}: that is a folder without .json or .txt; expected a file of detections")
    for file in files:
        if file.suffix == ".json":
            value = _parse(_content(file)[0], file)
            values.append({"file_name": file.stem, **(value if _is_object(value) else {"detections": value})})
            continue
        for number, line in enumerate(read_content(file).decode("utf-8", "replace").splitlines(), start=1):
            parts = [part for word in line.split() if (part := _float(word)) is not None]
            if len(parts) not in (5, 6) or len(parts) != len(line.split()):
                raise DataError(
                    f"{file}:{number}: expected class, x, y, width, height and confidence, got {show(line)}"
                )
            entry = {"file_name": file.stem, "category_id": int(parts[0]), "bbox": parts[1:5]}
            values.append(entry if len(parts) == 5 else {**entry, "score": parts[5]})
    return _Walk(path, frame=_YOLO if files[0].suffix == ".txt" else None).file(values)

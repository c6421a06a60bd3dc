"""Detections as lines of text: a file an image, or a file a category, as YOLO and the tools of Pascal VOC write them.

- Ultralytics' ``save_txt``: class, centre x and y, width, height, confidence; fractions, a file an image;
- ``class confidence left top right bottom``, a file an image (mAP tools around Pascal VOC);
- ``comp4_det_val_car.txt``: ``image confidence left top right bottom``, a file a category (VOC's devkit); so are DOTA's
  ``Task2_car.txt``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from coordexp.detection.forms.content import decoded
from coordexp.detection.forms.frames import Frame
from coordexp.detection.forms.keys import as_number, number_of
from coordexp.errors import DataError, show
from coordexp.files import read_content

Form = Literal["yolo", "image", "category"]
"""``image`` and ``category``: boxes as corners in pixels, a file for each image or a file for each category."""

YOLO = Frame("norm1", "cxcywh", "index0")
CORNERS = Frame("px", "xyxy")
_OF_CATEGORY = re.compile(r"(comp\d+_([^_]+_)?det_[^_]+|det_(test|val|train)|Task[12])_(?P<category>.+)", re.IGNORECASE)
"""Stem of a file that holds the detections of one category: competition, set of images, category."""

_LARGEST_FRACTION = 1.5
"""More than 1, since a box in fractions may reach over the edge of its image."""

_EXPECTED: dict[Form, str] = {
    "yolo": "class, x, y, width, height and confidence",
    "image": "class, confidence, left, top, right and bottom",
    "category": "image, confidence, left, top, right and bottom",
}


@dataclass(frozen=True)
class _Line:
    """A line as its first words and the numbers at its end.

    Attributes:
        file: that holds the line.
        number: of the line, from 1.
        text: the whole line.
        words: a class or an image, which may be several words.
        numbers: up to five.
    """

    file: Path
    number: int
    text: str
    words: str
    numbers: Sequence[float]


@dataclass(frozen=True)
class TextDetections:
    """Detections of text files as entries of COCO's format, the frame of their boxes and how they were read."""

    entries: list[dict[str, object]]
    frame: Frame
    remark: str


def read_text_files(files: Sequence[Path]) -> TextDetections:
    """Read files of lines, which must all be of one form.

    A file ``classes.txt`` among them holds the names of the classes, a line each.

    Raises:
        DataError: naming the line that is of no known form.
    """
    class_names: list[str] | None = None
    lines: list[_Line] = []
    category_of_file: dict[Path, str] = {}
    for file in files:
        if file.name == "classes.txt":
            class_names = class_names or _class_names(file)
            continue
        lines += _lines(file)
        match = _OF_CATEGORY.fullmatch(file.stem)
        if match:
            category_of_file[file] = match["category"]

    form: Form = "yolo"
    if category_of_file:
        form = "category"
    elif any(_is_of_image(line) for line in lines):
        form = "image"

    entries: list[dict[str, object]] = []
    for line in lines:
        entry = _entry(line, form, category_of_file.get(line.file, ""))
        class_index = entry["category_id"]
        if class_names is not None and isinstance(class_index, int):
            if not 0 <= class_index < len(class_names):
                raise DataError(
                    f"{line.file}:{line.number}: class {class_index} is not among the {len(class_names)} of classes.txt"
                )
            entry["category_id"] = class_names[class_index]
        entries.append(entry)
    if form != "yolo":
        return TextDetections(entries, CORNERS, f"its lines are read as {_EXPECTED[form]} in pixels")
    frame = YOLO if class_names is None else replace(YOLO, categories="ids")
    return TextDetections(entries, frame, "")


def _class_names(file: Path) -> list[str]:
    return [line.strip() for line in decoded(read_content(file), file).splitlines() if line.strip()]


def _lines(file: Path) -> list[_Line]:
    """Return the lines of a file that are not empty."""
    lines: list[_Line] = []
    for number, text in enumerate(decoded(read_content(file), file).splitlines(), start=1):
        words = text.split()
        if not words:
            continue
        numbers: list[float] = []
        # The first word is a class or an image, even if it is a number; the name of a class may be several words.
        for word in reversed(words[1:]):
            value = number_of(word)
            if value is None or len(numbers) == 5:
                break
            numbers.insert(0, value)
        first_words = " ".join(words[: len(words) - len(numbers)])
        lines.append(_Line(file, number, text, first_words, numbers))
    return lines


def _is_of_image(line: _Line) -> bool:
    """Return whether a line is of the form ``image`` and cannot be YOLO's.

    Both may have five numbers. YOLO's line begins with the index of a class and has a box in fractions.
    """
    if len(line.numbers) != 5:
        return False
    is_class_name = number_of(line.words) is None
    is_in_pixels = max(line.numbers[1:]) > _LARGEST_FRACTION
    return is_class_name or is_in_pixels


def _entry(line: _Line, form: Form, category: str) -> dict[str, object]:
    """Return a line as an entry of COCO's format, with its numbers as they stand.

    Args:
        line: of any form.
        form: of all lines.
        category: of all lines of the file, in the form ``category``.

    Raises:
        DataError: if the line is not of the form.
    """
    if form == "yolo":
        index = number_of(line.words)
        if index is None or index != int(index) or len(line.numbers) not in (4, 5):
            raise _not_of_form(line, form)
        entry: dict[str, object] = {
            "file_name": line.file.stem,
            "category_id": int(index),
            "bbox": [*line.numbers[:4]],
        }
        if len(line.numbers) == 5:
            entry["score"] = line.numbers[4]
        return entry
    if len(line.numbers) != 5:
        raise _not_of_form(line, form)
    score, *box = line.numbers
    if form == "category":
        return {"file_name": line.words, "category_id": category, "bbox": box, "score": score}
    if not 0 <= score <= 1:  # Without a class in front, the first number of the box would be taken for the confidence.
        raise _not_of_form(line, form)
    return {"file_name": line.file.stem, "category_id": as_number(line.words), "bbox": box, "score": score}


def _not_of_form(line: _Line, form: Form) -> DataError:
    place = f"{line.file}:{line.number}"
    if line.text.lstrip()[:1] in ("`", "[", "{"):
        return DataError(
            f"{place}: the text of a model's answer, not lines of boxes; expected one file of JSON lines such as "
            f'{{"file_name": "{line.file.stem}.jpg", "text": ...}}, which coordexp evaluate --generations reads'
        )
    return DataError(f"{place}: expected {_EXPECTED[form]}, got {show(line.text)}")

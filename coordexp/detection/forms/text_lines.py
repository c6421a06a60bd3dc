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

YOLO, CORNERS = Frame("norm1", "cxcywh", "index0"), Frame("px", "xyxy")
_OF_CATEGORY = re.compile(r"(comp\d+_([^_]+_)?det_[^_]+|det_(test|val|train)|Task[12])_(?P<category>.+)", re.IGNORECASE)
"""Stem of a file that holds the detections of one category: competition, set of images, category."""

_LARGEST_FRACTION = 1.5  # a box may reach over the edge
_EXPECTED = {
    "yolo": "class, x, y, width, height and confidence",
    "image": "class, confidence, left, top, right and bottom",
    "category": "image, confidence, left, top, right and bottom",
}


@dataclass(frozen=True)
class _Line:
    """A line as its first words and the numbers at its end."""

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
    """Read files of lines; they must all be of one form.

    Raises:
        DataError: naming the line that is of no form that is known.
    """
    names = next((_names(file) for file in files if file.name == "classes.txt"), None)
    lines = [line for file in files if file.name != "classes.txt" for line in _lines(file)]
    categories = {file: match["category"] for file in files if (match := _OF_CATEGORY.fullmatch(file.stem))}
    form: Literal["yolo", "image", "category"] = "yolo"
    if categories:
        form = "category"
    elif any(_is_of_image(line) for line in lines):
        form = "image"

    entries: list[dict[str, object]] = []
    for line in lines:
        entry = _entry(line, form, categories.get(line.file, ""))
        if names is not None and isinstance(entry["category_id"], int):
            index = entry["category_id"]
            if not 0 <= index < len(names):
                raise DataError(
                    f"{line.file}:{line.number}: class {index} is not among the {len(names)} of classes.txt"
                )
            entry["category_id"] = names[index]
        entries.append(entry)
    if form == "yolo":
        return TextDetections(entries, replace(YOLO, categories="ids") if names is not None else YOLO, "")
    return TextDetections(entries, CORNERS, f"its lines are read as {_EXPECTED[form]} in pixels")


def _names(file: Path) -> list[str]:
    return [line.strip() for line in decoded(read_content(file), file).splitlines() if line.strip()]


def _lines(file: Path) -> list[_Line]:
    found: list[_Line] = []
    for number, text in enumerate(decoded(read_content(file), file).splitlines(), start=1):
        words = text.split()
        numbers: list[float] = []
        # The first word is a class or an image, also where it is a number; a class may be several words.
        for word in reversed(words[1:]):
            value = number_of(word)
            if value is None or len(numbers) == 5:
                break
            numbers.insert(0, value)
        if words:
            found.append(_Line(file, number, text, " ".join(words[: len(words) - len(numbers)]), numbers))
    return found


def _is_of_image(line: _Line) -> bool:
    """Return whether a line has a confidence before four numbers of which one is no fraction, or a class by name."""
    if len(line.numbers) != 5:
        return False
    return number_of(line.words) is None or max(line.numbers[1:]) > _LARGEST_FRACTION


def _entry(line: _Line, form: Literal["yolo", "image", "category"], category: str) -> dict[str, object]:
    """Return a line as an entry of COCO's format, with its numbers as they stand."""
    if form == "yolo":
        index = number_of(line.words)
        if index is None or index != int(index) or len(line.numbers) not in (4, 5):
            raise _no_line(line, form)
        entry: dict[str, object] = {
            "file_name": line.file.stem,
            "category_id": int(index),
            "bbox": [*line.numbers[:4]],
        }
        if len(line.numbers) == 5:
            entry["score"] = line.numbers[4]
        return entry
    if len(line.numbers) != 5:
        raise _no_line(line, form)
    score, *box = line.numbers
    if form == "image" and not 0 <= score <= 1:
        raise _no_line(line, form)
    image, label = (line.words, category) if form == "category" else (line.file.stem, as_number(line.words))
    return {"file_name": image, "category_id": label, "bbox": box, "score": score}


def _no_line(line: _Line, form: Literal["yolo", "image", "category"]) -> DataError:
    place = f"{line.file}:{line.number}"
    if line.text.lstrip()[:1] in ("`", "[", "{"):
        return DataError(
            f"{place}: the text of a model's answer, not lines of boxes; expected one file of JSON lines such as "
            f'{{"file_name": "{line.file.stem}.jpg", "text": ...}}, which coordexp evaluate --generations reads'
        )
    return DataError(f"{place}: expected {_EXPECTED[form]}, got {show(line.text)}")

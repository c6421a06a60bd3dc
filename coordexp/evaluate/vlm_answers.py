"""Zero-shot answers of other models, read by the package supervision: ``pip install "coordexp[vlm]"``.

Gemini, PaliGemma, Florence-2, DeepSeek-VL2 and Moondream each write boxes in a way of their own. What their
texts say becomes a file of detections, which is measured like any other and can be a row of a report.
"""

import json
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coordexp.data.image_file import shown_size
from coordexp.detection.categories import CategoryIndex
from coordexp.detection.detections import Detections, write_detections
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.image_names import ImageNames
from coordexp.errors import DataError, ResourceError, kind_of, show
from coordexp.files import read_content

_BOX = re.compile(r'"box_2d"|"bbox_2d"|(?:<loc\d{4}>){4}|<\|det\|>')
"""What opens a box in a text, by which lost ones are counted."""


@dataclass(frozen=True, eq=False)
class ReadAnswers:
    """What texts say, and what could not be read.

    Attributes:
        detections: all scores 1, if the model writes none.
        num_answers: texts, one an image.
        num_unreadable: texts that say something and hold no box.
        num_malformed: boxes that a text opens and that are none.
        unknown: how often a box has a name that is no category.
    """

    detections: Detections
    num_answers: int
    num_unreadable: int
    num_malformed: int
    unknown: Counter[str]

    @property
    def sentence(self) -> str:
        """How much was read."""
        names = ", ".join(f"{show(name)} {count}" for name, count in self.unknown.most_common(5))
        return (
            f"{len(self.detections)} boxes from {self.num_answers} answers; {self.num_unreadable} answers hold no box, "
            f"{self.num_malformed} boxes could not be read, {self.unknown.total()} have a name that is no category"
            + (f" (most frequent: {names})" if names else "")
        )


def read_vlm_answers(
    answer: str, generations: Path, truth: GroundTruth, images: Path, *, aliases: dict[str, str]
) -> ReadAnswers:
    """Read a file with a line an image: ``{"image_id": 7, "text": "..."}``, or with ``file_name``.

    ``text`` may be the object that a model's own processor returns (Florence-2, Moondream). ``label`` names
    the category of boxes whose answer names none, as Moondream's, which is asked for one; it may then have several
    lines an image.

    Raises:
        ResourceError: if supervision is not installed.
        DataError: if a line is something else, an image is unknown, or has no line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of OpenCV, which boxes do not need
            from supervision import Detections as Parsed  # pyright: ignore[reportMissingImports] - an extra
    except ImportError:
        raise ResourceError('answers of other models are read by supervision; pip install "coordexp[vlm]"') from None
    names, index = ImageNames(truth.file_names), CategoryIndex(truth.categories, aliases=aliases)
    rows: list[tuple[int, int, list[float], float]] = []
    unknown, seen = Counter[str](), set[int]()
    num_unreadable = num_malformed = 0
    for number, line in enumerate(read_content(generations).decode("utf-8-sig").splitlines(), start=1):
        where = f"{generations}:{number}"
        entry = _entry(line, where)
        image_id = _image_of(entry, truth, names, where)
        if image_id in seen and "label" not in entry:
            raise DataError(f"{where}: a second answer for image {image_id}; expected one an image")
        seen.add(image_id)
        size = truth.sizes_px[image_id] or shown_size(images / truth.file_names[image_id])
        given = entry.get("text", entry.get("result"))
        try:
            parsed = Parsed.from_vlm(answer, _result(answer, given), resolution_wh=size)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            num_unreadable += 1  # whatever a model has written
            continue
        labels = parsed.data.get("class_name", [entry.get("label", "")] * len(parsed.xyxy))
        scores = np.ones(len(parsed.xyxy)) if parsed.confidence is None else parsed.confidence
        text = given if isinstance(given, str) else ""
        num_unreadable += not len(parsed.xyxy) and bool(re.search(r"[^\s\[\]{}`]", text.replace("```json", "")))
        num_malformed += max(0, len(_BOX.findall(text)) - len(parsed.xyxy))
        for box, label, score in zip(parsed.xyxy.tolist(), labels, scores, strict=True):
            category_id = index.find(str(label))
            x1, x2, y1, y2 = *sorted(box[::2]), *sorted(box[1::2])
            if category_id is None:
                unknown[str(label)] += 1
            else:
                rows.append((image_id, category_id, [x1, y1, x2 - x1, y2 - y1], float(score)))
    if missing := sorted(truth.sizes_px.keys() - seen):
        num = len(truth.sizes_px)
        raise DataError(f"{generations}: no answer for {len(missing)} of {num} images, such as {missing[0]}")
    image_ids, category_ids, boxes, found_scores = zip(*rows, strict=True) if rows else ((), (), (), ())
    detections = Detections(
        np.array(image_ids, np.int64),
        np.array(category_ids, np.int64),
        np.array(boxes, np.float64).reshape(-1, 4),
        np.array(found_scores, np.float64),
    )
    return ReadAnswers(detections, len(seen), num_unreadable, num_malformed, unknown)


def write_vlm_detections(answers: ReadAnswers, folder: Path) -> Path:
    """Write ``detections.json`` into a folder, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_detections(folder / "detections.json", answers.detections)
    return folder / "detections.json"


def _entry(line: str, where: str) -> dict[str, object]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not valid JSON ({error})") from None
    if not isinstance(entry, dict) or not (entry.keys() & {"text", "result"}):
        raise DataError(f'{where}: expected {{"image_id": 7, "text": "..."}}, got {show(entry)}')
    return entry


def _image_of(entry: dict[str, object], truth: GroundTruth, names: ImageNames, where: str) -> int:
    for key in ("image_id", "file_name", "image"):
        value = entry.get(key)
        if isinstance(value, int) and value in truth.sizes_px:
            return value
        if isinstance(value, str) and (found := names.find(value)) is not None:
            return found
    raise DataError(
        f"{where}: its image is none of the {len(truth.sizes_px)} of the annotation file; expected image_id"
    )


def _result(answer: str, given: object) -> str | dict[str, object]:
    """Return an answer as supervision takes it: an object where the model's own processor makes one."""
    if answer in ("florence_2", "moondream") and isinstance(given, str):
        given = json.loads(given)
    if not isinstance(given, str | dict):
        raise TypeError(f"expected a text, or what the model's own processor makes of it, got {kind_of(given)}")
    return given

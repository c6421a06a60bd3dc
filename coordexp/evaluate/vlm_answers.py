"""Zero-shot answers of other models, read by the package supervision: ``pip install "coordexp[vlm]"``.

Gemini, PaliGemma, Florence-2, DeepSeek-VL2 and Moondream each write boxes in a way of their own. What their
texts say becomes a file of detections, which is measured like any other and can be a row of a report.
"""

import json
import re
import warnings
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import numpy as np

from coordexp.data.images.headers import read_header
from coordexp.detection.detections import Detections
from coordexp.detection.forms.answers import AnswerRecord, images_of, read_answers
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.names.categories import CategoryIndex
from coordexp.errors import DataError, ResourceError, counted, show

_BOX = re.compile(r'"box_2d"|"bbox_2d"|(?:<loc\d{4}>){4}|<\|det\|>')
"""What opens a box in a text, by which lost ones are counted."""


def read_vlm_answers(
    answer: str,
    generations: Path,
    truth: GroundTruth,
    images: Path,
    *,
    aliases: dict[str, str],
    wanted: Collection[int],
) -> tuple[Detections, list[str]]:
    """Read a file with a line an image: ``{"image_id": 7, "text": "..."}``, or with ``file_name``, or an engine's own.

    ``text`` may be the object that a model's own processor returns (Florence-2, Moondream). ``label`` names
    the category of boxes whose answer names none, as Moondream's, which is asked for one; it may then have several
    lines an image. Answers for images that are not ``wanted`` are left out.

    Returns:
        Detections, all with the score 1 if the model writes none; and sentences about how much was read, and how.

    Raises:
        ResourceError: if supervision is not installed.
        DataError: if a line is something else, an image is unknown, or one that is wanted has no line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of OpenCV, which boxes do not need
            from supervision import Detections as Parsed  # pyright: ignore[reportMissingImports] - an extra
    except ImportError:
        raise ResourceError('answers of other models are read by supervision; pip install "coordexp[vlm]"') from None
    index = CategoryIndex(truth.categories, aliases=aliases)
    lines, remarks = _wanted_lines(generations, truth, wanted)
    rows: list[tuple[int, int, list[float], float]] = []
    unknown = Counter[str]()
    num_unreadable = num_malformed = 0
    for line, image_id in lines:
        if not isinstance(line.text, str | dict):
            num_unreadable += 1
            continue
        size = truth.sizes_px[image_id] or read_header(images / truth.file_names[image_id]).shown
        text = line.text if isinstance(line.text, str) else ""
        try:
            # Of some models supervision takes what their own processor makes of the text.
            is_object = isinstance(line.text, str) and answer in ("florence_2", "moondream")
            parsed = Parsed.from_vlm(answer, json.loads(text) if is_object else line.text, resolution_wh=size)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            num_unreadable += 1  # whatever a model has written
            continue
        labels = parsed.data.get("class_name", [line.label or ""] * len(parsed.xyxy))
        scores = np.ones(len(parsed.xyxy)) if parsed.confidence is None else parsed.confidence
        num_unreadable += not len(parsed.xyxy) and bool(re.search(r"[^\s\[\]{}`]", text.replace("```json", "")))
        num_malformed += max(0, len(_BOX.findall(text)) - len(parsed.xyxy))
        for box, label, score in zip(parsed.xyxy.tolist(), labels, scores, strict=True):
            category_id = index.find(str(label))
            x1, x2, y1, y2 = *sorted(box[::2]), *sorted(box[1::2])
            if category_id is None:
                unknown[str(label)] += 1
            else:
                rows.append((image_id, category_id, [x1, y1, x2 - x1, y2 - y1], float(score)))
    image_ids, category_ids, boxes, found_scores = zip(*rows, strict=True) if rows else ((), (), (), ())
    detections = Detections(
        np.array(image_ids, np.int64),
        np.array(category_ids, np.int64),
        np.array(boxes, np.float64).reshape(-1, 4),
        np.array(found_scores, np.float64),
    )
    frequent = ", ".join(f"{show(name)} {count}" for name, count in unknown.most_common(5))
    read = (
        f"{counted(len(rows), 'box')} from {counted(len(lines), 'answer')}; without a box: {num_unreadable}; "
        f"boxes that could not be read: {num_malformed}; of a name that is no category: {unknown.total()}"
        + (f" (most frequent: {frequent})" if frequent else "")
    )
    return detections, [*remarks, read]


def _wanted_lines(
    generations: Path, truth: GroundTruth, wanted: Collection[int]
) -> tuple[list[tuple[AnswerRecord, int]], tuple[str, ...]]:
    """Return the answers for the images that are wanted, each with its image, and how the images were found."""
    answers = read_answers(generations)
    images = images_of(answers, generations, known=truth.sizes_px.keys(), names=truth.names)
    seen: set[int] = set()
    for answer, image_id in zip(answers, images.image_ids, strict=True):
        if image_id in seen and answer.label is None:
            raise DataError(f"{answer.place}: a second answer for image {image_id}; expected one an image")
        if answer.text is None and answer.token_ids is not None:
            raise DataError(f"{answer.place}: token ids, which only the model's own tokenizer reads; expected its text")
        seen.add(image_id)
    missing = sorted(set(wanted) - seen)
    if missing:
        raise DataError(f"{generations}: no answer for {len(missing)} of {len(wanted)} images, such as {missing[0]}")
    lines = zip(answers, images.image_ids, strict=True)
    return [(answer, image_id) for answer, image_id in lines if image_id in wanted], images.remarks

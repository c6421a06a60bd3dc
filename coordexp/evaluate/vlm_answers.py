"""Zero-shot answers of other models, read by the package supervision: ``pip install "coordexp[vlm]"``.

Gemini, PaliGemma, Florence-2, DeepSeek-VL2 and Moondream each write boxes in their own way. Their texts become a file
of detections, which is measured like any other and can be a row of a report.
"""

import json
import re
import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coordexp.data.images.headers import read_header
from coordexp.detection.detections import Detections
from coordexp.detection.forms.answers import AnswerRecord, images_of, read_answers
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.names.categories import CategoryIndex
from coordexp.errors import DataError, ResourceError, counted, show

_BOX = re.compile(r'"box_2d"|"bbox_2d"|(?:<loc\d{4}>){4}|<\|det\|>')
"""What opens a box in a text. Boxes that supervision did not read are counted by it."""
_CONTENT = re.compile(r"[^\s\[\]{}`]")  # a text of brackets and backticks alone is an empty list, and can be read


class _BoxRow(NamedTuple):
    """One box of a known category, in pixels of the original image."""

    image_id: int
    category_id: int
    box_px_xywh: Sequence[float]
    score: float


def read_vlm_answers(
    answer: str,
    generations: Path,
    truth: GroundTruth,
    images: Path,
    *,
    aliases: dict[str, str],
    wanted: Collection[int],
) -> tuple[Detections, list[str]]:
    """Read answers that another model wrote.

    Args:
        answer: the model, as supervision names it.
        generations: a file with a line for each image: ``{"image_id": 7, "text": "..."}``, or with ``file_name``, or in
            an engine's own form. ``text`` may also be the object that a model's own processor returns (Florence-2,
            Moondream). ``label`` names the category of boxes without a name: Moondream is asked for one category at a
            time, and its file may have several lines for an image.
        truth: the annotations.
        images: folder of the images, whose sizes are read if the annotations lack them.
        aliases: further descriptions -> category names.
        wanted: ids of the images that need an answer; answers for other images are left out.

    Returns:
        Detections, with the score 1 if the model writes none; and sentences about what was read.

    Raises:
        ResourceError: if supervision is not installed.
        DataError: if a line is something else, an image is unknown, or a wanted image has no line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns about OpenCV, which boxes do not need
            from supervision import Detections as Parsed  # pyright: ignore[reportMissingImports] - an extra
    except ImportError:
        raise ResourceError('answers of other models are read by supervision; pip install "coordexp[vlm]"') from None
    index = CategoryIndex(truth.categories, aliases=aliases)
    lines, remarks = _wanted_lines(generations, truth, wanted)
    rows: list[_BoxRow] = []
    unknown = Counter[str]()
    num_without_box = 0
    num_lost_boxes = 0
    for line, image_id in lines:
        if not isinstance(line.text, str | dict):
            num_without_box += 1
            continue
        size = truth.sizes_px[image_id] or read_header(images / truth.file_names[image_id]).shown
        text = line.text if isinstance(line.text, str) else ""
        try:
            # For these models supervision takes the object that their own processor makes of the text.
            is_object_in_text = isinstance(line.text, str) and answer in ("florence_2", "moondream")
            content = json.loads(text) if is_object_in_text else line.text
            parsed = Parsed.from_vlm(answer, content, resolution_wh=size)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            num_without_box += 1  # a model may write anything
            continue

        num_boxes = len(parsed.xyxy)
        if not num_boxes and _CONTENT.search(text.replace("```json", "")):
            num_without_box += 1
        num_lost_boxes += max(0, len(_BOX.findall(text)) - num_boxes)
        labels = parsed.data.get("class_name", [line.label or ""] * num_boxes)
        scores = np.ones(num_boxes) if parsed.confidence is None else parsed.confidence
        for box_px_xyxy, label, score in zip(parsed.xyxy.tolist(), labels, scores, strict=True):
            category_id = index.find(str(label))
            if category_id is None:
                unknown[str(label)] += 1
            else:
                rows.append(_BoxRow(image_id, category_id, _to_xywh(box_px_xyxy), float(score)))
    counts = (
        f"{counted(len(rows), 'box')} from {counted(len(lines), 'answer')}; without a box: {num_without_box}; "
        f"boxes that could not be read: {num_lost_boxes}; of a name that is no category: {unknown.total()}"
    )
    if unknown:
        frequent = ", ".join(f"{show(name)} {count}" for name, count in unknown.most_common(5))
        counts += f" (most frequent: {frequent})"
    return _detections(rows), [*remarks, counts]


def _to_xywh(box_xyxy: Sequence[float]) -> list[float]:
    """Return a box whose corners may be swapped as left, top, width and height."""
    left, right = sorted(box_xyxy[::2])
    top, bottom = sorted(box_xyxy[1::2])
    return [left, top, right - left, bottom - top]


def _detections(rows: Sequence[_BoxRow]) -> Detections:
    return Detections(
        np.array([row.image_id for row in rows], np.int64),
        np.array([row.category_id for row in rows], np.int64),
        np.array([row.box_px_xywh for row in rows], np.float64).reshape(-1, 4),
        np.array([row.score for row in rows], np.float64),
    )


def _wanted_lines(
    generations: Path, truth: GroundTruth, wanted: Collection[int]
) -> tuple[list[tuple[AnswerRecord, int]], tuple[str, ...]]:
    """Return the answers for the wanted images, each with its image id, and remarks on how the images were found."""
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
    pairs = zip(answers, images.image_ids, strict=True)
    return [(answer, image_id) for answer, image_id in pairs if image_id in wanted], images.remarks

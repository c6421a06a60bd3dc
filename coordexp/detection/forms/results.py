"""Files of detections of any form that people's tools write, as columns that belong to a ground truth.

An image may be named instead of numbered (Ultralytics writes the stem), and so may a category. What was found by
another sign than its id is counted and said. Legend of shapes: ``D`` detections.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coordexp.data.coco.ids import id_of
from coordexp.detection.boxes import Floats, Ints, iou_table
from coordexp.detection.forms.frames import Frame
from coordexp.detection.forms.read import read_file
from coordexp.detection.forms.walk import HoldsAnswersError, ResultFile
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.names.categories import CategoryIndex
from coordexp.detection.names.images import ImageNames
from coordexp.errors import DataError, show


@dataclass(frozen=True, eq=False)
class Results:
    """A file of detections, its boxes in whatever frame; one row a detection.

    Attributes:
        image_ids: ``[D]`` ids of the ground truth.
        categories: ``[D]`` ids, as the file has them.
        is_named: whether the file names its categories: the ids are then those of the ground truth, in every frame.
        boxes: ``[D, 4]``.
        scores: ``[D]``; None where no entry has one.
        frame: in which this form of file writes boxes.
        is_plain: whether pycocotools reads it as well.
        remarks: what was read otherwise than COCO's format has it, with numbers.
    """

    path: Path
    image_ids: Ints
    categories: Ints
    is_named: bool
    boxes: Floats
    scores: Floats | None
    frame: Frame = Frame()  # noqa: RUF009 - it is frozen
    is_plain: bool = True
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.image_ids)


def read_results(path: Path, truth: GroundTruth, *, aliases: Mapping[str, str] | None = None) -> Results:
    """Read a file of detections and find its images, and categories that it names, in the ground truth.

    ``aliases``: further names of categories -> those of the ground truth.

    Raises:
        DataError: naming the entry that cannot be read, or whose image or category the ground truth does not have.
    """
    try:
        file = read_file(path)
    except HoldsAnswersError as found:
        raise DataError(_way_to_read_answers(path, truth, found)) from None
    image_ids, remarks = _image_ids(file, truth, path)
    is_named = any(isinstance(key, str) for key in file.categories)
    if is_named:
        category_ids = _ids_of_names(file, truth, path, aliases or {})
    else:
        category_ids = [key if abs(key) < 2**63 else -1 for key in file.categories if isinstance(key, int)]
    frame, by_ids = _frame_of_categories(file, category_ids, truth)
    return Results(
        path=path,
        image_ids=image_ids[file.image],
        categories=np.array(category_ids, np.int64)[file.category],
        is_named=is_named,
        boxes=file.boxes,
        scores=file.scores,
        frame=frame,
        is_plain=file.is_plain and not is_named and not remarks,
        remarks=tuple(f"{path.name}: {remark}" for remark in (*file.remarks, *by_ids, *remarks)),
    )


def _frame_of_categories(file: ResultFile, category_ids: list[int], truth: GroundTruth) -> tuple[Frame, list[str]]:
    """Return the frame of a file; where its form counts categories by place and its numbers cannot be places, by id."""
    if file.frame.categories == "ids" or any(isinstance(key, str) for key in file.categories):
        return file.frame, []
    places = file.frame.category_ids(np.array(category_ids, np.int64), truth.categories)
    num_no_places = int(np.count_nonzero(places < 0))
    if not num_no_places or not set(category_ids) <= truth.categories.keys():
        return file.frame, []
    return replace(file.frame, categories="ids"), [
        f"{num_no_places} of its {len(category_ids)} categories are no places from 0, and all are ids: read as ids"
    ]


def _ids_of_names(file: ResultFile, truth: GroundTruth, path: Path, aliases: Mapping[str, str]) -> list[int]:
    """Return the id of each category that a file names."""
    index = CategoryIndex(truth.categories, aliases=aliases)
    ids = [index.find(str(name)) for name in file.categories]
    unknown = [place for place, category_id in enumerate(ids) if category_id is None]
    if unknown:
        first_row = np.flatnonzero(file.category == unknown[0])[0]
        names = ", ".join(show(file.categories[place]) for place in unknown[:5])
        known = ", ".join(list(truth.categories.values())[:5])
        alias = json.dumps({str(file.categories[unknown[0]]): next(iter(truth.categories.values()), "")})
        raise DataError(
            f"{path}: detection[{first_row}]: no category of the annotation file is called {names}; it has {known}. "
            f"Names that mean one of these: --aliases FILE, a JSON such as {alias}"
        )
    return [category_id for category_id in ids if category_id is not None]


_FORMS_OF_TEXTS = {'"bbox_2d"': "qwen-json", '"box_2d"': "gemini_2_5", "<loc": "paligemma", "<|det|>": "deepseek_vl_2"}
"""What a text holds -> the form of answers that has it; ours and digits need no name."""


def _way_to_read_answers(path: Path, truth: GroundTruth, found: HoldsAnswersError) -> str:
    """Return the refusal of a file of answers: where the text is, and the command that finds boxes in such texts."""
    detections = path.parent / "detections.expected.json"
    if detections.is_file():  # an evaluation of ours keeps both
        return f"{path}: {found}; the boxes of these answers are in {detections}"
    text = json.dumps(found.text, ensure_ascii=False).replace("\\", "")
    form = next((name for mark, name in _FORMS_OF_TEXTS.items() if mark in text), "")
    command = [
        "coordexp",
        "evaluate",
        "--generations",
        str(path),
        "--annotations",
        str(truth.path),
        "--images",
        "FOLDER",
    ]
    command += ["--model", "CHECKPOINT"] if form in ("", "qwen-json") else []
    command += ["--answer", form] if form else []
    return f"{path}: {found}; its detections are written by\n{shlex.join(command)}"


def _image_ids(file: ResultFile, truth: GroundTruth, path: Path) -> tuple[Ints, list[str]]:
    """Return the id in the ground truth of each of a file's images, and what to say of how they were found."""
    names = truth.names
    numbers = [key for key, name in file.images if isinstance(key, int) and not name]
    if len(numbers) == len(file.images) and (readings := _readings_of(numbers, truth, names)):
        if readings.keys() == {_IDS}:
            return np.array(numbers, np.int64), []
        hits = {read: _hits(file, truth, np.array(ids, np.int64)) for read, ids in readings.items()}
        best = max(readings, key=lambda read: hits[read] * (1 if read == _IDS else 0.5))
        if best != _PLACES or hits[best] >= 2 * _hits(file, truth, np.roll(readings[best], 1)) + 2:
            said = [] if best == _IDS else [f"its {len(numbers)} image ids are read as {best}"]
            return np.array(readings[best], np.int64), said
    found, by_name = list[int](), 0
    for place, (key, name) in enumerate(file.images):
        # A number among names is a name, too: Ultralytics writes the stem 0007 as 7.
        by_key = names.find(key) if isinstance(key, str) else None if key is None or name else names.numbered(key)
        options = [names.find(name) if name else None, by_key, id_of(key)]
        own = next((one for one in options if isinstance(one, int) and one in truth.sizes_px), None)
        if own is None:
            shown = f"image {show(name)}" if name else f"image_id {show(key) if isinstance(key, str) else key}"
            row, num = int(np.flatnonzero(file.image == place)[0]), len(truth.sizes_px)
            raise DataError(f"{path}: detection[{row}]: {shown} is not among the {num} of the annotation file")
        by_name += own != id_of(key)
        found.append(own)
    said = f"{by_name} of {len(found)} images were found by file name, not by image_id"
    return np.array(found, np.int64), [said] if by_name else []


_IDS, _FILES = "ids", "the numbers that files are called"
_PLACES = "places, counted from 0, among the images by id"


def _readings_of(numbers: list[int], truth: GroundTruth, names: ImageNames) -> dict[str, list[int]]:
    """Return what numbers can mean that stand for images."""
    found: dict[str, list[int]] = {}
    if all(key in truth.sizes_px for key in numbers):
        found[_IDS] = numbers
    by_file = [image_id for key in numbers if (image_id := names.numbered(key)) is not None]
    if len(by_file) == len(numbers) and by_file != numbers:
        found[_FILES] = by_file
    if _IDS not in found and all(0 <= key < len(truth.sizes_px) for key in numbers):
        ordered = sorted(truth.sizes_px)
        found[_PLACES] = [ordered[key] for key in numbers]
    return found


def _hits(file: ResultFile, truth: GroundTruth, image_ids: Ints) -> int:
    """Return how many boxes of at most 100 images overlap an object there by half, if these are their images."""
    hits = 0
    for place in np.unique(np.linspace(0, len(image_ids) - 1, min(len(image_ids), 100)).astype(int)).tolist():
        boxes = file.boxes[file.image == place][:100]
        image_id = int(image_ids[place])
        if file.frame.needs_sizes and truth.sizes_px[image_id] is None:
            continue
        sizes = truth.sizes_of(np.full(len(boxes), image_id)) if file.frame.needs_sizes else np.ones((len(boxes), 2))
        objects = truth.boxes_px_xywh[truth.image_ids == image_id]
        if len(objects) and len(boxes):
            hits += int((iou_table(file.frame.boxes_px_xywh(boxes, sizes), objects).max(axis=1) >= 0.5).sum())
    return hits

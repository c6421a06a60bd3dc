"""A file of detections of any form that people's tools write, with images and categories of a ground truth.

An image may be named instead of numbered (Ultralytics writes the stem), and so may a category. If images were not
found by their ids, a remark says so with their number. Legend of shapes: ``D`` detections.
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
from coordexp.detection.forms.keys import Key
from coordexp.detection.forms.read import read_file
from coordexp.detection.forms.result_file import HoldsAnswersError, ResultFile
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.names.categories import CategoryIndex
from coordexp.detection.names.images import ImageNames
from coordexp.errors import DataError, show

_IDS = "ids"
_FILES = "the numbers that files are called"
_PLACES = "places, counted from 0, among the images by id"
_MOST_IMAGES_TRIED, _MOST_BOXES_TRIED = 100, 100
_FORMS_OF_TEXTS = {'"bbox_2d"': "qwen-json", '"box_2d"': "gemini_2_5", "<loc": "paligemma", "<|det|>": "deepseek_vl_2"}
"""What an answer holds -> the form of answers that writes it; our own answers and plain digits have no such mark."""


@dataclass(frozen=True, eq=False)
class Results:
    """A file of detections, its boxes in whatever frame; one row a detection.

    Attributes:
        path: where it was read.
        image_ids: ``[D]`` ids of the ground truth.
        categories: ``[D]`` ids, as the file has them.
        is_named: whether the file names its categories: the ids are then those of the ground truth, in every frame.
        boxes: ``[D, 4]``.
        scores: ``[D]``; None if no entry has one.
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
    """Read a file of detections and find its images, and the categories that it names, in the ground truth.

    Args:
        path: a file or a folder of any form.
        truth: whose images and categories the file means.
        aliases: further names of categories -> those of the ground truth.

    Raises:
        DataError: naming the entry that cannot be read, or whose image or category the ground truth does not have.
    """
    try:
        file = read_file(path)
    except HoldsAnswersError as error:
        raise DataError(_way_to_read_answers(path, truth, error)) from None
    image_ids, image_remarks = _image_ids(file, truth, path)
    is_named = any(isinstance(key, str) for key in file.categories)
    if is_named:
        category_ids = _ids_of_names(file, truth, path, aliases or {})
    else:
        # A number that fits no array is certainly no id: -1 is refused with the categories that are unknown.
        category_ids = [key if abs(key) < 2**63 else -1 for key in file.categories if isinstance(key, int)]
    frame, category_remarks = file.frame, list[str]()
    if not is_named and file.frame.categories != "ids":
        frame, category_remarks = _frame_of_places(file.frame, category_ids, truth)

    remarks = (*file.remarks, *category_remarks, *image_remarks)
    return Results(
        path=path,
        image_ids=image_ids[file.image],
        categories=np.array(category_ids, np.int64)[file.category],
        is_named=is_named,
        boxes=file.boxes,
        scores=file.scores,
        frame=frame,
        is_plain=file.is_plain and not is_named and not image_remarks,
        remarks=tuple(f"{path.name}: {remark}" for remark in remarks),
    )


def _frame_of_places(frame: Frame, category_ids: list[int], truth: GroundTruth) -> tuple[Frame, list[str]]:
    """Return the frame of a file whose form counts categories by place, and a remark if its numbers are ids after all.

    They are ids if some of them cannot be places, and each of them is an id of the ground truth.
    """
    id_at_place = frame.category_ids(np.array(category_ids, np.int64), truth.categories)
    num_no_places = int(np.count_nonzero(id_at_place < 0))
    are_all_ids = set(category_ids) <= truth.categories.keys()
    if not num_no_places or not are_all_ids:
        return frame, []
    return replace(frame, categories="ids"), [
        f"{num_no_places} of its {len(category_ids)} categories are no places from 0, and all are ids: read as ids"
    ]


def _ids_of_names(file: ResultFile, truth: GroundTruth, path: Path, aliases: Mapping[str, str]) -> list[int]:
    """Return the id of each category that a file names.

    Args:
        file: as it stands.
        truth: which has the categories.
        path: of the file, for messages.
        aliases: further names of categories -> those of the ground truth.

    Raises:
        DataError: naming the categories that the ground truth does not have.
    """
    index = CategoryIndex(truth.categories, aliases=aliases)
    category_ids: list[int] = []
    unknown_places: list[int] = []
    for place, name in enumerate(file.categories):
        category_id = index.find(str(name))
        if category_id is None:
            unknown_places.append(place)
        else:
            category_ids.append(category_id)
    if not unknown_places:
        return category_ids

    first_row = np.flatnonzero(file.category == unknown_places[0])[0]
    unknown_names = [file.categories[place] for place in unknown_places]
    names_of_truth = list(truth.categories.values())
    example = json.dumps({str(unknown_names[0]): next(iter(names_of_truth), "")})
    raise DataError(
        f"{path}: detection[{first_row}]: no category of the annotation file is called "
        f"{', '.join(map(show, unknown_names[:5]))}; it has {', '.join(names_of_truth[:5])}. "
        f"Names that mean one of these: --aliases FILE, a JSON such as {example}"
    )


def _way_to_read_answers(path: Path, truth: GroundTruth, error: HoldsAnswersError) -> str:
    """Return the refusal of a file of answers: where the text is, and the command that reads boxes from such texts."""
    detections_beside = path.parent / "detections.expected.json"
    if detections_beside.is_file():  # An evaluation of ours keeps both.
        return f"{path}: {error}; the boxes of these answers are in {detections_beside}"

    text = json.dumps(error.text, ensure_ascii=False).replace("\\", "")
    answer_form = next((form for mark, form in _FORMS_OF_TEXTS.items() if mark in text), "")
    command = ["coordexp", "evaluate", "--generations", str(path)]
    command += ["--annotations", str(truth.path), "--images", "FOLDER"]
    if answer_form in ("", "qwen-json"):  # The checkpoint's processor says how it resized the images.
        command += ["--model", "CHECKPOINT"]
    if answer_form:
        command += ["--answer", answer_form]
    return f"{path}: {error}; its detections are written by\n{shlex.join(command)}"


def _image_ids(file: ResultFile, truth: GroundTruth, path: Path) -> tuple[Ints, list[str]]:
    """Return the id in the ground truth of each of a file's images, and a remark if they were not found by id.

    Raises:
        DataError: naming the first image that the ground truth does not have.
    """
    numbers = [key for key, name in file.images if isinstance(key, int) and not name]
    if len(numbers) == len(file.images):
        ids_of_numbers = _ids_of_numbers(file, truth, numbers)
        if ids_of_numbers is not None:
            return ids_of_numbers

    image_ids: list[int] = []
    num_by_name = 0
    for place, (key, name) in enumerate(file.images):
        image_id = _find_image(key, name, truth)
        if image_id is None:
            row = int(np.flatnonzero(file.image == place)[0])
            shown_key = show(key) if isinstance(key, str) else key
            shown_image = f"image {show(name)}" if name else f"image_id {shown_key}"
            raise DataError(
                f"{path}: detection[{row}]: {shown_image} is not among the {len(truth.sizes_px)} of the annotation file"
            )
        image_ids.append(image_id)
        if image_id != id_of(key):
            num_by_name += 1
    ids = np.array(image_ids, np.int64)
    if not num_by_name:
        return ids, []
    return ids, [f"{num_by_name} of {len(image_ids)} images were found by file name, not by image_id"]


def _find_image(key: Key | None, name: str, truth: GroundTruth) -> int | None:
    """Return the image that an id or a name means, by the name of its file if there is one; None for no image.

    Args:
        key: an id, or a name in the place of an id; None if there is none.
        name: of the file; "" if there is none.
        truth: which has the images.
    """
    id_by_name = truth.names.find(name) if name else None
    id_by_key = None
    if isinstance(key, str):
        id_by_key = truth.names.find(key)
    elif key is not None and not name:
        # Among names a number is a name, too: Ultralytics writes the stem 0007 as 7.
        id_by_key = truth.names.numbered(key)
    for image_id in (id_by_name, id_by_key, id_of(key)):
        if isinstance(image_id, int) and image_id in truth.sizes_px:
            return image_id
    return None


def _ids_of_numbers(file: ResultFile, truth: GroundTruth, numbers: list[int]) -> tuple[Ints, list[str]] | None:
    """Return what numbers that stand for images mean, and a remark if they are not ids; None if nothing fits.

    A number can be an id, the name of a file or a place. If it can be several, the reading counts in which the most
    boxes lie on objects. Another reading than ids needs twice as many, and places must beat an assignment of the same
    images in a wrong order.
    """
    readings = _readings_of(numbers, truth, truth.names)
    if not readings:
        return None
    if readings.keys() == {_IDS}:
        return np.array(numbers, np.int64), []
    hits = {reading: _num_hits(file, truth, np.array(ids, np.int64)) for reading, ids in readings.items()}
    best = max(readings, key=lambda reading: hits[reading] if reading == _IDS else 0.5 * hits[reading])
    best_ids = np.array(readings[best], np.int64)
    if best == _PLACES and hits[best] < 2 * _num_hits(file, truth, np.roll(best_ids, 1)) + 2:
        return None
    if best == _IDS:
        return best_ids, []
    return best_ids, [f"its {len(numbers)} image ids are read as {best}"]


def _readings_of(numbers: list[int], truth: GroundTruth, names: ImageNames) -> dict[str, list[int]]:
    """Return what numbers that stand for images can mean: kind of number -> image ids."""
    readings: dict[str, list[int]] = {}
    if all(number in truth.sizes_px for number in numbers):
        readings[_IDS] = numbers
    ids_of_files = [names.numbered(number) for number in numbers]
    named_ids = [image_id for image_id in ids_of_files if image_id is not None]
    if len(named_ids) == len(numbers) and named_ids != numbers:
        readings[_FILES] = named_ids
    if _IDS not in readings and all(0 <= number < len(truth.sizes_px) for number in numbers):
        ordered_ids = sorted(truth.sizes_px)
        readings[_PLACES] = [ordered_ids[number] for number in numbers]
    return readings


def _num_hits(file: ResultFile, truth: GroundTruth, image_ids: Ints) -> int:
    """Return how many boxes overlap an object by half, if these are their images; at most 100 images are tried.

    Args:
        file: as it stands.
        truth: which has the objects.
        image_ids: of the file's images.
    """
    num_tried = min(len(image_ids), _MOST_IMAGES_TRIED)
    tried_places = np.unique(np.linspace(0, len(image_ids) - 1, num_tried).astype(int))
    num_hits = 0
    for place in tried_places.tolist():
        boxes = file.boxes[file.image == place][:_MOST_BOXES_TRIED]
        image_id = int(image_ids[place])
        objects_px_xywh = truth.boxes_px_xywh[truth.image_ids == image_id]
        lacks_size = file.frame.needs_sizes and truth.sizes_px[image_id] is None
        if lacks_size or not len(objects_px_xywh) or not len(boxes):
            continue
        sizes_px = np.ones((len(boxes), 2))
        if file.frame.needs_sizes:
            sizes_px = truth.sizes_of(np.full(len(boxes), image_id))
        best_iou = iou_table(file.frame.boxes_px_xywh(boxes, sizes_px), objects_px_xywh).max(axis=1)
        num_hits += int((best_iou >= 0.5).sum())
    return num_hits

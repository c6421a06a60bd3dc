"""Reads a file or a folder of detections in whatever form another tool has written it."""

from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from coordexp.detection.forms.content import parsed, unpacked
from coordexp.detection.forms.keys import NO_IMAGE, is_object
from coordexp.detection.forms.named import refuse_other_formats
from coordexp.detection.forms.result_file import ResultFile, check_finite
from coordexp.detection.forms.text_lines import TextDetections, read_text_files
from coordexp.detection.forms.walk import Walk
from coordexp.errors import DataError, counted
from coordexp.files import read_once

_UNREADABLE_IN_FOLDERS = (".csv", ".tsv", ".xml", ".pkl", ".parquet", ".gz", ".zip")
"""Files that may hold detections; others, such as pictures and logs, may stand in the folder."""


class _Entry(Struct, gc=False):
    """A detection as pycocotools reads it; it may lack a score."""

    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    score: float | None = None
    file_name: str = ""


@read_once
def read_file(path: Path) -> ResultFile:
    """Read a file or folder of detections; a second call returns the same object as long as nothing changes.

    Raises:
        DataError: if any of its entries cannot be read, naming the first of them.
        HoldsAnswersError: if it holds the texts in which a model wrote boxes.
    """
    if path.is_dir():
        return _folder(path)
    content, is_packed = unpacked(path)
    refuse_other_formats(content, path)
    begins_as_json = content.lstrip()[:1] in (b"[", b"{")
    if path.suffix.lower() == ".txt" and not begins_as_json:
        return _of_lines(path, read_text_files([path]))
    result = _read_plain(content, path, is_packed=is_packed)
    return Walk(path).result_of(parsed(content, path)) if result is None else result


def _read_plain(content: bytes, path: Path, *, is_packed: bool) -> ResultFile | None:
    """Read COCO's list of results; None if the file is anything else.

    Nearly every file is one, and the walk, which asks of each entry what its names mean, takes many times as long.
    """
    try:
        entries = msgspec.json.decode(content, type=list[_Entry])
        image_ids = np.array([entry.image_id for entry in entries], np.int64)
        category_ids = np.array([entry.category_id for entry in entries], np.int64)
    except (ValueError, RecursionError, OverflowError):  # ValueError: msgspec's errors, and those of the encoding.
        return None
    # Without a score it may be a score under another name, which the type does not know.
    if any(entry.file_name or entry.score is None for entry in entries):
        return None

    boxes = np.array([entry.bbox for entry in entries], np.float64).reshape(-1, 4)
    scores = np.array([entry.score for entry in entries], np.float64)
    check_finite(path, boxes, scores)
    distinct_images, image = np.unique(image_ids, return_inverse=True)
    distinct_categories, category = np.unique(category_ids, return_inverse=True)
    return ResultFile(
        images=[(image_id, "") for image_id in distinct_images.tolist()],
        image=image,
        categories=distinct_categories.tolist(),
        category=category,
        boxes=boxes,
        scores=scores,
        is_plain=not is_packed,
    )


def _of_lines(path: Path, lines: TextDetections) -> ResultFile:
    walk = Walk(path, frame=lines.frame)
    if lines.remark:
        walk.remarks.append(lines.remark)
    walk.visit(lines.entries, NO_IMAGE, ())
    return walk.finish()


def _folder(path: Path) -> ResultFile:
    """Read a folder with a file for each image or category: JSON, or lines of text."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    unreadable_files = [file for file in files if file.suffix.lower() in _UNREADABLE_IN_FOLDERS]
    if unreadable_files:
        raise DataError(
            f"{path}: that folder holds {counted(len(unreadable_files), 'file')} that cannot be read as detections of "
            f"an image, such as {unreadable_files[0].name}; expected .json or .txt alone, a file for each image or "
            "category"
        )
    json_files = [file for file in files if file.suffix.lower() in (".json", ".jsonl")]
    text_files = [file for file in files if file.suffix.lower() == ".txt"]
    if not json_files and not text_files:
        raise DataError(f"{path}: that is a folder without .json or .txt; expected a file of detections")
    if json_files and text_files:
        raise DataError(
            f"{path}: that folder holds {len(json_files)} .json and {len(text_files)} .txt files, such as "
            f"{json_files[0].name} and {text_files[0].name}; expected detections of one form, alone in a folder"
        )
    if text_files:
        return _of_lines(path, read_text_files(text_files))
    walk = Walk(path)
    for file in json_files:
        walk.file = file
        content, _ = unpacked(file)
        value = parsed(content, file)
        # The file's name is that of the image, unless the file names an image itself.
        if is_object(value):
            named_value = {"file_name": file.stem, **value}
        else:
            named_value = {"file_name": file.stem, "detections": value}
        walk.visit(named_value, NO_IMAGE, ("",))
    return walk.finish()

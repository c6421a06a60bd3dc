"""Reads a file or a folder of detections in whatever form another tool has written it."""

from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from coordexp.detection.forms.content import parsed, unpacked
from coordexp.detection.forms.keys import NO_IMAGE, is_object
from coordexp.detection.forms.named import refuse_other_formats
from coordexp.detection.forms.text_lines import TextDetections, read_text_files
from coordexp.detection.forms.walk import ResultFile, Walk, check_finite
from coordexp.errors import DataError, counted
from coordexp.files import read_once

_NOT_READ_IN_FOLDERS = (".csv", ".tsv", ".xml", ".pkl", ".parquet", ".gz", ".zip")


class _Entry(Struct, gc=False):
    """A detection as pycocotools reads it; it may lack a score."""

    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    score: float | None = None
    file_name: str = ""


@read_once
def read_file(path: Path) -> ResultFile:
    """Read a file or folder of detections; as often as asked, once.

    Raises:
        DataError: if any of its entries cannot be read, naming the first of them.
        HoldsAnswersError: if it holds the texts in which a model wrote boxes.
    """
    if path.is_dir():
        return _folder(path)
    content, is_packed = unpacked(path)
    refuse_other_formats(content, path)
    if path.suffix.lower() == ".txt" and content.lstrip()[:1] not in (b"[", b"{"):
        return _of_lines(path, read_text_files([path]))
    try:
        rows = msgspec.json.decode(content, type=list[_Entry])
        image_ids = np.array([row.image_id for row in rows], np.int64)
        category_ids = np.array([row.category_id for row in rows], np.int64)
    except (ValueError, RecursionError, OverflowError):  # the first are msgspec's, and of the encoding
        return Walk(path).file_of(parsed(content, path))
    # A score may stand under another name, which this type does not know.
    if any(row.file_name or row.score is None for row in rows):
        return Walk(path).file_of(parsed(content, path))

    boxes = np.array([row.bbox for row in rows], np.float64).reshape(-1, 4)
    scores = np.array([row.score for row in rows], np.float64)
    check_finite(path, boxes, scores)
    images, image = np.unique(image_ids, return_inverse=True)
    categories, category = np.unique(category_ids, return_inverse=True)
    keys = [(key, "") for key in images.tolist()]
    return ResultFile(keys, image, categories.tolist(), category, boxes, scores, is_plain=not is_packed)


def _of_lines(path: Path, lines: TextDetections) -> ResultFile:
    walk = Walk(path, frame=lines.frame)
    if lines.remark:
        walk.remarks.append(lines.remark)
    walk.visit(lines.entries, NO_IMAGE, ())
    return walk.finish()


def _folder(path: Path) -> ResultFile:
    """Return a folder with a file for each image or category: JSON, or lines of text."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    unread = [file for file in files if file.suffix.lower() in _NOT_READ_IN_FOLDERS]
    if unread:
        raise DataError(
            f"{path}: that folder holds {counted(len(unread), 'file')} that cannot be read as detections of an image, "
            f"such as {unread[0].name}; expected .json or .txt alone, a file for each image or category"
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
        value = parsed(unpacked(file)[0], file)
        # Named by its file; an image that is named within has precedence.
        named = {"file_name": file.stem, **value} if is_object(value) else {"file_name": file.stem, "detections": value}
        walk.visit(named, NO_IMAGE, ("",))
    return walk.finish()

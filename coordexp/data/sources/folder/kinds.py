"""The format of one annotation file, by how it begins."""

import re
from pathlib import Path

from coordexp.data.coco.entries import SECTIONS
from coordexp.data.coco.json_text import read_utf8
from coordexp.data.sources.folder.found import HUGGING_FACE
from coordexp.data.sources.hugging_face.rows import METADATA_NAMES
from coordexp.data.unread_formats import head_of, unread_format
from coordexp.errors import DataError
from coordexp.files import lfs_problem

# What COCO publishes beside the boxes of things, and what Hugging Face's library writes beside the data.
_NOT_BOXES = re.compile(r"^(captions|panoptic|stuff|image_info|unlabeled)|^(dataset_infos?|dataset_dict|state)\.json$")
# Of records in our own form, or that of other trainers: these stand in a list of objects.
_OWN_NAMES = frozenset(("desc", "bbox_2d", "messages", "conversations"))


def may_be_annotations(path: Path) -> bool:
    if path.name.lower() in METADATA_NAMES:
        return True
    return path.suffix.lower() in (".json", ".jsonl") and not _NOT_BOXES.match(path.name.lower())


def is_hugging_face(path: Path) -> bool:
    """Return whether a file of records is that of an ``imagefolder``."""
    is_of_records = path.suffix.lower() in (".jsonl", ".csv", ".parquet")
    return is_of_records and file_kind(path) == HUGGING_FACE


def file_kind(path: Path) -> str:
    """Return the format of an annotation file by how it begins; "" for one without boxes.

    Raises:
        DataError: if it is a Git LFS pointer.
    """
    pointer = lfs_problem(path)
    if pointer:
        raise DataError(pointer)
    if path.suffix.lower() in (".csv", ".parquet"):
        return HUGGING_FACE if path.name.lower() in METADATA_NAMES else ""
    head = head_of(path)
    names = set(re.findall(r'"(\w+)"\s*:', head))
    if unread_format(path):
        return ""
    first_objects = re.search(r'"objects"\s*:\s*(.)', head)
    is_by_column = first_objects is not None and first_objects[1] == "{" and "ref" not in names
    if is_by_column or (path.name.lower() in METADATA_NAMES and "file_name" in names and not names & _OWN_NAMES):
        return HUGGING_FACE
    if names & {"messages", "conversations", "objects"} or ("image" in names and names & {"bbox", "bbox_2d"}):
        return "JSONL" if path.suffix.lower() == ".jsonl" else "JSON records"
    if head.startswith("{") and names & {"images", "annotations", "categories", "info", "licenses"}:
        content = read_utf8(path)
        if not all(f'"{section}"'.encode() in content for section in SECTIONS):
            return ""
        return "LVIS" if b'"neg_category_ids"' in content and b'"frequency"' in content else "COCO"
    return ""

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
# Keys of records in our own form, or in that of other trainers.
_KEYS_OF_RECORDS = frozenset(("desc", "bbox_2d", "messages", "conversations"))
_KEYS_OF_COCO = frozenset(("images", "annotations", "categories", "info", "licenses"))


def may_be_annotations(path: Path) -> bool:
    """Return whether a file may hold annotations, by its name."""
    if path.name.lower() in METADATA_NAMES:
        return True
    return path.suffix.lower() in (".json", ".jsonl") and not _NOT_BOXES.match(path.name.lower())


def is_hugging_face(path: Path) -> bool:
    """Return whether a file of records is the metadata file of an ``imagefolder``."""
    is_of_records = path.suffix.lower() in (".jsonl", ".csv", ".parquet")
    return is_of_records and file_kind(path) == HUGGING_FACE


def file_kind(path: Path) -> str:
    """Return the format of an annotation file by how it begins; "" for a file without boxes.

    Raises:
        DataError: if it is a Git LFS pointer.
    """
    pointer = lfs_problem(path)
    if pointer:
        raise DataError(pointer)
    if path.suffix.lower() in (".csv", ".parquet"):
        return HUGGING_FACE if path.name.lower() in METADATA_NAMES else ""
    if unread_format(path):
        return ""
    head = head_of(path)
    keys = set(re.findall(r'"(\w+)"\s*:', head))
    if _is_of_imagefolder(path, head, keys):
        return HUGGING_FACE
    has_objects = keys & {"messages", "conversations", "objects"}
    is_one_object_a_line = "image" in keys and keys & {"bbox", "bbox_2d"}
    if has_objects or is_one_object_a_line:
        return "JSONL" if path.suffix.lower() == ".jsonl" else "JSON records"
    if head.startswith("{") and keys & _KEYS_OF_COCO:
        return _coco_dialect(read_utf8(path))
    return ""


def _is_of_imagefolder(path: Path, head: str, keys: set[str]) -> bool:
    """Return whether a file of records is the metadata file of an ``imagefolder``.

    Its objects are lists by column (``"objects": {"bbox": [...]}``), as ms-swift's are, which have ``ref`` beside them.
    """
    first_objects = re.search(r'"objects"\s*:\s*(.)', head)
    has_columns = first_objects is not None and first_objects[1] == "{"
    if has_columns and "ref" not in keys:
        return True
    return path.name.lower() in METADATA_NAMES and "file_name" in keys and not keys & _KEYS_OF_RECORDS


def _coco_dialect(content: bytes) -> str:
    """Return COCO, or LVIS by its own fields; "" if a section is missing."""
    if not all(f'"{section}"'.encode() in content for section in SECTIONS):
        return ""
    return "LVIS" if b'"neg_category_ids"' in content and b'"frequency"' in content else "COCO"

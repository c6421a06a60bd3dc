"""Formats of detections that are recognised but not read: what each is, and what to export or write instead."""

from pathlib import Path

from coordexp.detection.forms.keys import Json, fields_of, is_object
from coordexp.errors import DataError

_LIST_OF_ENTRIES = "a JSON list of {image_id or file_name, category_name, bbox: [x, y, width, height], score}"
_BY_CONTENT = (
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "an array of numpy"),
    (b"PAR1", "a parquet file"),
    (b"SQLite format 3", "an SQLite database"),
)


def refuse_other_formats(content: bytes, path: Path) -> None:
    """Raise a DataError if a file is neither JSON nor lines of detections, naming its format and the way on.

    Args:
        content: of the file, unpacked.
        path: of the file, for its suffix and for messages.
    """
    start = content[:200].lstrip(b"\xef\xbb\xbf \r\n\t")
    suffix = path.suffix.lower()
    if content[:1] == b"\x80" or suffix in (".pkl", ".pickle"):
        raise DataError(
            f"{path}: a pickle, as mmdetection's tools/test.py --out writes; it is not read, because a pickle can run "
            "any program; take its COCO JSON: --cfg-options test_evaluator.outfile_prefix=results"
        )
    for magic, format_name in _BY_CONTENT:
        if start.startswith(magic):
            raise DataError(f"{path}: {format_name}, which is not read; expected {_LIST_OF_ENTRIES}")
    if start.startswith(b"<"):
        raise DataError(
            f"{path}: XML, as CVAT and Pascal VOC write annotations, which is not read as detections; export COCO's "
            f"JSON with scores, or write {_LIST_OF_ENTRIES}"
        )
    if suffix in (".csv", ".tsv") or _is_table(content):
        raise DataError(
            f"{path}: a table (CSV), whose columns no standard names; export COCO's results JSON, or with pandas: "
            'table.to_json("results.json", orient="records") with columns file_name, category_name, xmin, ymin, xmax, '
            "ymax and score"
        )


def _is_table(content: bytes) -> bool:
    """Return whether the first two lines have several commas each, and neither begins as JSON does."""
    first_lines = [line for line in content[:4000].splitlines() if line.strip()][:2]
    if len(first_lines) < 2:
        return False
    has_columns = all(line.count(b",") >= 4 for line in first_lines)
    begins_as_json = any(line.lstrip()[:1] in (b"[", b"{") for line in first_lines)
    return has_columns and not begins_as_json


def format_of_entry(entry: Json) -> str:
    """Return what an entry without a readable box seems to be, with the way on; "" if it is of no known format."""
    fields = fields_of(entry)
    if {"x", "y", "width", "height"} <= fields.keys() or {"x", "y", "w", "h"} <= fields.keys():
        return (
            "x and y are the centre in Roboflow's inference JSON and a corner elsewhere, so this is not guessed; write "
            "bbox: [x, y, width, height] and file_name in each entry, and read them with --frame px:cxcywh (centre) or "
            "px:xywh (corner)"
        )
    if {"bins", "expected"} <= fields.keys():
        return "this is objects.jsonl of an evaluation of coordexp; its detections.expected.json can be read instead"
    if "rectanglelabels" in fields or "fromname" in fields or "originalwidth" in fields:
        return "this is Label Studio's own JSON; export it as COCO"
    if "classtitle" in fields or is_object(fields.get("points")):
        return "this is Supervisely's format; export it as COCO"
    if "detectionboxes" in fields:
        return "TensorFlow's detection_boxes are y1, x1, y2, x2 in fractions; write boxes as x1, y1, x2, y2 in pixels"
    if "shapes" in fields or "shapetype" in fields:
        return "this is labelme's format; export it as COCO"
    if "itemid" in fields or ("attr" in fields and "annotations" in fields):
        return "this is Datumaro's format; export it as COCO"
    if "segmentation" in fields:
        return "these are outlines alone; expected boxes"
    if "shape" in fields or "polygon" in fields or "obb" in fields:
        return "rotated boxes and outlines are not read; expected boxes along the axes"
    return ""

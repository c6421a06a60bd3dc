"""Formats that are known and not read: an error names the format, and the export of the same tool that is read."""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

_HEAD_BYTES = 16_384
_DEPTH = 4
_FILES_TRIED = 200


class _Format(NamedTuple):
    """A format and how to recognise its files.

    Attributes:
        name: what a message calls it.
        endings: of its files.
        signs: regular expressions that all match near the beginning of its files.
        way_on: what to do instead.
    """

    name: str
    endings: tuple[str, ...]
    signs: tuple[str, ...]
    way_on: str


_ROBOFLOW_WAY = 'in Roboflow choose the export "COCO" or "YOLO"'
_CSV_WAY = (
    'export "COCO" or "YOLO" from the tool that wrote it, or write a line of JSON for each picture: '
    '{"image": "a.jpg", "objects": [{"desc": "cat", "bbox_2d": [left, top, right, bottom]}], "bbox_format": "pixels"}'
)
# The first format that fits is named: the formats with the most particular signs come first.
_FORMATS = (
    _Format(
        'CVAT\'s own XML ("CVAT for video")',
        (".xml",),
        (r"<annotations[\s>]", r"<track[\s>]"),
        'in CVAT choose Export dataset and "COCO 1.0" (with images)',
    ),
    _Format(
        'CVAT\'s own XML ("CVAT for images")',
        (".xml",),
        (r"<annotations[\s>]", r"<image\s"),
        'in CVAT choose Export dataset and "COCO 1.0" (with images)',
    ),
    _Format(
        "CVAT's own XML",
        (".xml",),
        (r"<annotations[\s>]",),
        'in CVAT choose Export dataset and "COCO 1.0" (with images)',
    ),
    _Format(
        "Datumaro's JSON",
        (".json",),
        (r'"items"\s*:\s*\[', r'"(categories|infos|media_type|dm_format_version)"\s*:'),
        'in CVAT choose "COCO 1.0" for "Datumaro 1.0", or run: datum convert -i FOLDER -if datumaro -f coco -o NEW',
    ),
    _Format(
        "Supervisely's JSON",
        (".json",),
        (r'"(geometryType|classTitle|classId)"\s*:|"exterior"\s*:|"projectType"\s*:',),
        'in Supervisely run the app "Export to COCO" (or "Convert Supervisely to YOLO")',
    ),
    _Format(
        "JSON of Roboflow inference",
        (".json", ".jsonl"),
        (r'"predictions"\s*:\s*[\[{]', r'"(confidence|class_id|detection_id)"\s*:'),
        f"it holds predictions, no labels; {_ROBOFLOW_WAY} of the project itself",
    ),
    _Format(
        "LabelMe's JSON",
        (".json",),
        (r'"shapes"\s*:\s*\[', r'"(imagePath|imageData|shape_type)"\s*:'),
        "run: labelme2coco FOLDER, or labelme2yolo --json_dir FOLDER",
    ),
    _Format(
        "JSON of the VGG Image Annotator (VIA)",
        (".json",),
        (r'"(_via_img_metadata|shape_attributes|_via_settings)"\s*:',),
        'in VIA choose Annotation, "Export Annotations (COCO format)"',
    ),
    _Format(
        "Label Studio's JSON",
        (".json",),
        (r'"(rectanglelabels|from_name|annotations|completions)"\s*:', r'"(to_name|rectanglelabels|completed_by)"\s*:'),
        'in Label Studio choose the export "COCO" or "YOLO with Images"',
    ),
    _Format(
        "Apple's CreateML JSON",
        (".json",),
        (r'"coordinates"\s*:\s*\{', r'"label"\s*:'),
        _ROBOFLOW_WAY,
    ),
    _Format(
        "V7's Darwin JSON",
        (".json",),
        (r'"bounding_box"\s*:\s*\{', r'"(annotations|slots|item)"\s*:'),
        'in V7 choose the export "COCO"',
    ),
    _Format(
        "BDD100K's (Scalabel's) JSON",
        (".json",),
        (r'"box2d"\s*:\s*\{',),
        "run: python -m scalabel.label.to_coco -i FILE -o NEW",
    ),
    _Format(
        "Labelbox's JSON",
        (".json", ".ndjson"),
        (r'"(data_row|Labeled Data)"\s*:', r'"(projects|Label|global_key)"\s*:'),
        "convert it with Labelbox's own COCO exporter (labelbox.data.serialization)",
    ),
    _Format(
        "a data set that Hugging Face's save_to_disk wrote (Arrow)",
        (".arrow",),
        (),
        "write parquet: load_from_disk(FOLDER)[SPLIT].to_parquet('data/SPLIT-00000-of-00001.parquet')",
    ),
    _Format("TensorFlow's TFRecord", (".tfrecord", ".tfrecords", ".record"), (), _ROBOFLOW_WAY),
    _Format("CSV of Roboflow", (".csv",), (r"^\W*filename,width,height,class,xmin",), _ROBOFLOW_WAY),
    _Format("CSV", (".csv", ".tsv"), (), _CSV_WAY),
)
_ENDINGS = frozenset(ending for known_format in _FORMATS for ending in known_format.endings)


def head_of(path: Path) -> str:
    """Return the beginning of a text file, without a byte-order mark or leading white space."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return head.decode(encoding, "ignore").lstrip()


def unread_format(path: Path) -> str:
    """Return the sentence on a file in a format that is known and not read; "" for any other file."""
    ending = path.suffix.lower()
    formats = [known_format for known_format in _FORMATS if ending in known_format.endings]
    if not formats or not path.is_file():
        return ""
    head = head_of(path)
    for known_format in formats:
        if all(re.search(sign, head) for sign in known_format.signs):
            return f"{path}: {known_format.name}, which is not read: {known_format.way_on}"
    return ""


def unread_format_below(folder: Path) -> str:
    """Return the sentence on the first file below a folder in such a format; "" without one."""
    for path in islice(_files_below(folder, _DEPTH), _FILES_TRIED):
        sentence = unread_format(path)
        if sentence:
            return sentence
    return ""


def _files_below(folder: Path, depth: int) -> Iterator[Path]:
    """Yield files that may hold labels: the files of a folder before those further down."""
    entries = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".")]
    yield from (entry for entry in entries if entry.suffix.lower() in _ENDINGS)
    if depth == 0:
        return
    for entry in entries:
        if entry.is_dir():
            yield from _files_below(entry, depth - 1)

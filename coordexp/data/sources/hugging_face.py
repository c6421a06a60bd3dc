"""Hugging Face's data sets of boxes: an ``imagefolder`` with its metadata file, or parquet files with their pictures.

A record names a picture and its objects: ``{"file_name": "a.jpg", "objects": {"bbox": [[x, y, width, height]],
"categories": [0]}}``, boxes in pixels as COCO has them. Categories are names, or numbers whose names stand in the
schema of the parquet files or in the card of the data set (``README.md``).
"""

import ast
import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeGuard

import msgspec

from coordexp.config.yaml_file import parse_foreign
from coordexp.data.coco_file import CocoFile, id_of, read_unmarked
from coordexp.data.image_folder import PICTURES, ImageFolder
from coordexp.data.sources.coco import CocoSource
from coordexp.data.sources.pictures import Labelled, coco_of, read_text
from coordexp.errors import DataError, counted, is_name, kind_of, show
from coordexp.files import kept_json, lfs_problem, replace_directory, write_json
from coordexp.stages import report_stage

METADATA_NAMES = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
_NAME_KEYS = ("file_name", "image", "image_path", "path")
_BOX_KEYS = ("bbox", "bboxes", "boxes", "box")
_CATEGORY_KEYS = (
    *("category", "categories", "category_name", "category_id", "category_ids", "label", "labels"),
    *("class", "classes", "class_name", "class_label", "class_labels", "name", "names"),
)
_CARD = "README.md"
_PICTURES_MADE = ".unpacked.json"
_ENDINGS = ((b"\xff\xd8", ".jpg"), (b"\x89PNG", ".png"), (b"RIFF", ".webp"), (b"GIF8", ".gif"), (b"BM", ".bmp"))
_BATCH_ROWS = 256
_CSV_LIMIT = 2**27  # characters of a cell; Python's own limit is 131,072, about 2,000 boxes

Corners = tuple[float, float, float, float]


class _Row(NamedTuple):
    """A record, where it stands, and why it cannot be read; "" if it can."""

    where: str
    record: Mapping[str, object]
    problem: str = ""


@dataclass(frozen=True)
class HuggingFaceSource(CocoSource):
    """A split as an ``imagefolder``: its metadata file is ``annotations``, its pictures are files in ``images``."""

    within: str = ""  # the folder of the split's pictures, where one file holds several splits
    card_folder: Path | None = None  # where a card of the data set may be
    is_converted = True

    def file(self) -> CocoFile:
        folder = ImageFolder(self.images)
        pictures: list[Labelled] = []
        bad: list[str] = []
        names = class_names(self.card_folder or self.annotations.parent)
        for row in _metadata_rows(self.annotations):
            try:
                if row.problem:
                    raise DataError(row.problem)
                name = _picture_name(row.record)
                if isinstance(name, str) and not name.startswith(self.within):
                    continue
                boxes = boxes_of(row.record, names)
                pictures.append(Labelled(folder.locate(name), _size(row.record), boxes))
            except DataError as error:
                bad.append(f"{row.where}: {error}")
        notes = [*folder.notes, *_notes_on_names(pictures, names)]
        return coco_of(self.annotations, pictures, categories=names, bad=bad, notes=notes)


def picture_names(metadata: Path) -> Iterator[str]:
    """Yield the names of pictures in a metadata file; what cannot be read is said where it is read as a whole."""
    for row in _metadata_rows(metadata):
        name = _picture_name(row.record)
        if isinstance(name, str):
            yield name


def _metadata_rows(path: Path) -> Iterator[_Row]:
    match path.suffix.lower():
        case ".csv":
            return _csv_rows(path)
        case ".parquet":
            return _parquet_rows([path])
        case _:
            return _json_rows(path)


@dataclass(frozen=True)
class ParquetSource(CocoSource):
    """A split as parquet files; ``images`` is the folder into which the pictures are unpacked before they are read.

    ``annotations`` is the folder of the parquet files.
    """

    shards: tuple[Path, ...] = ()
    card_folder: Path | None = None
    is_converted = True

    @property
    def given_images(self) -> Path:
        return self.annotations  # the pictures are inside the files

    def file(self) -> CocoFile:
        picture_names = unpack_pictures(self.shards, self.images)
        names = names_in_schema(self.shards[0]) or class_names(self.card_folder or self.annotations)
        pictures: list[Labelled] = []
        bad: list[str] = []
        for name, row in zip(picture_names, _parquet_rows(self.shards), strict=True):
            try:
                if not name:
                    raise DataError(
                        "image holds no bytes: expected the pictures inside the files, as push_to_hub writes them, or "
                        "to_parquet of a data set whose pictures are embedded"
                    )
                pictures.append(Labelled(name, _size(row.record), boxes_of(row.record, names)))
            except DataError as error:
                bad.append(f"{row.where}: {error}")
        return coco_of(self.annotations, pictures, categories=names, bad=bad, notes=_notes_on_names(pictures, names))


def boxes_of(record: Mapping[str, object], names: Sequence[str]) -> list[tuple[str, Corners]]:
    """Return the category and the corners in pixels of each object of a record.

    Args:
        record: of a metadata file, or of a row of a parquet file.
        names: of the classes, in the order of their numbers; empty where nothing names them.

    Raises:
        DataError: if the record has no boxes that are known: one without objects has empty lists.
    """
    boxes, categories = _columns(record)
    if len(boxes) != len(categories):
        raise DataError(f"{counted(len(boxes), 'box')} and {len(categories)} categories, expected one for each")
    objects: list[tuple[str, Corners]] = []
    for place, (box, category) in enumerate(zip(boxes, categories, strict=True)):
        if not isinstance(box, list) or len(box) != 4 or not all(map(_is_finite, box)):
            raise DataError(f"box {place} is {show(box)}, expected four numbers [x, y, width, height]")
        x, y, width, height = map(float, box)
        objects.append((_category_name(category, names), (x, y, x + width, y + height)))
    return objects


def _columns(record: Mapping[str, object]) -> tuple[list[object], list[object]]:
    """Return the boxes and the categories of a record, whichever way its objects are written."""
    objects = _value(record.get("objects"))
    if objects is None and "objects" not in record:
        objects = {key: _value(value) for key, value in record.items()}  # without a key of their own
    if isinstance(objects, list):
        if not all(isinstance(item, dict) for item in objects):
            raise DataError(f"objects is {show(objects)}, expected objects with bbox and category")
        return [_of_keys(item, _BOX_KEYS) for item in objects], [_of_keys(item, _CATEGORY_KEYS) for item in objects]
    if not isinstance(objects, dict):
        raise DataError(f"objects is {kind_of(objects)}, expected bbox and category; without objects: empty lists")
    boxes, categories = _of_keys(objects, _BOX_KEYS), _of_keys(objects, _CATEGORY_KEYS)
    for value, keys in ((boxes, _BOX_KEYS), (categories, _CATEGORY_KEYS)):
        if not isinstance(value, list):
            there = ", ".join(map(str, objects)) or "nothing"
            raise DataError(f"its objects hold {there}; expected a list under {keys[0]} (or {', '.join(keys[1:4])})")
    assert isinstance(boxes, list)
    assert isinstance(categories, list)
    return boxes, categories


def _of_keys(item: Mapping[str, object], keys: Sequence[str]) -> object:
    key = next((key for key in keys if key in item), None)
    return None if key is None else item[key]


def _value(value: object) -> object:
    """Return what a cell of a CSV file means, which holds JSON, or Python's own way to write lists."""
    if not isinstance(value, str) or value.strip()[:1] not in ("[", "{"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(value.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return value


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


def _category_name(value: object, names: Sequence[str]) -> str:
    number = id_of(value) if isinstance(value, float) else value
    if type(number) is int and number >= 0:
        if names and number >= len(names):
            raise DataError(f"category {number} is not among the {len(names)} that are named")
        return names[number] if names else f"class {number}"
    if isinstance(number, str) and is_name(number.strip()):
        return number.strip()
    raise DataError(f"category is {show(value)}, expected a name, or a number from 0")


def _notes_on_names(pictures: Sequence[Labelled], names: Sequence[str]) -> list[str]:
    if names or not any(re.fullmatch(r"class \d+", name) for picture in pictures for name, _ in picture.boxes):
        return []
    return [
        "categories are numbers that nothing names, and are called class 0, class 1, ...; a README.md with "
        "dataset_info and class_label names them"
    ]


def _picture_name(record: Mapping[str, object]) -> object:
    name = _of_keys(record, _NAME_KEYS)
    return name.get("path") if isinstance(name, dict) else name


def _size(record: Mapping[str, object]) -> tuple[int, int] | None:
    width, height = id_of(record.get("width")), id_of(record.get("height"))
    if type(width) is int and type(height) is int and min(width, height) > 0:
        return width, height
    return None


def _json_rows(path: Path) -> Iterator[_Row]:
    content = read_unmarked(path)
    if content.lstrip()[:1] == b"[":
        try:
            entries = msgspec.json.decode(content, type=list[msgspec.Raw])
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: not valid JSON ({error}); is the file complete?") from None
        lines = [bytes(entry) for entry in entries]
    else:
        lines = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path.name}: line {number}"
        try:
            record: object = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield _Row(where, {}, f"not valid JSON ({error})")
            continue
        if isinstance(record, dict):
            yield _Row(where, record)
        else:
            yield _Row(where, {}, f"the record is {kind_of(record)}, expected an object")


def _csv_rows(path: Path) -> Iterator[_Row]:
    csv.field_size_limit(_CSV_LIMIT)
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    try:
        for row in reader:
            yield _Row(f"{path.name}: line {reader.line_num}", row)
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.line_num}: not valid CSV ({error})") from None


def _parquet_rows(shards: Sequence[Path]) -> Iterator[_Row]:
    """Yield the rows of parquet files without their pictures."""
    for shard in shards:
        file = _opened(shard)
        columns = [name for name in file.schema_arrow.names if name != "image"]
        start = 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
            rows: list[dict[str, object]] = batch.to_pylist()
            yield from (_Row(f"{shard.name}: row {start + at}", row) for at, row in enumerate(rows))
            start += len(rows)


def _opened(path: Path):  # noqa: ANN202 - pyarrow has no types
    """Open a parquet file; a DataError says that it is none, or cut short."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pointer = lfs_problem(path)
    if pointer:
        raise DataError(pointer)
    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: not a whole parquet file ({reason}); is the file complete?") from None


def has_boxes(path: Path) -> bool:
    """Return whether a parquet file holds pictures with boxes."""
    schema = _opened(path).schema_arrow
    return "image" in schema.names and re.search(r"\bb?box(es)?\b", str(schema)) is not None


def unpack_pictures(shards: Sequence[Path], folder: Path) -> list[str]:
    """Write the pictures of parquet files to a folder, unless they are there, and return the name of each row's.

    A row without a picture has the name "". The folder is whole or absent.
    """
    stats = {shard: shard.stat() for shard in shards}
    made_of = [[shard.name, stat.st_size, stat.st_mtime_ns] for shard, stat in stats.items()]
    known = kept_json(folder / _PICTURES_MADE)
    known_names = known.get("names") if isinstance(known, dict) and known.get("made_of") == made_of else None
    if isinstance(known_names, list):
        return [str(name) for name in known_names]
    num_rows = sum(_opened(shard).metadata.num_rows for shard in shards)
    names: list[str] = []
    with replace_directory(folder) as building:
        taken: set[str] = set()
        for shard in shards:
            for batch in _opened(shard).iter_batches(batch_size=_BATCH_ROWS, columns=["image"]):
                for picture in batch.column("image").to_pylist():
                    name, content = _packed_picture(picture, len(names), taken)
                    if content is not None:
                        (building / name).write_bytes(content)
                    taken.add(name)
                    names.append(name)
                report_stage("pictures unpacked", len(names), num_rows)
        write_json(building / _PICTURES_MADE, {"made_of": made_of, "names": names})
    return names


def _packed_picture(picture: object, place: int, taken: set[str]) -> tuple[str, bytes | None]:
    """Return the name and the bytes of the picture of a row, which may say its name, alone or twice."""
    content = picture.get("bytes") if isinstance(picture, dict) else picture
    if not isinstance(content, bytes) or not content:
        return "", None
    said = picture.get("path") if isinstance(picture, dict) else None
    name = PurePosixPath(said.replace("\\", "/")).name if isinstance(said, str) else ""
    if PurePosixPath(name).suffix.lower() in PICTURES and is_name(name) and name not in taken:
        return name, content
    ending = next((ending for head, ending in _ENDINGS if content.startswith(head)), ".jpg")
    return f"{place:07d}{ending}", content


def names_in_schema(shard: Path) -> list[str]:
    """Return the names of the classes as the ``datasets`` library writes them into a parquet file; else none."""
    metadata: dict[bytes, bytes] = _opened(shard).schema_arrow.metadata or {}
    try:
        features: object = json.loads(metadata.get(b"huggingface", b"null"))
    except ValueError:
        return []
    return _names_below(features)


@lru_cache(maxsize=16)
def class_names(folder: Path) -> list[str]:
    """Return the names of the classes of a card beside a data set, or one or two folders up; none without one."""
    for place in (folder, *folder.parents[:2]):
        card = place / _CARD
        if card.is_file():
            match = re.match(r"---\n(.*?)\n---", read_text(card), re.DOTALL)
            try:
                names = _names_below(parse_foreign(match[1])) if match is not None else []
            except DataError:
                names = []
            if names:
                return names
    return []


def _names_below(value: object) -> list[str]:
    """Return the first list of class names below a description of features, of the objects if it has such."""
    objects = _feature_of_objects(value)
    return _first_names(value if objects is None else objects)


def _feature_of_objects(value: object) -> object:
    """Return the description of the column ``objects``, of a schema or of a card; None without one."""
    if isinstance(value, dict):
        if "objects" in value:
            return value["objects"]
        if value.get("name") == "objects":
            return value
        value = list(value.values())
    if not isinstance(value, list):
        return None
    return next((found for found in map(_feature_of_objects, value) if found is not None), None)


def _number_of(key: object) -> int:
    return int(str(key)) if str(key).isdigit() else 0


def _first_names(value: object) -> list[str]:
    if isinstance(value, list):
        return next((names for names in map(_first_names, value) if names), [])
    if not isinstance(value, dict):
        return []
    names = value.get("names")
    if isinstance(names, dict):
        names = [names[key] for key in sorted(names, key=_number_of)]
    if isinstance(names, list) and names:
        return [str(name) for name in names]
    return _first_names(list(value.values()))

"""Hugging Face's data sets of boxes: an ``imagefolder`` with its metadata file, or parquet files with their pictures.

A record names a picture and its objects: ``{"file_name": "a.jpg", "objects": {"bbox": [[x, y, width, height]],
"categories": [0]}}``. Boxes are in pixels as COCO has them. Categories are names, or numbers whose names stand in the
schema of the parquet files or in the card of the data set (``README.md``).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordexp.data.coco.file import CocoFile
from coordexp.data.coco.ids import id_of
from coordexp.data.images.folder import ImageFolder
from coordexp.data.sources.coco.source import CocoSource
from coordexp.data.sources.hugging_face.class_names import class_names, names_in_schema
from coordexp.data.sources.hugging_face.objects import boxes_of, value_of_keys
from coordexp.data.sources.hugging_face.parquet import unpack_pictures
from coordexp.data.sources.hugging_face.rows import metadata_rows, parquet_rows
from coordexp.data.sources.labelled import Labelled, coco_of
from coordexp.errors import DataError

_NAME_KEYS = ("file_name", "image", "image_path", "path")


@dataclass(frozen=True)
class HuggingFaceSource(CocoSource):
    """A split as an ``imagefolder``: its metadata file is ``annotations``, its pictures are files in ``images``.

    Attributes:
        within: the folder of the split's pictures, if one file holds several splits; it ends in a slash.
        card_folder: where a card of the data set may be; None for the folder of the metadata file.
    """

    within: str = ""
    card_folder: Path | None = None
    is_converted = True

    def file(self) -> CocoFile:
        """Return the entries of all pictures of the split."""
        folder = ImageFolder(self.images)
        pictures: list[Labelled] = []
        bad: list[str] = []
        names = class_names(self.card_folder or self.annotations.parent)
        for row in metadata_rows(self.annotations):
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
    """Yield the names of pictures in a metadata file; rows that cannot be read are passed over."""
    for row in metadata_rows(metadata):
        name = _picture_name(row.record)
        if isinstance(name, str):
            yield name


@dataclass(frozen=True)
class ParquetSource(CocoSource):
    """A split as parquet files; ``images`` is the folder into which the pictures are unpacked before they are read.

    Attributes:
        shards: the parquet files; ``annotations`` is their folder.
        card_folder: where a card of the data set may be; None for the folder of the files.
    """

    shards: tuple[Path, ...] = ()
    card_folder: Path | None = None
    is_converted = True

    @property
    def given_images(self) -> Path:
        return self.annotations  # the pictures are inside the files

    def file(self) -> CocoFile:
        """Unpack the pictures, and return their entries."""
        names_of_pictures = unpack_pictures(self.shards, self.images)
        names = names_in_schema(self.shards[0]) or class_names(self.card_folder or self.annotations)
        pictures: list[Labelled] = []
        bad: list[str] = []
        for name, row in zip(names_of_pictures, parquet_rows(self.shards), strict=True):
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


def _picture_name(record: Mapping[str, object]) -> object:
    name = value_of_keys(record, _NAME_KEYS)
    return name.get("path") if isinstance(name, dict) else name


def _size(record: Mapping[str, object]) -> tuple[int, int] | None:
    """Return width and height in pixels as a record says them; None if it does not."""
    width, height = id_of(record.get("width")), id_of(record.get("height"))
    if type(width) is int and type(height) is int and min(width, height) > 0:
        return width, height
    return None


def _notes_on_names(pictures: Sequence[Labelled], names: Sequence[str]) -> list[str]:
    """Return a note if categories are numbers that nothing names."""
    used_names = {name for picture in pictures for name, _ in picture.boxes}
    if names or not any(re.fullmatch(r"class \d+", name) for name in used_names):
        return []
    return [
        "categories are numbers that nothing names, and are called class 0, class 1, ...; a README.md with "
        "dataset_info and class_label names them"
    ]

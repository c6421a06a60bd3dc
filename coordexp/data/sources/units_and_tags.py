"""Units and tags of pictures: by a pattern in their paths, by fields of their records, or by a CSV file beside them."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from coordexp.config.schema.data import Data
from coordexp.data.coco.image_fields import Record, field_texts
from coordexp.data.sources.read_split import ReadSplit
from coordexp.data.sources.text_file import read_text
from coordexp.data.units import UnitRule
from coordexp.errors import DataError, counted, show

_FILE_COLUMNS = ("file", "file_name", "image", "filename")
_DELIMITERS = ",;\t"
_SHOWN = 3
_MAX_LISTED = 8


@dataclass(frozen=True)
class UnitsAndTags:
    """Where units and tags of pictures come from; each of the two may be nothing."""

    unit_by: str | None = None
    fields: tuple[str, ...] = ()  # of the image records, as tags
    table: "TagTable | None" = None  # a CSV of tags

    @classmethod
    def of(cls, data: Data) -> "UnitsAndTags":
        """Read the CSV file, if ``data.tags`` names one; a DataError says what is wrong with it."""
        if isinstance(data.tags, Path):
            return cls(data.unit_by, (), read_tag_table(data.tags))
        return cls(data.unit_by, data.tags or ())

    def added_to(self, read: ReadSplit, *, where: str) -> tuple[ReadSplit, list[str]]:
        """Return a split with its units and tags, and a sentence on what each reached.

        Args:
            read: the split.
            where: what it was read from, for messages.

        Raises:
            DataError: if a pattern, a field or a column is found in no picture.
        """
        remarks: list[str] = []
        arrays = read.arrays
        records = _records(read)
        tags = {name: _texts(field_texts(records, name, option="data.tags", where=where)) for name in self.fields}
        if self.table is not None:
            tags, num_without = self.table.of_pictures(arrays.names)
            if num_without:
                pictures = counted(len(arrays), "picture")
                remarks.append(f"{num_without:,} of {pictures} have no row in {self.table.path.name}")
        units: list[str] = []
        if self.unit_by is not None:
            units = self._units(self.unit_by, records, tags, where=where)
            remarks.append(_units_sentence(units, self.unit_by))
            tags.pop(self.unit_by, None)  # a unit is no slice
        return replace(read, arrays=replace(arrays, units=units, tags=tags)), remarks

    def _units(
        self, unit_by: str, records: Sequence[Record], tags: Mapping[str, Sequence[str]], *, where: str
    ) -> list[str]:
        """Return the unit of each picture; "" for one of its own."""
        rule = UnitRule.parse(unit_by, option="data.unit_by")
        if rule.pattern is None:
            if self.table is not None and unit_by in tags:
                return list(tags[unit_by])
            return _texts(field_texts(records, unit_by, option="data.unit_by", where=where))
        names = [str(record["file_name"]) for record in records]
        units = [rule.found_in(name) for name in names]
        if not any(units):
            shown = ", ".join(map(show, names[:_SHOWN]))
            raise DataError(
                f"{where}: data.unit_by {unit_by} is found in none of {counted(len(names), 'path')} of pictures, such "
                f"as {shown}; its first group has to be what the pictures of a unit share"
            )
        return _texts(units)


def _records(read: ReadSplit) -> list[Record]:
    """Return what is known of each picture; its name is its path below the folder of the pictures."""
    arrays = read.arrays
    named = zip(arrays.image_ids.tolist(), arrays.names, strict=True)
    return [{**read.image_fields.get(image_id, {}), "file_name": name} for image_id, name in named]


def _texts(values: Sequence[str | None]) -> list[str]:
    return [value or "" for value in values]


def _units_sentence(units: Sequence[str], unit_by: str) -> str:
    num_alone = sum(not unit for unit in units)
    num_units = len({unit for unit in units if unit}) + num_alone
    sentence = f"{counted(len(units), 'image')} in {counted(num_units, 'unit')}, by data.unit_by {unit_by}"
    if num_alone:
        sentence += f"; {num_alone:,} of them name no unit, and are units of their own"
    return sentence


@dataclass(frozen=True)
class TagTable:
    """A CSV file of tags: for each picture, by its path or the end of it, the value of each column."""

    path: Path
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]] = field(repr=False)

    def of_pictures(self, names: Sequence[str]) -> tuple[dict[str, list[str]], int]:
        """Return the values of each column by picture, and how many pictures have no row."""
        by_last_name: dict[str, list[str]] = {}
        for written in self.rows:
            by_last_name.setdefault(PurePosixPath(written).name, []).append(written)
        empty = ("",) * len(self.columns)
        found: list[tuple[str, ...]] = []
        num_without = 0
        for name in names:
            row = self.rows.get(name)
            if row is None:
                # A row may name less or more of the path than stands in the annotations, if only one can be meant.
                alike = [other for other in by_last_name.get(PurePosixPath(name).name, []) if _ends_alike(other, name)]
                row = self.rows[alike[0]] if len(alike) == 1 else None
            num_without += row is None
            found.append(row or empty)
        if num_without == len(names):
            shown = ", ".join(map(show, [*self.rows][:_SHOWN]))
            raise DataError(
                f"{self.path}: none of its rows names a picture: it has {shown}, and the pictures are {show(names[0])} "
                "and others; its column file takes paths relative to the image folder"
            )
        values = {column: [row[number] for row in found] for number, column in enumerate(self.columns)}
        return values, num_without


def _ends_alike(first: str, second: str) -> bool:
    return first == second or first.endswith(f"/{second}") or second.endswith(f"/{first}")


def read_tag_table(path: Path) -> TagTable:
    """Read a CSV file with a column ``file`` and one for each tag; a DataError names file and line."""
    if not path.is_file():
        raise DataError(f"{path}: file not found (data.tags); a list of fields is written in brackets, as [weather]")
    text = read_text(path)
    header = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=header.count)
    lines = csv.reader(io.StringIO(text), delimiter=delimiter)
    names = [name.strip() for name in next(lines, [])]
    place = next((at for at, name in enumerate(names) if name.lower() in _FILE_COLUMNS), None)
    if place is None or len(names) < 2:
        shown = ", ".join(names[:_MAX_LISTED]) or "nothing"
        raise DataError(f"{path}: line 1: the columns are {shown}; expected file, and one for each tag")
    columns = tuple(name for at, name in enumerate(names) if at != place)
    rows: dict[str, tuple[str, ...]] = {}
    for cells in lines:
        if not cells:
            continue
        if len(cells) != len(names):
            raise DataError(
                f"{path}: line {lines.line_num}: {counted(len(cells), 'value')} for {counted(len(names), 'column')}"
            )
        picture = cells[place].strip().replace("\\", "/").removeprefix("./")
        values = tuple(cell.strip() for at, cell in enumerate(cells) if at != place)
        if rows.setdefault(picture, values) != values:
            raise DataError(f"{path}: line {lines.line_num}: {show(picture)} has other tags in an earlier line")
    return TagTable(path, columns, rows)

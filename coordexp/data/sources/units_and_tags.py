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
    """Where the units and the tags of pictures come from.

    Attributes:
        unit_by: a field, a column of ``table``, or a pattern with a group; None without units.
        fields: of the image records, as tags.
        table: a CSV file of tags.
    """

    unit_by: str | None = None
    fields: tuple[str, ...] = ()
    table: "TagTable | None" = None

    @classmethod
    def of(cls, data: Data) -> "UnitsAndTags":
        """Read the CSV file, if ``data.tags`` names one; a DataError says what is wrong with it."""
        if isinstance(data.tags, Path):
            return cls(data.unit_by, (), read_tag_table(data.tags))
        return cls(data.unit_by, data.tags or ())

    def added_to(self, read: ReadSplit, *, where: str) -> tuple[ReadSplit, list[str]]:
        """Return a split with its units and tags, and a sentence on how many pictures each reached.

        Args:
            read: the split.
            where: what it was read from, for messages.

        Raises:
            DataError: if a pattern, a field or a column fits no picture.
        """
        remarks: list[str] = []
        arrays = read.arrays
        records = _records(read)
        tags = {name: _texts(field_texts(records, name, option="data.tags", where=where)) for name in self.fields}
        if self.table is not None:
            tags, num_without_row = self.table.of_pictures(arrays.names)
            if num_without_row:
                num_pictures = counted(len(arrays), "picture")
                remarks.append(f"{num_without_row:,} of {num_pictures} have no row in {self.table.path.name}")
        units: list[str] = []
        if self.unit_by is not None:
            units = self._units(self.unit_by, records, tags, where=where)
            remarks.append(_units_sentence(units, self.unit_by))
            tags.pop(self.unit_by, None)  # a unit is no slice
        return replace(read, arrays=replace(arrays, units=units, tags=tags)), remarks

    def _units(
        self, unit_by: str, records: Sequence[Record], tags: Mapping[str, Sequence[str]], *, where: str
    ) -> list[str]:
        """Return the unit of each picture; "" for a picture that is one of its own."""
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
    """Return the fields of each picture; its name is its path below the folder of the pictures."""
    records: list[Record] = []
    for image_id, name in zip(read.arrays.image_ids.tolist(), read.arrays.names, strict=True):
        records.append({**read.image_fields.get(image_id, {}), "file_name": name})
    return records


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
    """A CSV file of tags.

    Attributes:
        path: the file.
        columns: names of the tags.
        rows: the value of each column, by the path of a picture or the end of it.
    """

    path: Path
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]] = field(repr=False)

    def of_pictures(self, names: Sequence[str]) -> tuple[dict[str, list[str]], int]:
        """Return the values of each column by picture, and how many pictures have no row.

        Args:
            names: paths of the pictures.

        Raises:
            DataError: if no row names a picture.
        """
        paths_of_last_name: dict[str, list[str]] = {}
        for written_path in self.rows:
            paths_of_last_name.setdefault(PurePosixPath(written_path).name, []).append(written_path)
        empty_row = ("",) * len(self.columns)
        rows: list[tuple[str, ...]] = []
        num_without_row = 0
        for name in names:
            row = self.rows.get(name)
            if row is None:
                # A row may name less or more of the path than the annotations do, if it can only mean one picture.
                same_last_name = paths_of_last_name.get(PurePosixPath(name).name, [])
                alike = [written_path for written_path in same_last_name if _ends_alike(written_path, name)]
                row = self.rows[alike[0]] if len(alike) == 1 else None
            num_without_row += row is None
            rows.append(row or empty_row)
        if num_without_row == len(names):
            shown = ", ".join(map(show, [*self.rows][:_SHOWN]))
            raise DataError(
                f"{self.path}: none of its rows names a picture: it has {shown}, and the pictures are {show(names[0])} "
                "and others; its column file takes paths relative to the image folder"
            )
        values = {column: [row[number] for row in rows] for number, column in enumerate(self.columns)}
        return values, num_without_row


def _ends_alike(first: str, second: str) -> bool:
    return first == second or first.endswith(f"/{second}") or second.endswith(f"/{first}")


def read_tag_table(path: Path) -> TagTable:
    """Read a CSV file with a column ``file`` and one column for each tag.

    Raises:
        DataError: if it cannot be read so; it names file and line.
    """
    if not path.is_file():
        raise DataError(f"{path}: file not found (data.tags); a list of fields is written in brackets, as [weather]")
    text = read_text(path)
    header = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=header.count)
    lines = csv.reader(io.StringIO(text), delimiter=delimiter)
    names = [name.strip() for name in next(lines, [])]
    file_columns = [column for column, name in enumerate(names) if name.lower() in _FILE_COLUMNS]
    if not file_columns or len(names) < 2:
        shown = ", ".join(names[:_MAX_LISTED]) or "nothing"
        raise DataError(f"{path}: line 1: the columns are {shown}; expected file, and one for each tag")
    file_column = file_columns[0]
    tag_names = tuple(name for column, name in enumerate(names) if column != file_column)
    rows: dict[str, tuple[str, ...]] = {}
    for cells in lines:
        if not cells:
            continue
        if len(cells) != len(names):
            raise DataError(
                f"{path}: line {lines.line_num}: {counted(len(cells), 'value')} for {counted(len(names), 'column')}"
            )
        picture = cells[file_column].strip().replace("\\", "/").removeprefix("./")
        values = tuple(cell.strip() for column, cell in enumerate(cells) if column != file_column)
        if rows.setdefault(picture, values) != values:
            raise DataError(f"{path}: line {lines.line_num}: {show(picture)} has other tags in an earlier line")
    return TagTable(path, tag_names, rows)

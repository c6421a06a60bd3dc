"""Metadata files (JSONL, CSV, parquet) and parquet files with pictures -> rows."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from coordexp.data.coco.json_text import read_unmarked
from coordexp.data.sources.hugging_face.parquet import BATCH_ROWS, opened_parquet
from coordexp.data.sources.text_file import read_text
from coordexp.errors import DataError, kind_of

METADATA_NAMES = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
_CSV_LIMIT = 2**27
"""Characters of a cell. Python's own limit is 131,072, which is about 2,000 boxes."""


class Row(NamedTuple):
    """A record, where it stands, and why it cannot be read; "" if it can."""

    where: str
    record: Mapping[str, object]
    problem: str = ""


def metadata_rows(path: Path) -> Iterator[Row]:
    """Return the rows of a metadata file, by its ending.

    Raises:
        DataError: if the file as a whole cannot be read.
    """
    match path.suffix.lower():
        case ".csv":
            return _csv_rows(path)
        case ".parquet":
            return parquet_rows([path])
        case _:
            return _json_rows(path)


def _json_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file of JSON: its lines, or the entries of its one list."""
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
            yield Row(where, {}, f"not valid JSON ({error})")
            continue
        if isinstance(record, dict):
            yield Row(where, record)
        else:
            yield Row(where, {}, f"the record is {kind_of(record)}, expected an object")


def _csv_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(_CSV_LIMIT)
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    try:
        for row in reader:
            yield Row(f"{path.name}: line {reader.line_num}", row)
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.line_num}: not valid CSV ({error})") from None


def parquet_rows(shards: Sequence[Path]) -> Iterator[Row]:
    """Yield the rows of parquet files without their pictures."""
    for shard in shards:
        file = opened_parquet(shard)
        columns = [name for name in file.schema_arrow.names if name != "image"]
        first_row = 0
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=columns):
            records: list[dict[str, object]] = batch.to_pylist()
            for number, record in enumerate(records, start=first_row):
                yield Row(f"{shard.name}: row {number}", record)
            first_row += len(records)

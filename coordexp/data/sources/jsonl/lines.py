"""A file of records -> its records: one on each line, or one list for the whole file."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

from coordexp.data.coco.json_text import read_unmarked
from coordexp.data.unread_formats import unread_format
from coordexp.errors import DataError, kind_of


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a file, undecoded, with their numbers from 1: its lines, or the entries of its one list.

    Raises:
        DataError: if the file is missing, of another format, or a list that is no JSON.
    """
    problem = unread_format(path)
    if problem:
        raise DataError(problem)
    content = read_unmarked(path)
    if content.lstrip()[:1] == b"[":
        try:
            entries = msgspec.json.decode(content, type=list[msgspec.Raw])
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: not valid JSON ({error}); is the file complete?") from None
        yield from ((number, bytes(entry)) for number, entry in enumerate(entries, start=1))
        return
    yield from ((number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip())


def parsed_record(line: bytes) -> dict[str, object]:
    """Return a line as an object, or raise a DataError that names its column or byte."""
    try:
        record = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        # Python's own parser takes NaN, which other programs write, and says where a line is damaged.
        record = _leniently_parsed(line)
    if not isinstance(record, dict):
        raise DataError(f"the record is {kind_of(record)}, expected an object")
    return record


def _leniently_parsed(line: bytes) -> object:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"byte {error.start} of the line is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise DataError(f"column {error.colno}: not valid JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid JSON ({error})") from None

"""Annotation files as text: their bytes in UTF-8 without a byte-order mark, and their JSON as Python values."""

import codecs
import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from coordexp.errors import DataError
from coordexp.files import read_content

_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

Pairs = list[tuple[str, object]]
"""The members of a JSON object, in the order of the file."""


def has_mark(path: Path) -> bool:
    """Return whether a file begins with a byte-order mark."""
    with path.open("rb") as file:
        return file.read(3).startswith(_BYTE_ORDER_MARKS)


def read_utf8(path: Path) -> bytes:
    """Return the bytes of a file in UTF-8, or in UTF-16 with its mark, packed by gzip or not.

    Raises:
        DataError: if the file is missing, or its bytes are not UTF-8.
    """
    content = read_unmarked(path)
    try:
        if not content.isascii():
            content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; expected a JSON file") from None
    return content


def read_unmarked(path: Path) -> bytes:
    """Return the bytes of a file without its byte-order mark; UTF-16 becomes UTF-8 if the mark says UTF-16."""
    content = read_content(path)
    if content.startswith(_BYTE_ORDER_MARKS[1:]):
        # If the text is damaged, the bytes stay: the mark itself is no UTF-8 either, and is reported as such.
        with contextlib.suppress(UnicodeError):
            return content.decode("utf-16").encode()
    return content.removeprefix(codecs.BOM_UTF8)


def parse_json(content: bytes, path: Path, make_object: Callable[[Pairs], object]) -> object:
    """Parse the UTF-8 bytes of a file with Python's own parser.

    Args:
        content: the bytes.
        path: the file, for messages.
        make_object: called with the members of each JSON object, innermost objects first.

    Raises:
        DataError: if they are not JSON; it names line and column.
    """
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=make_object)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise DataError(f"{path}: {place}: not valid JSON ({error.msg}); is the file complete?") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error})") from None


def read_without_outlines(path: Path) -> object:
    """Read a COCO file without its outlines: they are nine tenths of it, and never exist all at once here."""
    return parse_json(read_utf8(path), path, without_outlines)


def without_outlines(pairs: Pairs) -> dict[str, object]:
    return {name: value for name, value in pairs if name != "segmentation"}

"""Annotation files as JSON: bytes, byte-order marks and values."""

import codecs
import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from coordexp.errors import DataError
from coordexp.files import read_content

BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

Pairs = list[tuple[str, object]]


def has_mark(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(3).startswith(BYTE_ORDER_MARKS)


def read_without_outlines(path: Path) -> object:
    """Read a COCO file without its outlines: nine tenths of it, which never exist all at once."""
    return parse_json(read_utf8(path), path, without_outlines)


def read_utf8(path: Path) -> bytes:
    """Return the bytes of a file that holds UTF-8, or UTF-16 and says so by its mark, packed by gzip or not."""
    content = read_unmarked(path)
    try:
        if not content.isascii():
            content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; expected a JSON file") from None
    return content


def read_unmarked(path: Path) -> bytes:
    """Return the bytes of a file without its byte-order mark, in UTF-8 where that says UTF-16."""
    content = read_content(path)
    if content.startswith(BYTE_ORDER_MARKS[1:]):
        with contextlib.suppress(UnicodeError):  # then its first byte is no UTF-8 either
            return content.decode("utf-16").encode()
    return content.removeprefix(codecs.BOM_UTF8)


def parse_json(content: bytes, path: Path, make_object: Callable[[Pairs], object]) -> object:
    """Parse the UTF-8 bytes of ``path``; ``make_object`` gets the members of each object, innermost first."""
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=make_object)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise DataError(f"{path}: {place}: not valid JSON ({error.msg}); is the file complete?") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error})") from None


def without_outlines(pairs: Pairs) -> dict[str, object]:
    return {name: value for name, value in pairs if name != "segmentation"}

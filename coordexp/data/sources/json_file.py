"""JSON files from users -> values, or one sentence that says where the file is wrong."""

import json
from collections.abc import Callable
from pathlib import Path

from coordexp.errors import DataError
from coordexp.files import collector_paused

Pairs = list[tuple[str, object]]


def read_json(path: Path, *, drop: str) -> object:
    """Read a JSON file, without the entries named ``drop`` at any depth.

    They are dropped while parsing, so that they never exist all at once: outlines are nine tenths
    of a COCO file.

    Raises:
        DataError: if the file is missing, cannot be read, or is no JSON; with line and column.
    """
    return parse_json(read_utf8(path), path, lambda pairs: {key: value for key, value in pairs if key != drop})


def read_utf8(path: Path) -> bytes:
    """Return the bytes of a file that holds UTF-8.

    Raises:
        DataError: if the file is missing, cannot be read, or holds something else.
    """
    try:
        content = path.read_bytes()
        if not content.isascii():
            content.decode("utf-8")
    except FileNotFoundError:
        raise DataError(f"{path}: file not found") from None
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; expected a JSON file") from None
    return content


def parse_json(content: bytes, path: Path, make_object: Callable[[Pairs], object]) -> object:
    """Parse the UTF-8 bytes of ``path``; ``make_object`` gets the members of each object, innermost first.

    Raises:
        DataError: if they are no JSON; with line and column.
    """
    try:
        with collector_paused():
            return json.loads(content.decode("utf-8"), object_pairs_hook=make_object)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise DataError(f"{path}: {place}: not valid JSON ({error.msg}); is the file complete?") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error})") from None

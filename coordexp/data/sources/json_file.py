"""JSON files from users -> values, or one sentence that says where the file is wrong."""

import gc
import json
import reprlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from coordexp.errors import DataError

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60


def read_json(path: Path, *, drop: str) -> object:
    """Read a JSON file, without the entries named ``drop`` at any depth.

    They are dropped while parsing, so that they never exist all at once: outlines are nine tenths
    of a COCO file.

    Raises:
        DataError: if the file is missing, cannot be read, or is no JSON; with line and column.
    """

    def without_dropped(entry: dict[str, object]) -> dict[str, object]:
        entry.pop(drop, None)
        return entry

    try:
        text = path.read_text(encoding="utf-8")
        with collector_paused():
            return json.loads(text, object_hook=without_dropped)
    except FileNotFoundError:
        raise DataError(f"{path}: file not found") from None
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; expected a JSON file") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise DataError(f"{path}: {place}: not valid JSON ({error.msg}); is the file complete?") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error})") from None


def show(value: object) -> str:
    """Return ``value`` as it may stand in a message: short, however large or deep it is."""
    return "missing" if value is None else _REPR.repr(value)


def kind_of(value: object) -> str:
    """Return what ``value`` is, in a message about structure."""
    return "missing" if value is None else f"a {type(value).__name__}"


def is_text(value: object) -> bool:
    """Tell whether ``value`` is a string with visible characters that can be written as UTF-8.

    Half a surrogate pair, which JSON can hold, cannot.
    """
    if not isinstance(value, str) or not value.strip():
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def collector_paused() -> Generator[None]:
    """Stop cyclic garbage collection: it would walk millions of live JSON values again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

"""JSON files of frozen dataclasses: read with every field checked."""

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from coordexp.errors import DataError

_T = TypeVar("_T")


def read_model(kind: type[_T], path: Path, *, what: str) -> _T:
    """Read a dataclass that was written as JSON.

    Args:
        kind: the dataclass.
        path: of the file.
        what: its content in words, for the error.

    Raises:
        DataError: if the file is missing or holds something else.
    """
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path}: file not found") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise DataError(f"{path}: no {what} ({place or 'file'}: {first['msg']})") from None

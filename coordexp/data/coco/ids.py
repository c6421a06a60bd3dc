"""Ids in annotation files: whole numbers, or what other tools write in their place."""

from hashlib import sha256
from typing import Annotated, TypeAlias, TypeGuard

from msgspec import Meta

MAX_ID = 2**63 - 1
Id: TypeAlias = Annotated[int, Meta(ge=-MAX_ID, le=MAX_ID, description="a whole number")]
_HASH_DIGITS = 12
"""Of a hash in hexadecimal: 48 bits, so that every JSON reader keeps the number exact."""


def is_id(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number that fits an int64 array; ``true`` is none."""
    return type(value) is int and abs(value) <= MAX_ID


def id_of(value: object) -> object:
    """Return the number that an id means; what means no number is returned as it is.

    The number of ``7.0`` and ``" 7 "`` is 7. Other text (UUIDs) and numbers that are too large get a number that
    depends on the text alone, so that every reader of the file gives the same one.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_ID:
        return int(value)
    if type(value) is not int and not isinstance(value, str):
        return value
    text = str(value).strip()
    if not text:
        return value
    try:
        number = int(text)
    except ValueError:
        number = None
    if number is not None and abs(number) <= MAX_ID:
        return number
    return int(sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS], 16)

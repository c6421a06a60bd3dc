"""Ids in annotation files."""

from hashlib import sha256
from typing import Annotated, TypeAlias, TypeGuard

from msgspec import Meta

MAX_ID = 2**63 - 1
Id: TypeAlias = Annotated[int, Meta(ge=-MAX_ID, le=MAX_ID, description="a whole number")]


def is_id(value: object) -> TypeGuard[int]:
    return type(value) is int and abs(value) <= MAX_ID


def id_of(value: object) -> object:
    """Return the number that an id means: of text its number, else one that depends on the text alone (UUIDs)."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_ID:
        return int(value)
    if type(value) is int or isinstance(value, str):
        text = str(value).strip()
        try:
            number = int(text)
        except ValueError:
            number = MAX_ID + 1
        if abs(number) <= MAX_ID or not text:
            return number if text else value
        return int(sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12], 16)
    return value

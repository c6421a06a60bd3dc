"""A comparison as JSON and back, to the last bit: a report need not compute it twice."""

from pydantic import TypeAdapter, ValidationError

from coordexp.errors import DataError
from coordexp.statistics.results import Comparison

_COMPARISON = TypeAdapter(Comparison)


def to_json(comparison: Comparison) -> str:
    """Return a comparison as JSON; :func:`from_json` gives an equal one back."""
    return _COMPARISON.dump_json(comparison, indent=1).decode()


def from_json(text: str | bytes) -> Comparison:
    """Read what :func:`to_json` wrote.

    Raises:
        DataError: naming the first entry that is wrong.
    """
    try:
        return _COMPARISON.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the text"
        raise DataError(f"not a stored comparison: {where}: {first['msg']}") from None

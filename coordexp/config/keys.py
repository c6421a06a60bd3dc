"""The dotted keys of the schema, and the nearest one to a misspelt key."""

import difflib
import functools

from coordexp.config.schema import KEYS
from coordexp.config.schema.fields import Key


@functools.cache
def known_keys() -> tuple[str, ...]:
    """Return every dotted key of a configuration, sections included, in the order of the schema."""
    return tuple(dict.fromkeys(above for key in KEYS for above in (*_above(key), key)))


@functools.cache
def sections() -> frozenset[str]:
    """Return the dotted keys that have keys below them."""
    return frozenset(above for key in KEYS for above in _above(key))


def key_of(dotted: str) -> Key | None:
    """Return the key that a dotted name is, or lies in: ``evaluation.aliases.tv`` lies in ``evaluation.aliases``."""
    return next((KEYS[name] for name in (dotted, *reversed(_above(dotted))) if name in KEYS), None)


def is_key(key: str) -> bool:
    """Say whether a configuration can have a dotted key; below ``objective.extra`` its loss terms decide."""
    return key in known_keys() or key.startswith("objective.extra.")


def nearest(key: str) -> str | None:
    """Return the known key that a wrong dotted key most likely means, or None.

    Names beside it come first (``training.max_stpes``), then the same name elsewhere
    (``lambda_coord`` at the top means ``objective.lambda_coord``).
    """
    parent, _, name = key.rpartition(".")
    siblings = [known for known in known_keys() if known.rpartition(".")[0] == parent]
    by_name = {known.rpartition(".")[2]: known for known in siblings}
    close = difflib.get_close_matches(name, by_name, n=1)
    if close:
        return by_name[close[0]]
    same_name = [known for known in known_keys() if known.rpartition(".")[2] == name]
    return same_name[0] if len(same_name) == 1 else None


def names_below(parent: str) -> list[str]:
    """Return the key names of one section; ``""`` is the top."""
    return [known.rpartition(".")[2] for known in known_keys() if known.rpartition(".")[0] == parent]


def _above(dotted: str) -> list[str]:
    """Return the sections that a dotted name lies in, the outermost first."""
    parts = dotted.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]

"""A new loss term: a file with an example that works, and its test."""

import keyword
import re
from pathlib import Path

from coordexp.errors import ConfigError
from coordexp.losses.terms import loss_terms
from coordexp.scaffold.new_files import Places, filled, write_new

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_TAKEN = ("Term", "TermInputs", "Tensor")  # by what the file imports


def new_loss(name: str, places: Places) -> tuple[Path, Path]:
    """Write a loss term and its test.

    Args:
        name: of the term, of its file, and of what it is logged as.
        places: where both belong.

    Returns:
        The two files.

    Raises:
        ConfigError: if it is no name for a term, or one has it already, or a file cannot be written.
    """
    if _NAME.fullmatch(name) is None or keyword.iskeyword(name):
        raise ConfigError(
            f"got {name!r} as the name of a loss term; expected the name of a Python file: a small letter, then small "
            "letters, digits and underscores, 40 at most, and no word of the language"
        )
    if name in loss_terms():
        raise ConfigError(
            f"there is a loss term {name} already; give it a weight in objective.extra, or choose another name"
        )
    term, test = places.terms / f"{name}.py", places.test_of(name, "losses", "terms")
    values = {"NAME": name, "CLASS": _class_name(name)}
    write_new({term: filled("loss", **values), test: filled("loss_test", **values)})
    return term, test


def _class_name(name: str) -> str:
    words = "".join(part.capitalize() for part in name.split("_"))
    return f"{words}Term" if words in _TAKEN or keyword.iskeyword(words) else words

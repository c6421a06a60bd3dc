"""Turn what pydantic says about a tree into sentences a user can act on."""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from coordexp.config.keys import unknown_key
from coordexp.config.removed import removed_key
from coordexp.config.schema import ExperimentConfig
from coordexp.config.schema.fields import Section
from coordexp.config.schema.objective import IdRange
from coordexp.config.trees import Tree
from coordexp.errors import ConfigError, kind_of, masked

Where = Callable[[str], str]
Overrides = Mapping[str, str]
"""What errors call the override that gave a dotted key."""
_NONE: Overrides = MappingProxyType({})
_S = TypeVar("_S", bound=Section)

_EXPECTED = {
    "bool_type": "true or false",
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "path_type": "a path",
    "tuple_type": "a list",
    "too_short": "a list that is not empty",
    "too_long": "at most {max_length} entries",
    "dict_type": "a mapping",
    "model_type": "a mapping of keys",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "letters, digits, '_', '.' and '-', starting with a letter or digit",
}
_NOT_THIS_FORM = ("model_type", "tuple_type")
_MAX_SHOWN = 60


def validated(tree: Tree, *, where: Where, overrides: Overrides = _NONE) -> ExperimentConfig:
    """Validate a whole experiment, see :func:`check`."""
    return check(ExperimentConfig, tree, where=where, overrides=overrides)


def check(
    kind: type[_S],
    tree: Tree,
    *,
    where: Where,
    unknown: Callable[[str], str] = unknown_key,
    overrides: Overrides = _NONE,
) -> _S:
    """Validate the raw values of a section, or raise a ConfigError with one line for each thing that is wrong.

    Args:
        kind: the section.
        tree: its raw values.
        where: says where a dotted key was given (``""``: the whole).
        unknown: says what is wrong with a key that does not exist.
        overrides: keys of the command line; a rule over several keys is blamed on those of them that it names.
    """
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        details = _without_branches(error.errors(include_url=False))
    # "List too short" is dropped where its items are reported as invalid.
    with_items = {detail["loc"][:end] for detail in details for end in range(len(detail["loc"]))}
    said = [one for one in details if one["type"] != "too_short" or one["loc"] not in with_items]
    sentences = (_sentence(detail, where, unknown, overrides) for detail in said)
    raise ConfigError("\n  also ".join(dict.fromkeys(sentences)))


def described(detail: ErrorDetails, *, above: str = "") -> str:
    """Return e.g. ``training.max_steps: got 'many', expected an integer``; the location starts from ``above``."""
    key = f"{above}.{_key(detail)}" if above else _key(detail)
    shown = masked(repr(detail["input"]))
    shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."
    # What stands below tracking may be a secret in the wrong place.
    given = kind_of(detail["input"]) if "tracking" in key.split(".") else shown
    match detail["type"]:
        case "value_error":
            return f"{key}: {detail['msg'].removeprefix('Value error, ')}"
        case kind if kind in _EXPECTED:
            return f"{key}: got {given}, expected {_EXPECTED[kind].format(**detail.get('ctx', {}))}"
        case _:
            return f"{key}: got {given}: {detail['msg']}"


def _without_branches(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Leave out of an error's place which form of a value it is about, and the forms that were not meant at all."""
    kept: list[ErrorDetails] = []
    for detail in details:
        loc = detail["loc"]
        forms = [at for at, part in enumerate(map(str, loc)) if IdRange.__name__ in part or part.startswith("tuple[")]
        if not forms:
            kept.append(detail)
            continue
        at = forms[0]
        others = [other for other in details if other["loc"][:at] == loc[:at] and other["type"] not in _NOT_THIS_FORM]
        if detail["type"] not in _NOT_THIS_FORM or not others:
            kept.append(ErrorDetails({**detail, "loc": (*loc[:at], *loc[at + 1 :])}))
    return kept


def _sentence(detail: ErrorDetails, where: Where, unknown: Callable[[str], str], overrides: Overrides) -> str:
    place = _blamed_overrides(detail, overrides) or where(_key(detail))
    match [part for part in detail["loc"] if part != "[key]"]:
        case ["ablation", "groups", group, *inner] if inner or detail["type"] == "value_error":
            # Said of the configuration that a group makes, not of the mapping of groups.
            place, detail = f"{place}: group {group}", ErrorDetails({**detail, "loc": tuple(inner)})
        case _:
            pass
    key = _key(detail)
    match detail["type"]:
        case "extra_forbidden":
            return f"{place}: {unknown(key)}"
        case "literal_error" if (removed := removed_key(key, detail["input"])) is not None:
            return f"{place}: {removed}"
        case "missing":
            return f"{place}: {key} is missing"
        case "value_error" if not key:
            return f"{place}: {detail['msg'].removeprefix('Value error, ')}"
        case _:
            return f"{place}: {described(detail)}"


def _blamed_overrides(detail: ErrorDetails, overrides: Overrides) -> str:
    """Return the overrides whose keys a broken rule names; "" where it names none.

    A rule over several keys fails at the section that holds them, and that section's line in the file was right before
    the override. The message names its keys in full, or as the section calls them.
    """
    if detail["type"] != "value_error":
        return ""
    section, overlay = _key(detail), ""
    match [str(part) for part in detail["loc"]]:
        case ["ablation", "groups", group, *inner]:
            section, overlay = ".".join(inner), f"ablation.groups.{group}."
        case _:
            pass
    blamed: list[str] = []
    for given, place in overrides.items():
        key = given.removeprefix(overlay)
        names = _names_in_full(key)
        if section and key.startswith(f"{section}."):
            names += _names_in_full(key, below=section)
        if any(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w|\.\w)", detail["msg"]) for name in names):
            blamed.append(place)
    return ", ".join(dict.fromkeys(blamed))


def _names_in_full(key: str, *, below: str = "") -> list[str]:
    """Return a dotted key and the sections above it, up to ``below``, as a message may call them.

    A section of the root is left out: its name is an ordinary word (``data``, ``model``).
    """
    parts = (key.removeprefix(f"{below}.") if below else key).split(".")
    shortest = 1 if below else 2
    return [".".join(parts[:end]) for end in range(shortest, len(parts) + 1)]


def _key(detail: ErrorDetails) -> str:
    return ".".join(str(part) for part in detail["loc"] if part != "[key]")

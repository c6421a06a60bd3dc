"""Turns pydantic's errors about a configuration into sentences a user can act on.

pydantic names a place in the merged tree. The sentence names the place where the user wrote the value: a file and a
line, or an override of the command line.
"""

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
"""Dotted key -> where it was given, as ``file:line`` or as an override; of "" the whole configuration."""

Overrides = Mapping[str, str]
"""Dotted key of the command line -> what errors call the override that gave it."""

_NO_OVERRIDES: Overrides = MappingProxyType({})
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
"""Errors of a value with several forms that only say: it is not of this form."""

_MAX_SHOWN = 60


def validated(tree: Tree, *, where: Where, overrides: Overrides = _NO_OVERRIDES) -> ExperimentConfig:
    """Validate a whole experiment, see :func:`check`."""
    return check(ExperimentConfig, tree, where=where, overrides=overrides)


def check(
    kind: type[_S],
    tree: Tree,
    *,
    where: Where,
    unknown: Callable[[str], str] = unknown_key,
    overrides: Overrides = _NO_OVERRIDES,
) -> _S:
    """Validate the raw values of a section.

    Args:
        kind: the section.
        tree: its raw values.
        where: says where a dotted key was given.
        unknown: says what is wrong with a key that does not exist.
        overrides: keys of the command line; a rule over several keys is blamed on those of them that it names.

    Raises:
        ConfigError: with one line for each thing that is wrong.
    """
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        details = _without_forms(error.errors(include_url=False))
    places_of_parents = {detail["loc"][:end] for detail in details for end in range(len(detail["loc"]))}
    # Items that are invalid make a list too short; only the items are wrong.
    relevant = [detail for detail in details if detail["type"] != "too_short" or detail["loc"] not in places_of_parents]
    sentences = [_sentence(detail, where, unknown, overrides) for detail in relevant]
    raise ConfigError("\n  also ".join(dict.fromkeys(sentences)))


def described(detail: ErrorDetails, *, above: str = "") -> str:
    """Return a sentence on an error, such as ``training.max_steps: got 'many', expected an integer``.

    Args:
        detail: what pydantic says.
        above: the section from which the place of the error is counted.
    """
    key = f"{above}.{_key(detail)}" if above else _key(detail)
    if "tracking" in key.split("."):
        shown = kind_of(detail["input"])  # A value below tracking may be a secret in the wrong place.
    else:
        shown = masked(repr(detail["input"]))
        if len(shown) > _MAX_SHOWN:
            shown = f"{shown[:_MAX_SHOWN]}..."
    match detail["type"]:
        case "value_error":
            return f"{key}: {_message(detail)}"
        case kind if kind in _EXPECTED:
            return f"{key}: got {shown}, expected {_EXPECTED[kind].format(**detail.get('ctx', {}))}"
        case _:
            return f"{key}: got {shown}: {detail['msg']}"


def _without_forms(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Return errors without those about forms of a value that were not meant, and without the form in their place.

    ``custom.coord_offset.ids`` may be a mapping or a list. Of a wrong value pydantic reports each form, with its name
    in the place of the error. If one form fails below its top, it is the one that was meant.
    """
    relevant: list[ErrorDetails] = []
    for detail in details:
        place = detail["loc"]
        form_index = next((index for index, name in enumerate(map(str, place)) if _is_form(name)), None)
        if form_index is None:
            relevant.append(detail)
            continue
        above_form = place[:form_index]
        is_another_meant = any(
            other["loc"][:form_index] == above_form and other["type"] not in _NOT_THIS_FORM for other in details
        )
        if detail["type"] not in _NOT_THIS_FORM or not is_another_meant:
            relevant.append(ErrorDetails({**detail, "loc": (*above_form, *place[form_index + 1 :])}))
    return relevant


def _is_form(name: str) -> bool:
    return IdRange.__name__ in name or name.startswith("tuple[")


def _sentence(detail: ErrorDetails, where: Where, unknown: Callable[[str], str], overrides: Overrides) -> str:
    """Return where an error was made and what is wrong there; the arguments are those of :func:`check`."""
    place = _blamed_overrides(detail, overrides) or where(_key(detail))
    match [name for name in detail["loc"] if name != "[key]"]:
        case ["ablation", "groups", group, *below] if below or detail["type"] == "value_error":
            # The error is about the configuration that a group makes, not about the mapping of groups.
            place = f"{place}: group {group}"
            detail = ErrorDetails({**detail, "loc": tuple(below)})
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
            return f"{place}: {_message(detail)}"
        case _:
            return f"{place}: {described(detail)}"


def _blamed_overrides(detail: ErrorDetails, overrides: Overrides) -> str:
    """Return the overrides whose keys a broken rule names; "" if it names none.

    A rule over several keys fails at the section that holds them. That section's line in the file was right before the
    override, so naming it would mislead. The rule's message names its keys in full, or as the section calls them.
    """
    if detail["type"] != "value_error":
        return ""
    section = _key(detail)
    prefix_of_group = ""
    match [str(name) for name in detail["loc"]]:
        case ["ablation", "groups", group, *below]:
            section = ".".join(below)
            prefix_of_group = f"ablation.groups.{group}."
        case _:
            pass
    blamed: list[str] = []
    for overridden_key, place in overrides.items():
        key = overridden_key.removeprefix(prefix_of_group)
        names = _names_of(key, shortest=2)  # A section of the root is an ordinary word, such as data or model.
        if section and key.startswith(f"{section}."):
            names += _names_of(key.removeprefix(f"{section}."), shortest=1)
        if any(_is_named(name, detail["msg"]) for name in names):
            blamed.append(place)
    return ", ".join(dict.fromkeys(blamed))


def _names_of(key: str, *, shortest: int) -> list[str]:
    """Return a dotted key and the sections above it, those with fewer than ``shortest`` names left out."""
    names = key.split(".")
    return [".".join(names[:end]) for end in range(shortest, len(names) + 1)]


def _is_named(name: str, message: str) -> bool:
    """Return whether a message has a dotted name, and not only a longer name of which it is a piece."""
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\w|\.\w)", message) is not None


def _message(detail: ErrorDetails) -> str:
    return detail["msg"].removeprefix("Value error, ")


def _key(detail: ErrorDetails) -> str:
    """Return the dotted key of an error; pydantic adds "[key]" if a key of a mapping itself is wrong."""
    return ".".join(str(name) for name in detail["loc"] if name != "[key]")

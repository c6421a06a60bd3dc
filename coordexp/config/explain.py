"""Turn what pydantic says about a tree into sentences a user can act on."""

import difflib
from collections.abc import Callable, Iterable, Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from coordexp.config.keys import unknown_key
from coordexp.config.removed import removed_key
from coordexp.config.schema import ExperimentConfig
from coordexp.config.schema.objective import IdRange
from coordexp.config.trees import Tree
from coordexp.errors import ConfigError, kind_of, masked

Where = Callable[[str], str]

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


def validated(tree: Tree, *, where: Where) -> ExperimentConfig:
    """Validate a whole tree.

    Args:
        tree: the raw configuration.
        where: says where a dotted key was given (``""``: the configuration as a whole).

    Raises:
        ConfigError: with one sentence for each thing that is wrong, the first as headline.
    """
    try:
        return ExperimentConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(explain(error, where=where)) from None


def explain(error: ValidationError, *, where: Where) -> str:
    """Return one line for each error; the later ones are indented below the first."""
    details = _without_branches(error.errors(include_url=False))
    sentences = [_sentence(detail, where=where) for detail in details if not _follows(detail, details)]
    headline, *others = dict.fromkeys(sentences)
    return "\n".join([headline, *(f"  also {sentence}" for sentence in others)])


def nearest_of(name: str, choices: Iterable[str]) -> str:
    """Return a hint for a name that is not among ``choices``: the nearest one, or all of them."""
    known = list(choices)
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there is {', '.join(known) or 'none'}"


def described(detail: ErrorDetails, *, above: str = "") -> str:
    """Return e.g. ``training.max_steps: got 'many', expected an integer``.

    Args:
        detail: a wrong value.
        above: the dotted key that its location starts from.
    """
    key = f"{above}.{_key(detail)}" if above else _key(detail)
    # What stands below tracking may be a secret in the wrong place.
    given = kind_of(detail["input"]) if "tracking" in key.split(".") else _shown(detail["input"])
    match detail["type"]:
        case "value_error":
            return f"{key}: {detail['msg'].removeprefix('Value error, ')}"
        case kind if kind in _EXPECTED:
            expected = _EXPECTED[kind].format(**detail.get("ctx", {}))
            return f"{key}: got {given}, expected {expected}"
        case _:
            return f"{key}: got {given}: {detail['msg']}"


def _without_branches(details: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Leave out of an error's place which form of a value it is about, and the forms that were not meant at all."""
    kept: list[ErrorDetails] = []
    for detail in details:
        loc = detail["loc"]
        at = next((at for at, part in enumerate(loc) if _is_branch(part)), None)
        if at is None:
            kept.append(detail)
            continue
        others = [other for other in details if other["loc"][:at] == loc[:at] and other["type"] not in _NOT_THIS_FORM]
        if detail["type"] not in _NOT_THIS_FORM or not others:
            kept.append(ErrorDetails({**detail, "loc": (*loc[:at], *loc[at + 1 :])}))
    return kept


def _is_branch(part: int | str) -> bool:
    return isinstance(part, str) and (IdRange.__name__ in part or part.startswith("tuple["))


def _follows(detail: ErrorDetails, details: Sequence[ErrorDetails]) -> bool:
    """Say whether this is only the echo of another error: a list is called too short for want of valid items."""
    depth = len(detail["loc"])
    return detail["type"] == "too_short" and any(
        len(other["loc"]) > depth and other["loc"][:depth] == detail["loc"] for other in details
    )


def _sentence(detail: ErrorDetails, *, where: Where) -> str:
    place = where(_key(detail))
    match [part for part in detail["loc"] if part != "[key]"]:
        case ["ablation", "groups", group, *inner] if inner or detail["type"] == "value_error":
            # Said of the configuration that a group makes, not of the mapping of groups.
            place, detail = f"{place}: group {group}", ErrorDetails({**detail, "loc": tuple(inner)})
        case _:
            pass
    key = _key(detail)
    match detail["type"]:
        case "extra_forbidden":
            return f"{place}: {unknown_key(key)}"
        case "literal_error" if (removed := removed_key(key, detail["input"])) is not None:
            return f"{place}: {removed}"
        case "missing":
            return f"{place}: {key} is missing"
        case "value_error" if not key:
            return f"{place}: {detail['msg'].removeprefix('Value error, ')}"
        case _:
            return f"{place}: {described(detail)}"


def _key(detail: ErrorDetails) -> str:
    return ".".join(str(part) for part in detail["loc"] if part != "[key]")


def _shown(value: object) -> str:
    text = masked(repr(value))
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."

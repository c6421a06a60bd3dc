"""The scalar types of the schema, the base of its sections, and what every key declares of itself."""

import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.config import JsonDict

from coordexp.limits import MAX_COUNT, MAX_SEED

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$"
Name = Annotated[str, Field(pattern=NAME, max_length=100)]
Text = Annotated[str, Field(min_length=1)]


def _whole(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


WHOLE = BeforeValidator(_whole)
"""Also accepts a whole number that is written as ``1e3``. It stands last among annotations, so pydantic applies it
before the strict integer."""


def _distinct(values: tuple[object, ...]) -> tuple[object, ...]:
    if len(set(values)) < len(values):
        raise ValueError(f"must be distinct, got {list(values)}")
    return values


DISTINCT = AfterValidator(_distinct)
PositiveInt = Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT), WHOLE]
NaturalInt = Annotated[int, Field(strict=True, ge=0, le=MAX_COUNT), WHOLE]
Seed = Annotated[int, Field(strict=True, ge=0, le=MAX_SEED), WHOLE]
Positive = Annotated[float, Field(strict=True, gt=0)]
NotNegative = Annotated[float, Field(strict=True, ge=0)]
AboveOne = Annotated[float, Field(strict=True, gt=1)]
Fraction = Annotated[float, Field(strict=True, ge=0, le=1)]
BelowOne = Annotated[float, Field(strict=True, ge=0, lt=1)]

Role = Literal["results", "rounding", "input", "name", "record", "machine", "plan"]
"""What a key decides; ``docs/configuration.md`` says what each means."""

Part = Literal["data", "base", "weights", "tokens", "evaluation", "terms", "loss"]
"""What follows from a key.

- data: which images and annotations are used.
- base: the checkpoint with coordinate tokens that runs start from, and whether it can be used as asked.
- weights: what is trained on top of it, and how that starts.
- tokens: the training sequences and their order.
- evaluation: how a model is evaluated.
- terms: which loss terms are computed beside those of every run.
- loss: the loss, and nothing else of a run.
"""

_T = TypeVar("_T")


class Section(BaseModel):
    """Base of every section: no unknown key, no change after loading, no NaN or infinity.

    The text below a key is its description: what it does and what it trades.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True, use_attribute_docstrings=True
    )


def key(default: _T, role: Role, *, decides: Sequence[Part] = ()) -> _T:
    """Declare a key of a section: its default, what it decides of a run, and which parts of the run follow from it."""
    return Field(default=default, json_schema_extra=declaration(role, decides))


def declaration(role: Role, decides: Sequence[Part] = ()) -> JsonDict:
    """Return what a field keeps of its role, for a key without a default."""
    return {"role": role, "decides": list(decides)}


@dataclass(frozen=True)
class Key:
    """One key of a configuration, by its dotted name, and what it declares."""

    name: str
    role: Role
    decides: frozenset[Part]
    description: str
    is_path: bool


def declared_keys(root: type[Section], *, prefix: str = "") -> dict[str, Key]:
    """Return every key of a section and those below it by its dotted name, in the order of the schema."""
    keys: dict[str, Key] = {}
    for name, field in root.model_fields.items():
        dotted = f"{prefix}{name}"
        kinds = get_args(field.annotation) if isinstance(field.annotation, types.UnionType) else (field.annotation,)
        sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]
        has_own_value = len(sections) < len(kinds)  # as null, or a list instead of a section
        if has_own_value:
            declared = cast("dict[str, Any]", field.json_schema_extra or {})
            keys[dotted] = Key(
                name=dotted,
                role=declared["role"],
                decides=frozenset(declared["decides"]),
                description=" ".join((field.description or "").split()),
                is_path=Path in kinds,
            )
        for section in sections:
            keys |= declared_keys(section, prefix=f"{dotted}.")
    return keys

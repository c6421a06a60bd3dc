"""The scalar types of the schema, the base of its sections, and what every key declares of itself."""

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

from coordexp.limits import MAX_COUNT, MAX_SEED

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$"
Name = Annotated[str, Field(pattern=NAME, max_length=100)]
Text = Annotated[str, Field(min_length=1)]


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
"""Takes a whole number that is written as ``1e3``, too; it stands last."""
PositiveInt = Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT), WHOLE]
NaturalInt = Annotated[int, Field(strict=True, ge=0, le=MAX_COUNT), WHOLE]
Seed = Annotated[int, Field(strict=True, ge=0, le=MAX_SEED), WHOLE]
Positive = Annotated[float, Field(strict=True, gt=0)]
NotNegative = Annotated[float, Field(strict=True, ge=0)]
AboveOne = Annotated[float, Field(strict=True, gt=1)]
Fraction = Annotated[float, Field(strict=True, ge=0, le=1)]
BelowOne = Annotated[float, Field(strict=True, ge=0, lt=1)]

Role = Literal["results", "rounding", "input", "name", "record", "machine", "plan"]
"""What a key decides.

- results: the numbers of a run.
- rounding: their last bits only, by the order of a sum. Of the three keys that divide a step's images (batch size,
  accumulation, workers) this holds as long as their product stays.
- input: where something lies that a run reads. Its bytes are hashed, so a copy elsewhere is the same input.
- name: what a run is called.
- record: what is written down while a run goes on, and how often; none of its numbers.
- machine: where and how fast the work is done, and where its files go.
- plan: which runs there are, and which of them may be compared; nothing within a run.
"""

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
    """Base of every section: no unknown key, no change after loading, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)


def key(default: _T, role: Role, description: str, *, decides: Sequence[Part] = ()) -> _T:
    """Return the field of one key.

    Args:
        default: its value where no file gives one.
        role: what it decides.
        description: what it does and what it trades, in one sentence.
        decides: what follows from it.
    """
    return Field(default=default, description=description, json_schema_extra=declaration(role, decides))


def declaration(role: Role, decides: Sequence[Part] = ()) -> JsonDict:
    """Return what a field keeps of its role, for a key that has no default or has limits of its own."""
    return {"role": role, "decides": list(decides)}


@dataclass(frozen=True)
class Key:
    """One key of a configuration and what it declares.

    Attributes:
        name: dotted, as in ``training.max_steps``.
        role: what it decides.
        decides: what follows from it.
        description: what it does and what it trades.
        is_path: whether its value is a file or folder.
    """

    name: str
    role: Role
    decides: frozenset[Part]
    description: str
    is_path: bool


def declared_keys(root: type[Section], *, prefix: str = "") -> Mapping[str, Key]:
    """Return every key of a section and those below it by its dotted name, in the order of the schema.

    Raises:
        TypeError: if a key declares no role, or describes itself with no sentence.
    """
    return {found.name: found for found in _keys(root, prefix)}


def _keys(section: type[Section], prefix: str) -> Iterator[Key]:
    for name, field in section.model_fields.items():
        members = get_args(field.annotation) if isinstance(field.annotation, types.UnionType) else (field.annotation,)
        sections = [member for member in members if isinstance(member, type) and issubclass(member, Section)]
        if len(sections) < len(members):
            yield _declared(f"{prefix}{name}", field, is_path=Path in members)
        for inner in sections:
            yield from _keys(inner, f"{prefix}{name}.")


class _Declaration(BaseModel):
    role: Role
    decides: frozenset[Part]


def _declared(name: str, field: FieldInfo, *, is_path: bool) -> Key:
    try:
        found = _Declaration.model_validate(field.json_schema_extra)
    except ValidationError as error:
        raise TypeError(f"{name}: declares no role; expected one of {', '.join(get_args(Role))}") from error
    if not field.description or not field.description.endswith("."):
        raise TypeError(f"{name}: describes itself as {field.description!r}, expected a sentence")
    return Key(name, found.role, found.decides, field.description, is_path)

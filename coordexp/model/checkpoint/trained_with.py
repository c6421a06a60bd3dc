"""The image sizes and the instruction that a checkpoint was trained with, and should be used with.

A merged checkpoint has them in ``trained_with.json``, an adapter in its configuration. With other image sizes a model
loses nearly all of its AP, and nothing else in a checkpoint records them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from coordexp.data.prompt import TEMPLATE_ARGUMENTS
from coordexp.errors import CheckpointError
from coordexp.files import first_problem
from coordexp.model.checkpoint.directory import read_json

TRAINED_WITH = "trained_with.json"


@dataclass(frozen=True)
class TrainedWith:
    """How images and prompts were made in training.

    Attributes:
        prompt: the instruction.
        min_pixels: smaller images were enlarged to this area.
        max_pixels: larger images were shrunk to this area.
        template: arguments of the chat template.
    """

    prompt: str
    min_pixels: int
    max_pixels: int
    template: Mapping[str, bool] = field(default_factory=lambda: dict(TEMPLATE_ARGUMENTS))


_ADAPTER = TypeAdapter(TrainedWith)


def read_trained_with(checkpoint: Path) -> TrainedWith | None:
    """Return what a merged checkpoint was trained with; None if it does not say."""
    file = checkpoint / TRAINED_WITH
    return parse_trained_with(read_json(file), file) if file.is_file() else None


def parse_trained_with(values: object, file: Path) -> TrainedWith:
    """Return the values that a ``file`` holds as a :class:`TrainedWith`, or raise a CheckpointError that names it."""
    try:
        return _ADAPTER.validate_python(values)
    except ValidationError as error:
        raise CheckpointError(
            f"{file}: expected what training was done with: prompt, min_pixels, max_pixels ({first_problem(error)})"
        ) from None

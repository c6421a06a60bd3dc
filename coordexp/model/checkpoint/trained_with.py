"""What a trained checkpoint must be asked with: the image sizes and the instruction of its training.

A merged checkpoint keeps them in ``trained_with.json``, an adapter in its configuration. Other sizes than those of
training cost nearly all of AP, and nothing else of a checkpoint would say so.
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
    """What the images and the questions of a training were like.

    Attributes:
        min_pixels: smaller images were enlarged to so many pixels.
        max_pixels: larger ones were shrunk to so many.
        template: arguments of the chat template.
    """

    prompt: str
    min_pixels: int
    max_pixels: int
    template: Mapping[str, bool] = field(default_factory=lambda: dict(TEMPLATE_ARGUMENTS))


_ADAPTER = TypeAdapter(TrainedWith)


def read_trained_with(checkpoint: Path) -> TrainedWith | None:
    """Return what a merged checkpoint was trained with; None where it does not say."""
    file = checkpoint / TRAINED_WITH
    return parse_trained_with(read_json(file), file) if file.is_file() else None


def parse_trained_with(values: object, file: Path) -> TrainedWith:
    try:
        return _ADAPTER.validate_python(values)
    except ValidationError as error:
        raise CheckpointError(
            f"{file}: expected what training was done with: prompt, min_pixels, max_pixels ({first_problem(error)})"
        ) from None

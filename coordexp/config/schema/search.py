"""What a search needs to know: ranges of keys, how points are proposed, who stops early, and which images judge."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, model_validator

from coordexp.config.schema.fields import DISTINCT, PositiveInt, Section, Seed, key

Number = StrictInt | StrictFloat
Finite = Annotated[float, Field(strict=True)]
Method = Literal["grid", "random", "optuna"]


class Parameter(Section):
    """What one key may be: a range, or a list of values."""

    low: Finite | None = None
    high: Finite | None = None
    scale: Literal["linear", "log"] = "linear"
    num: PositiveInt | None = None  # points of a grid along this range
    values: Annotated[tuple[Number, ...], Field(min_length=1), DISTINCT] | None = None

    @model_validator(mode="after")
    def _is_a_range_or_a_list(self) -> "Parameter":
        if self.values is not None:
            if self.low is not None or self.high is not None or self.num is not None:
                raise ValueError("give either values, or low and high (and num for a grid)")
            return self
        if self.low is None or self.high is None or not self.low < self.high:
            raise ValueError(f"a range needs low below high, got low {self.low} and high {self.high}")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"a log scale needs low above 0, got {self.low}")
        return self

    @property
    def ends(self) -> tuple[Number, Number]:
        """The lowest and the highest value."""
        if self.values is not None:
            return min(self.values), max(self.values)
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    def place_of(self, value: Number) -> float:
        """Return where a value lies between the ends: 0 at the lowest, 1 at the highest, on the parameter's scale."""
        low, high = self.ends
        if self.scale == "log":
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)


def without_grid_values(space: Mapping[str, Parameter]) -> list[str]:
    """Return the keys of a space that do not say which points a grid has along them."""
    return [name for name, parameter in space.items() if parameter.values is None and not parameter.num]


def grid_size(space: Mapping[str, Parameter]) -> int:
    return math.prod(parameter.num or len(parameter.values or ()) for parameter in space.values())


class Asha(Section):
    """Stops trials early whose validation AP falls behind."""

    enabled: StrictBool = key(True, "results")
    """Stop trials early whose AP on the subset falls behind that of the other trials; ablation.tune without a section
    asha stops none."""
    grace_steps: PositiveInt | None = key(None, "results")
    """Steps up to the first decision; null: the first evaluation."""
    reduction_factor: Annotated[int, Field(ge=2, strict=False)] = key(3, "results")
    """One trial in this many continues at each decision."""


class TuningPart(Section):
    """Which part of the training images the search validates on."""

    num_images: PositiveInt | None = key(None, "results")
    """Training images that are held out to judge trials on, instead of a fraction."""
    fraction: Annotated[float, Field(strict=True, gt=0, lt=1)] | None = key(None, "results")
    """Share of the training images that is held out to judge trials on; 0.125 without a section tuning_split."""
    seed: Seed = key(0, "results")
    """Seed of the choice of these images."""

    @model_validator(mode="after")
    def _has_a_size(self) -> "TuningPart":
        if (self.num_images is None) == (self.fraction is None):
            raise ValueError("give num_images or fraction, one of them")
        return self

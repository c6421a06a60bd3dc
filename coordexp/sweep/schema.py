"""A sweep: which weights of one group are searched, how, and how the best are chosen."""

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, model_validator

from coordexp.config.schema.fields import DISTINCT, Name, PositiveInt, Section, Seed

Number = StrictInt | StrictFloat
Finite = Annotated[float, Field(strict=True)]


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
        if self.values is not None:
            return min(self.values), max(self.values)
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high


class Search(Section):
    """How points of the space are proposed."""

    method: Literal["grid", "random", "optuna"] = "grid"
    num_trials: PositiveInt | None = None  # of random and optuna; a grid has its own number
    seed: Seed = 0


class Asha(Section):
    """Stops trials early whose validation AP falls behind."""

    enabled: StrictBool = True
    grace_steps: PositiveInt | None = None  # the first decision; None: the first evaluation
    reduction_factor: int = Field(default=3, ge=2, strict=False)  # 1 in this many continues at each rung


class Winners(Section):
    """The best points are run again with seeds that the search has not seen."""

    num: PositiveInt = 2
    seeds: Annotated[tuple[Seed, ...], DISTINCT] = (1, 2, 3)


class TuningPart(Section):
    """Which part of the training images the search validates on."""

    num_images: PositiveInt | None = None
    fraction: Annotated[float, Field(strict=True, gt=0, lt=1)] | None = None
    seed: Seed = 0

    @model_validator(mode="after")
    def _has_a_size(self) -> "TuningPart":
        if (self.num_images is None) == (self.fraction is None):
            raise ValueError("give num_images or fraction, one of them")
        return self


class SweepConfig(Section):
    """A whole sweep file."""

    name: Name
    experiment: Path
    group: Name
    space: dict[str, Parameter] = Field(min_length=1)
    search: Search = Search()
    asha: Asha = Asha()
    winners: Winners = Winners()
    tuning_split: TuningPart = TuningPart(fraction=0.125)
    overrides: tuple[str, ...] = ()  # KEY=VALUE of the experiment

    @model_validator(mode="after")
    def _search_has_a_size(self) -> "SweepConfig":
        method, num_trials = self.search.method, self.search.num_trials
        if method != "grid" and num_trials is None:
            raise ValueError(f"search.method: {method} needs search.num_trials")
        if method == "grid" and num_trials is not None:
            raise ValueError(
                "search.num_trials has no effect on a grid; set num of each range, or search.method: random"
            )
        without = [key for key, parameter in self.space.items() if parameter.values is None and not parameter.num]
        if method == "grid" and without:
            raise ValueError(f"a grid needs space.{without[0]}.num, the number of points along this range")
        return self

    @property
    def num_points(self) -> int:
        if self.search.num_trials is not None:
            return self.search.num_trials
        return math.prod(parameter.num or len(parameter.values or ()) for parameter in self.space.values())

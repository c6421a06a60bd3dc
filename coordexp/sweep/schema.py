"""A sweep: which weights of one group are searched, how, and how the best are chosen."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from coordexp.config.schema.fields import DISTINCT, Name, PositiveInt, Section, Seed
from coordexp.config.schema.search import Asha, Method, Parameter, TuningPart, grid_size, without_grid_values


class Search(Section):
    """How points of the space are proposed."""

    method: Method = "grid"
    num_trials: PositiveInt | None = None  # for random and optuna; a grid has its own number of points
    seed: Seed = 0


class Winners(Section):
    """The best points are run again with seeds that the search has not seen."""

    num: PositiveInt = 2
    seeds: Annotated[tuple[Seed, ...], DISTINCT] = (1, 2, 3)


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
        method = self.search.method
        num_trials = self.search.num_trials
        if method != "grid" and num_trials is None:
            raise ValueError(f"search.method: {method} needs search.num_trials")
        if method == "grid" and num_trials is not None:
            raise ValueError(
                "search.num_trials has no effect on a grid; set num of each range, or search.method: random"
            )
        keys_without_num = without_grid_values(self.space)
        if method == "grid" and keys_without_num:
            raise ValueError(f"a grid needs space.{keys_without_num[0]}.num, the number of points along this range")
        return self

    @property
    def num_points(self) -> int:
        """Return how many trials the search has."""
        if self.search.num_trials is not None:
            return self.search.num_trials
        return grid_size(self.space)

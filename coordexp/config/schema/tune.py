"""Section ``ablation.tune``: every group is tuned with the same number of trials before the groups are compared."""

from collections.abc import Iterable, Mapping
from typing import cast

from pydantic import field_validator, model_validator

from coordexp.config.schema.fields import Name, PositiveInt, Section, Seed, key
from coordexp.config.schema.search import Asha, Method, Parameter, TuningPart, without_grid_values

SPACE = "ablation.tune.space"
GROUP_SPACES = "ablation.tune.groups"
_DOTS_OF_A_TERM = 2


class Tune(Section):
    """How every group is tuned before the comparison: the same plan for all."""

    space: dict[str, Parameter] = key({}, "results")
    """What is searched in every group that has the key: a list of values, or {low, high, scale, num}; any key of
    training, objective and custom that costs no other data, steps or evaluation."""
    groups: dict[Name, dict[str, Parameter]] = key({}, "results")
    """What is searched in single groups besides, {C: {objective.lambda_coord: [0.3, 1.0, 3.0]}}; within
    ablation.factor."""
    method: Method | None = key(None, "results")
    """How points are proposed: grid (all of them), random, or optuna (TPE, which learns from results). null: grid
    without num_trials, otherwise random."""
    num_trials: PositiveInt | None = key(None, "results")
    """Trials of each group, the group's own values being the first; null: as many as the grid has points."""
    max_steps: PositiveInt | None = key(None, "results")
    """Steps of a trial; null: as many as a run."""
    seed: Seed = key(1000, "results")
    """Seed of the draws and of the trials' runs; none of ablation.seeds, so that runs are no repeats of trials."""
    tuning_split: TuningPart = TuningPart(fraction=0.125)
    asha: Asha = Asha(enabled=False)

    @property
    def how(self) -> Method:
        """How points are proposed: by ``method``, or by what ``num_trials`` implies if it is null."""
        if self.method is not None:
            return self.method
        return "grid" if self.num_trials is None else "random"

    @property
    def tuned_keys(self) -> tuple[str, ...]:
        """Every key that may differ between groups because it is tuned."""
        keys = list(self.space)
        for space in self.groups.values():
            keys += space
        return tuple(dict.fromkeys(keys))

    def reduced(self, group: str) -> "Tune":
        """Return what concerns one group: a run knows nothing of the further spaces of others."""
        groups = {name: space for name, space in self.groups.items() if name == group}
        return self.model_copy(update={"groups": groups})

    @field_validator("space", mode="before")
    @classmethod
    def _space_has_dotted_keys(cls, space: object) -> object:
        return dotted_space(space)

    @field_validator("groups", mode="before")
    @classmethod
    def _spaces_have_dotted_keys(cls, spaces: object) -> object:
        if not isinstance(spaces, dict):
            return spaces
        return {name: dotted_space(space) for name, space in cast("dict[str, object]", spaces).items()}

    @model_validator(mode="after")
    def _has_a_size(self) -> "Tune":
        if self.how != "grid":
            if self.num_trials is None:
                raise ValueError(f"method: {self.how} needs num_trials, the number of trials of each group")
            if self.num_trials < 2:
                raise ValueError("num_trials: 1 is the group's own values alone, which tunes nothing; give 2 or more")
            return self
        if self.num_trials is not None:
            raise ValueError(
                "num_trials has no effect on a grid; set num of each range or list its values, or method: random"
            )
        open_keys = without_grid_values(self.space)
        for space in self.groups.values():
            open_keys += without_grid_values(space)
        if open_keys:
            raise ValueError(
                f"a grid needs the points along {open_keys[0]}: give num or values there, or num_trials for random "
                "points"
            )
        return self


def dotted_space(space: object) -> object:
    """Return a space with one dotted key for each parameter; a list becomes a parameter with these values.

    A space may be nested, as sections are. Anything else than a mapping is returned as it is: validation says what is
    wrong with it.
    """
    if not isinstance(space, dict):
        return space
    parameters: dict[str, object] = {}
    for written_key, parameter in _parameters(cast("Mapping[str, object]", space)):
        dotted_key = _with_weight(written_key)
        parameter_before = parameters.get(dotted_key)
        is_list = isinstance(parameter, dict) and "values" in parameter
        if isinstance(parameter_before, dict) and isinstance(parameter, dict) and not is_list:
            # A file's range, and one end of it from an override. A list takes the place of a range.
            parameter = cast("dict[str, object]", parameter_before) | cast("dict[str, object]", parameter)
        parameters[dotted_key] = parameter
    return parameters


def _with_weight(key: str) -> str:
    """Return the key of the weight for a further loss term, as a configuration writes it; any other key as it is."""
    is_term = key.startswith("objective.extra.") and key.count(".") == _DOTS_OF_A_TERM
    return f"{key}.weight" if is_term else key


def _parameters(tree: Mapping[str, object], *, prefix: str = "") -> Iterable[tuple[str, object]]:
    """Yield the dotted key and the raw parameter of everything that is searched in a space."""
    for name, value in tree.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, list | tuple):
            yield dotted, {"values": value}
        elif isinstance(value, dict) and value and Parameter.model_fields.keys().isdisjoint(value):
            yield from _parameters(cast("Mapping[str, object]", value), prefix=f"{dotted}.")
        elif isinstance(value, int | float):
            raise ValueError(
                f"{dotted}: got {value!r}, one value, which is no search; list several, as in {dotted}: "
                f"[{value!r}, ...]"
            )
        else:
            yield dotted, value

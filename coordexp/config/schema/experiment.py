"""Sections ``experiment`` and ``ablation``: what a run belongs to, which run it is, and what it is compared with."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictBool

from coordexp.config.schema.fields import DISTINCT, Name, Section, Seed, key
from coordexp.config.schema.tune import GROUP_SPACES, Tune


class Experiment(Section):
    """Which experiment a run belongs to, and which of its runs it is."""

    name: Name = key("experiment", "name")
    """Name of the experiment; a name is bound to one configuration, another one is refused."""
    runs_dir: Path = key(Path("runs"), "machine")
    """Folder of all experiments, relative to where the command starts; on a cluster one that all nodes see."""
    group: Name = key("A", "name")
    """Name of the one group where ablation.groups is empty; set in each run."""
    seed: Seed = key(0, "results", decides=["weights", "tokens"])
    """Seed of weights, order of samples and dropout; an ablation sets it to each of ablation.seeds."""


class Ablation(Section):
    """Groups x seeds, and what may differ between groups."""

    groups: dict[Name, dict[str, object]] = key({}, "plan")
    """What is compared: names of groups/NAME.yaml, or a mapping of a name to the keys it changes."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1), DISTINCT] = key((0,), "plan")
    """Every group runs with each seed; one tells little, three give a first idea of the spread."""
    factor: tuple[str, ...] = key(("objective", "custom.coord_soft_ce_w1"), "plan")
    """Keys or sections in which groups may differ, and nowhere else."""
    allow_differences: StrictBool = key(False, "plan")
    """Show what else differs beside the results, instead of refusing to compare."""
    tune: Tune | None = key(None, "results")
    """Tune every group on a part of the training images before the groups are compared; null: compare them as they
    are."""

    def of_run(self, group: str) -> "Ablation":
        """Return what a run of a group keeps: what other groups do cannot change it.

        Tuned keys may differ between runs as the declared factor may, so they stand beside it.
        """
        if self.tune is None:
            return self.model_copy(update={"groups": {}})
        factor = tuple(dict.fromkeys([*self.factor, *self.tune.tuned_keys, GROUP_SPACES]))
        return self.model_copy(update={"groups": {}, "factor": factor, "tune": self.tune.reduced(group)})

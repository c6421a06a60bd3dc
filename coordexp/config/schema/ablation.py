"""Section ``ablation``: groups x seeds, and what may differ between groups."""

from typing import Annotated

from pydantic import Field, StrictBool

from coordexp.config.schema.fields import DISTINCT, Name, Section, Seed, key


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

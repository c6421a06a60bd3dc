"""How annotations are read where they do not say it themselves: what a command or a configuration chooses."""

from dataclasses import dataclass
from typing import Literal

from coordexp.coord_tokens.validator import BBoxFormat

BoxesIn = Literal["shown", "stored", "auto"]


@dataclass(frozen=True)
class Reading:
    """How records are read, the same in both splits."""

    boxes_in: BoxesIn = "auto"  # in which frame the boxes of pictures stand that a viewer turns
    merge: bool = False  # whether categories whose names are equal once folded are one
    bbox_format: BBoxFormat | None = None  # what numbers are in boxes of JSONL, where a record does not say
    max_bad_fraction: float = 0.0  # largest accepted fraction of bad records, for the ground truth

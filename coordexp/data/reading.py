"""How annotations are read if they do not say it themselves: what a command or a configuration chooses."""

from dataclasses import dataclass
from typing import Literal

from coordexp.coord_tokens.validator import BBoxFormat

BoxesIn = Literal["shown", "stored", "auto"]


@dataclass(frozen=True)
class Reading:
    """How records are read, the same in both splits.

    Attributes:
        boxes_in: the frame of the boxes of pictures that a viewer turns: the picture as shown or as stored.
        merge: whether categories whose names are equal once folded are one category.
        bbox_format: what the numbers in boxes of JSONL are, if a record does not say.
        max_bad_fraction: largest accepted fraction of bad records when the ground truth is made.
    """

    boxes_in: BoxesIn = "auto"
    merge: bool = False
    bbox_format: BBoxFormat | None = None
    max_bad_fraction: float = 0.0

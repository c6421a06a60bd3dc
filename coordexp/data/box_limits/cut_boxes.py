"""Boxes that a limit takes away: never learnt in training, or never written in an answer.

A limit on tokens looks harmless when samples are counted ("8 samples lose the end of their target"). It may still cut
most boxes, since crowded images hold most of them. So boxes are counted.

There is no torch here: a report imports this module too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coordexp.data.sample import Ordering

MAX_OBJECTS = "data.max_objects"
MAX_LENGTH = "data.max_length"
MAX_NEW_TOKENS = "evaluation.max_new_tokens"
WORTH_A_WARNING = 0.05
"""Share of the boxes above which a limit changes what a run can reach."""


@dataclass(frozen=True)
class CutBoxes:
    """How many boxes one limit takes away.

    Attributes:
        key: of the configuration.
        limit: its value.
        num_cut: boxes that it takes away.
        num_boxes: boxes of the split, cut or not.
        needed: the smallest value of the key under which no box is cut; None if that is not known.
    """

    key: str
    limit: int
    num_cut: int
    num_boxes: int
    needed: int | None = None

    @property
    def share(self) -> float:
        """Share of all boxes that are cut; 0 without boxes."""
        return self.num_cut / max(1, self.num_boxes)


def too_many(limits: Sequence[CutBoxes]) -> bool:
    """Return whether limits on the same boxes together cut more of them than a result can ignore."""
    return sum(limit.share for limit in limits) > WORTH_A_WARNING


def unlearnt(limits: Sequence[CutBoxes], *, ordering: Ordering = "top_left") -> str:
    """Return a sentence on training boxes that limits keep from being learnt, with the keys to raise; "" for none.

    Args:
        limits: on the same boxes.
        ordering: ``data.ordering``; under ``random``, each epoch cuts other boxes.
    """
    cutting = sorted((limit for limit in limits if limit.num_cut), key=lambda limit: -limit.num_cut)
    if not cutting:
        return ""
    num_cut = sum(limit.num_cut for limit in cutting)
    never = "not learnt in an epoch" if ordering == "random" else "never learnt"
    causes = ", ".join(f"{limit.num_cut:,} for {limit.key} {limit.limit:,}" for limit in cutting)
    return f"{_share(num_cut, cutting[0].num_boxes)} are {never}: {causes}; {_cure(cutting)}"


def unwritten(limit: CutBoxes) -> str:
    """Return a sentence on validation boxes that no answer can hold, with the key to raise; "" for none."""
    if not limit.num_cut:
        return ""
    return (
        f"{_share(limit.num_cut, limit.num_boxes)} can never be written: they lie beyond an answer of {limit.key} "
        f"{limit.limit:,}; {_cure([limit])}"
    )


def _share(num_cut: int, num_boxes: int) -> str:
    return f"{num_cut:,} of {num_boxes:,} boxes ({100 * num_cut / num_boxes:.1f} %)"


def _cure(limits: Sequence[CutBoxes]) -> str:
    keys = [limit.key if limit.needed is None else f"{limit.key} (none is cut at {limit.needed:,})" for limit in limits]
    return f"raise {' and '.join(keys)}"

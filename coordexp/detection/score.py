"""The named scores of a detection, from raw log probabilities (DESIGN 3.11)."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

from coordexp.coord_tokens.grammar.parse import ParsedObject

ScoreName = Literal["coord", "desc", "coord_desc", "constant"]

_COORD_WEIGHT = 0.7


def score_object(item: ParsedObject, name: ScoreName) -> float:
    """Return the score ``name`` of an object, in [0, 1]."""
    return SCORES[name](item)


def coord_score(item: ParsedObject) -> float:
    """Geometric mean probability of the four coord tokens over the full vocabulary."""
    return _geometric_mean(item.coord_log_probs)


def desc_score(item: ParsedObject) -> float:
    """Geometric mean probability of the description tokens over the full vocabulary."""
    return _geometric_mean(item.desc_log_probs)


def coord_desc_score(item: ParsedObject) -> float:
    """0.7 ``coord`` + 0.3 ``desc``."""
    return _COORD_WEIGHT * coord_score(item) + (1 - _COORD_WEIGHT) * desc_score(item)


def constant_score(item: ParsedObject) -> float:
    """1 for every object; AP then depends on the order of the detections."""
    return 1.0


SCORES: dict[ScoreName, Callable[[ParsedObject], float]] = {
    "coord": coord_score,
    "desc": desc_score,
    "coord_desc": coord_desc_score,
    "constant": constant_score,
}


def _geometric_mean(log_probs: Sequence[float]) -> float:
    return math.exp(math.fsum(log_probs) / len(log_probs))

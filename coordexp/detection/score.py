"""The named scores of a detection, from raw log probabilities of the tokens that wrote it."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

ScoreName = Literal["coord", "desc", "coord_desc", "constant"]

_COORD_WEIGHT = 0.7
_Score = Callable[[Sequence[float], Sequence[float]], float]


def score_object(name: ScoreName, *, coord_log_probs: Sequence[float], desc_log_probs: Sequence[float]) -> float:
    """Return the score ``name`` of an object, in [0, 1].

    ``coord`` and ``desc`` are geometric mean probabilities, ``coord_desc`` is 0.7 ``coord`` + 0.3 ``desc``, and
    ``constant`` is 1: AP then depends on the order of the detections.

    Args:
        name: which score.
        coord_log_probs: of the four coord tokens, over the full vocabulary.
        desc_log_probs: of the description's tokens, over the full vocabulary.
    """
    return SCORES[name](coord_log_probs, desc_log_probs)


def _geometric_mean(log_probs: Sequence[float]) -> float:
    return math.exp(math.fsum(log_probs) / len(log_probs))


def _coord_desc(coord: Sequence[float], desc: Sequence[float]) -> float:
    return _COORD_WEIGHT * _geometric_mean(coord) + (1 - _COORD_WEIGHT) * _geometric_mean(desc)


SCORES: dict[ScoreName, _Score] = {
    "coord": lambda coord, desc: _geometric_mean(coord),
    "desc": lambda coord, desc: _geometric_mean(desc),
    "coord_desc": _coord_desc,
    "constant": lambda coord, desc: 1.0,
}

import math
from typing import get_args

import pytest

from coordexp.config.schema import Evaluation
from coordexp.coord_tokens.grammar.parse import ParsedObject
from coordexp.detection.score import SCORES, score_object

# Coord probabilities .5 .5 .125 .125: geometric mean .25; description .9 .4: geometric mean .6.
ITEM = ParsedObject(
    desc="red circle",
    bins=(1, 2, 3, 4),
    expected=(0.1, 0.2, 0.3, 0.4),
    coord_log_probs=tuple(math.log(p) for p in (0.5, 0.5, 0.125, 0.125)),
    desc_log_probs=tuple(math.log(p) for p in (0.9, 0.4)),
    width=(1.0, 2.0, 3.0, 4.0),
    position=3,
)


@pytest.mark.parametrize(
    ("name", "expected"), [("coord", 0.25), ("desc", 0.6), ("coord_desc", 0.7 * 0.25 + 0.3 * 0.6), ("constant", 1.0)]
)
def test_scores_by_hand(name: str, expected: float) -> None:
    assert score_object(ITEM, name) == pytest.approx(expected, rel=1e-12)


def test_the_names_are_those_of_the_configuration() -> None:
    assert set(SCORES) == set(get_args(Evaluation.model_fields["score"].annotation))

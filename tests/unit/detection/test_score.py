import math
from typing import get_args

import pytest

from coordexp.config.schema import Evaluation
from coordexp.detection.score import SCORES, score_object

# Coord probabilities .5 .5 .125 .125: geometric mean .25; description .9 .4: geometric mean .6.
COORD = tuple(math.log(p) for p in (0.5, 0.5, 0.125, 0.125))
DESC = tuple(math.log(p) for p in (0.9, 0.4))


@pytest.mark.parametrize(
    ("name", "expected"), [("coord", 0.25), ("desc", 0.6), ("coord_desc", 0.7 * 0.25 + 0.3 * 0.6), ("constant", 1.0)]
)
def test_scores_by_hand(name: str, expected: float) -> None:
    assert score_object(name, coord_log_probs=COORD, desc_log_probs=DESC) == pytest.approx(expected, rel=1e-12)


def test_the_names_are_those_of_the_configuration() -> None:
    assert set(SCORES) == set(get_args(Evaluation.model_fields["score"].annotation))

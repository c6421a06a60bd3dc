"""Drawing is repeatable, the judge sees what is wrong, and a whole scenario ends as it must."""

from collections import Counter
from dataclasses import replace

import pytest

from tests.chaos.run import Outcome, campaign, differences, draw, kinds

EXPECTED = Outcome({"A-s0": "ab"}, Counter({("A-s0", 1, "grad_norm", 0.5): 1, ("A-s0", 2, "grad_norm", 0.25): 1}))


def test_a_seed_draws_the_same_scenarios_again_and_each_kind_comes_in_twenty():
    drawn = [draw(0, number) for number in range(20)]
    assert drawn == [draw(0, number) for number in range(20)]
    assert drawn != [draw(1, number) for number in range(20)]
    assert {(fault.executor, fault.what) for fault in drawn} == set(kinds(may_mount=True))


def test_weights_and_rows_that_differ_are_said():
    assert differences(EXPECTED, replace(EXPECTED)) == []
    assert differences(EXPECTED, replace(EXPECTED, weights={"A-s0": "ac"})) == ["weights of A-s0 differ"]
    assert differences(EXPECTED, replace(EXPECTED, weights={})) == ["weights of A-s0 differ"]
    first = ("A-s0", 1, "grad_norm", 0.5)
    (doubled,) = differences(EXPECTED, replace(EXPECTED, rows=EXPECTED.rows + Counter([first])))
    assert "1 rows doubled" in doubled
    (missing,) = differences(EXPECTED, replace(EXPECTED, rows=EXPECTED.rows - Counter([first])))
    assert "1 rows missing" in missing


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_killed_command_ends_as_if_nothing_had_happened(tmp_path):
    killed = next(number for number in range(20) if draw(0, number).what == "SIGKILL job")
    assert campaign([killed], seed=0, folder=tmp_path) == []

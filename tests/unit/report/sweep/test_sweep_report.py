"""What a sweep's report says: the choice, its noise, tables, and figures that are the same again."""

import math
import re
from collections.abc import Mapping

import pytest

from coordexp.config.schema.search import Parameter
from coordexp.report.sweep import short, trials_table, winners_table, write_response
from coordexp.sweep.results import TrialResult, Winner, verdict

LAMBDA = "objective.lambda_coord"
LOG = Parameter(low=0.1, high=10.0, scale="log", num=3)


def winner(name: str, *aps: float | None, search: float = 0.5) -> Winner:
    return Winner(name, {LAMBDA: 1.0}, search, dict(enumerate(aps, start=1)))


def trial(name: str, point: Mapping[str, float], ap: float | None, state: str = "finished") -> TrialResult:
    return TrialResult(name, dict(point), state, 4, ap, "")


def test_the_mean_is_over_the_further_seeds_alone():
    assert winner("t0", 0.1, 0.3, search=0.9).mean == pytest.approx(0.2)
    assert winner("t0", 0.1, 0.3).spread == pytest.approx(math.sqrt(0.02))
    assert winner("t0", 0.1, None).mean == 0.1
    assert winner("t0", 0.1, None).spread is None
    assert winner("t0", None).mean is None
    assert winner("t0", search=0.4).mean == 0.4


def test_the_verdict_says_whether_the_best_two_can_be_told_apart():
    clear = verdict([winner("t3", 0.50, 0.51), winner("t4", 0.40, 0.41)])
    assert clear == ("t3 leads t4 by 0.1000 AP, more than the seeds of one point differ (0.0071, standard deviation).")
    noisy = verdict([winner("t3", 0.50, 0.40), winner("t4", 0.44, 0.42)])
    assert noisy.startswith(
        "t3 and t4 cannot be told apart: their means differ by 0.0200 AP, the seeds of one point by"
    )
    assert "either is a fair choice" in noisy
    tie = verdict([winner("t3", 0.5, 0.5), winner("t4", 0.5, 0.5)])
    assert "cannot be told apart" in tie
    assert "fewer than two seeds each say nothing of the noise" in verdict([winner("t3", 0.5), winner("t4", 0.4)])
    assert "no second point" in verdict([winner("t3", 0.5, 0.6)])
    assert "no second point" in verdict([winner("t3", 0.5, 0.6), winner("t4", None)])
    assert verdict([]).startswith("Nothing can be chosen")
    assert verdict([winner("t3", None)]).startswith("Nothing can be chosen")


def test_tables_tell_an_ap_before_the_last_step_apart():
    table = trials_table(
        [
            trial("t000", {LAMBDA: 0.1}, 0.25),
            trial("t001", {LAMBDA: 1.0}, 0.125, "pruned"),
            trial("t002", {LAMBDA: 10.0}, None, "failed"),
        ]
    )
    assert table.columns == ("trial", "lambda_coord", "AP", "steps", "state")
    assert [row.cells for row in table.rows] == [
        ("t000", "0.1", "0.2500", "4", "finished"),
        ("t001", "1", "(0.1250)", "4", "pruned"),
        ("t002", "10", "-", "4", "failed"),
    ]
    again = winners_table([winner("t000", 0.25, None)])
    assert again.columns == ("trial", "lambda_coord", "mean AP", "sd", "seed 1", "seed 2", "in the search")
    assert again.rows[0].cells == ("t000", "1", "0.2500", "-", "0.2500", "-", "0.5000")


@pytest.mark.parametrize("num_keys", [1, 2])
def test_figures_are_drawn_for_any_number_of_keys_and_repeat(tmp_path, num_keys):
    keys = [LAMBDA, "objective.alpha_l1", "objective.beta_giou"][:num_keys]
    space = {keys[0]: LOG} | {key: Parameter(values=(0.1, 1.0, 10.0)) for key in keys[1:]}
    trials = [
        trial(f"t{index:03d}", dict.fromkeys(keys, value) | {keys[-1]: 10.0 / value}, ap, state)
        for index, (value, ap, state) in enumerate(
            [(0.1, 0.2, "finished"), (1.0, 0.4, "finished"), (10.0, 0.1, "pruned"), (5.0, None, "failed")]
        )
    ]
    ranked = [Winner("t001", dict.fromkeys(keys, 1.0), 0.4, {1: 0.38, 2: 0.42})]
    made: list[list[bytes]] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        paths, svg = write_response("find $x$", space, trials, ranked, tmp_path / name)
        assert [path.name for path in paths] == ["response.png", "response.svg"]
        made.append([*(path.read_bytes() for path in paths), svg.encode()])
        assert {*map(short, keys)} <= {word.partition(",")[0] for word in re.findall(r">([^<>]+)</text>", svg)}
        assert "find $x$: AP on the tuning split" in svg
    assert made[0] == made[1]
    if num_keys == 2:
        assert write_response("nothing yet", space, [], [], tmp_path / "a")[0][0].read_bytes() != made[0][0]

import re
from dataclasses import replace

import pytest

from coordexp.report.records.data import ExperimentData, missing_runs
from coordexp.report.study.study import Study
from coordexp.report.table import Table
from coordexp.report.text.heads import meaning
from coordexp.report.text.notes import notes
from coordexp.report.text.place_tables import place_tables
from coordexp.report.text.render import all_tables
from coordexp.report.text.run_tables import (
    answer_tables,
    ends_tables,
    gradients_table,
    headline_table,
    quality_tables,
    served_tables,
)


def cells(table: Table, *lead: str) -> dict[str, str]:
    (row,) = [row for row in table.rows if row.cells[: len(lead)] == lead]
    return dict(zip(table.columns, row.cells, strict=True))


def with_metrics(data: ExperimentData, **by_group: dict[str, float]) -> ExperimentData:
    runs = [replace(run, metrics={**run.metrics, **by_group.get(run.group, {})}) for run in data.runs]
    return replace(data, runs=tuple(runs))


def test_the_headline_has_a_mean_and_each_seed_below_it(tiny: ExperimentData) -> None:
    headline = headline_table(tiny)
    # A: 0.30 and 0.32, argmax 0.01 lower
    assert cells(headline, "A", "expected", "mean of 2")["AP"] == "0.310"
    assert cells(headline, "A", "expected", "0")["AP"] == "0.300"
    assert cells(headline, "A", "expected", "1")["AP50"] == "0.320"
    assert cells(headline, "A", "argmax", "mean of 2")["AP"] == "0.300"
    assert [row.cells[2] for row in headline.rows[:3]] == ["mean of 2", "0", "1"]


def test_free_decoding_shows_malformed_objects(tiny: ExperimentData) -> None:
    precision, free = answer_tables(tiny)
    found = cells(precision, "A", "1")
    assert (found["AP"], found["AP, expectation"], found["AP, argmax"]) == ("0.160", "0.170", "0.160")
    found = cells(free, "A", "1")
    assert (found["objects"], found["malformed"], found["malformed, share"]) == ("400", "8", "0.020")
    assert cells(free, "A", "mean of 2")["malformed"] == "4"


def test_repeats_and_cut_answers_are_shown_where_there_are_any(tiny: ExperimentData) -> None:
    plain = {"free/longest_repeat": 0.0, "free/argmax/AP_cut": 0.17, "free/duplicate_rate": 0.0}
    assert len(answer_tables(with_metrics(tiny, A=plain))) == 2
    cut = {"free/truncated_images": 3.0, "free/longest_repeat": 40.0, "free/duplicate_rate": 0.25}
    *_, cut_off, repeats = answer_tables(with_metrics(tiny, A=plain | cut))
    assert cells(cut_off, "A", "0") == {"group": "A", "seed": "0", "answers, free": "3"}
    found = cells(repeats, "A", "1")
    assert (found["repeats, free"], found["in a row, free"]) == ("0.250", "40")
    assert (found["AP, free"], found["AP cut, free"]) == ("0.160", "0.170")


def test_every_head_that_is_no_plain_word_is_explained(paired: Study) -> None:
    plain = {"group", "seed", "verdict", "reading", "state", "steps", "part", *paired.data.groups}
    heads = {head for table in all_tables(paired) for head in table.columns} - plain
    rows = {row.cells[0] for table in all_tables(paired) if table.columns[0] == "part" for row in table.rows}
    assert {"boxes in bursts", "both", "recall, rank 3 to 4"} <= rows
    say_it = re.compile(" \u2212 |(text|coord|coord ce) loss$")
    assert {word for word in heads | rows if not meaning(word) and not say_it.search(word)} == set()


def test_runs_say_where_they_stand(tiny: ExperimentData) -> None:
    (runs,) = ends_tables(tiny)
    assert cells(runs, "A", "0")["state"] == "finished"
    assert cells(runs, "A", "0")["seconds"] == "61.5"
    assert cells(runs, "B", "1")["state"] == "FAILED, step 60 of 100"
    assert cells(runs, "C", "0")["state"] == "running, step 40 of 100"
    assert cells(runs, "C", "1")["total loss"] == "-"
    assert cells(runs, "B", "mean of 1")["steps"] == "100"  # a failed run enters no mean


def test_notes_say_the_ceiling_and_what_is_not_finished(tiny: ExperimentData) -> None:
    assert missing_runs(tiny) == [
        "B-s1 FAILED at step 60: the loss is not finite at step 61 [term box_l1]",
        "C-s0 is not finished: running, step 40 of 100",
        "C-s1 is not finished: waiting",
    ]
    text = "\n".join(notes(tiny))
    assert "Codec ceiling: AP 0.987" in text
    assert "Not shown: 1 run of other experiments" in text


@pytest.mark.parametrize(
    ("names", "is_said"), [(("A-s0", "A-s1"), False), (("A-s1", "B-s0"), True), (("A-s0", "A-s1", "B-s0"), True)]
)
def test_a_group_with_one_evaluated_seed_is_a_checkpoint(tiny: ExperimentData, names: tuple, is_said: bool) -> None:
    chosen = replace(tiny, runs=tuple(run for run in tiny.runs if run.name in names))
    assert ("is a checkpoint" in "\n".join(notes(chosen))) == is_said


def test_quality_is_shown_where_it_was_measured(tiny: ExperimentData) -> None:
    measured = {
        "constrained/argmax/AP_oracle_score": 0.5,
        "constrained/argmax/F1_75": 0.25,
        "constrained/expected/F1_75": 0.75,
        "constrained/argmax/F1_macro": 0.25,
        "constrained/argmax/F1_positive": 0.75,
    }
    quality, f1 = quality_tables(with_metrics(tiny, A=measured))
    found = cells(quality, "A", "0")
    assert (found["AP, ideal scores"], found["F1 .75"]) == ("0.500", "0.250")
    assert not {"AP_rare", "F1 .50"} & set(quality.columns), "no run has them"
    ours = {row.cells[1]: row.cells[-1] for row in f1.rows if row.cells[::2][:2] == ("A", "0")}
    assert ours == {"all detections": "0.250", "positive-only": "0.750", "protocol's part": "+0.500"}
    assert quality_tables(tiny) == []


def test_clipping_is_shown_and_warned_of_where_groups_differ(tiny: ExperimentData) -> None:
    assert gradients_table(tiny) == []
    alike = with_metrics(tiny, A={"clipped_fraction": 0.2, "mean_grad_norm": 0.75}, B={"clipped_fraction": 0.4})
    (table,) = gradients_table(alike)
    assert cells(table, "A", "0")["share of steps clipped"] == "0.200"
    assert cells(table, "A", "mean of 2")["mean norm"] == "0.750"
    assert not any("clipped" in note for note in notes(alike))
    apart = with_metrics(alike, C={"clipped_fraction": 0.97})
    (warning,) = [note for note in notes(apart) if "clipped" in note]
    assert "C 97%, B 40%, A 20%" in warning


def test_slots_and_ranks_are_means_over_seeds_and_absent_places_are_left_out(tiny: ExperimentData) -> None:
    assert place_tables(tiny) == []
    measured = {
        "eval_coord_diag/argmax_bin_mae/x1": 68.04,
        "eval_coord_diag/far_50_fraction/x1": 0.125,
        "eval_coord_diag/argmax_bin_mae/rank_9_up": 4.0,
    }
    (table,) = place_tables(with_metrics(tiny, A=measured))
    assert [row.cells[:2] for row in table.rows] == [("A", "x1"), ("A", "rank 9 and up")]
    of_x1 = cells(table, "A", "x1")
    assert (of_x1["likeliest bin off"], of_x1["far by 50"], of_x1["mean off"]) == ("68.0", "0.125", "-")


def test_what_a_server_gives_stands_between_both_readings(tiny: ExperimentData) -> None:
    assert served_tables(tiny) == []
    served = {f"constrained/expected/AP_top{number}": ap for number, ap in ((5, 0.1), (20, 0.2), (128, 0.25))}
    (table,) = served_tables(with_metrics(tiny, A=served))
    row = cells(table, "A", "0")
    assert [row[head] for head in ("argmax", "top 5", "top 20", "top 128", "expected")] == [
        "0.290", "0.100", "0.200", "0.250", "0.300",
    ]  # fmt: skip

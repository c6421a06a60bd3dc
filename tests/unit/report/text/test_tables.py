import dataclasses
import re
from dataclasses import replace

import pytest
from coordexp.report.text.answers import free_tables, stop_tables

from coordexp.report.study.data import ExperimentData, missing_runs
from coordexp.report.study.load import load_experiment
from coordexp.report.study.study import Study
from coordexp.report.text.heads import meaning, words_of
from coordexp.report.text.notes import notes, summary
from coordexp.report.text.render import all_tables, run_tables
from coordexp.report.text.run_tables import gradients_table, quality_tables, runs_table
from coordexp.report.text.tables import COUNTED, Table, TableRow, comparison_tables, num_objects, sample_notes


def cells(table: Table, *lead: str) -> dict[str, str]:
    (row,) = [row for row in table.rows if row.cells[: len(lead)] == lead]
    return dict(zip(table.columns, row.cells, strict=True))


def test_the_headline_has_a_mean_and_each_seed_below_it(tiny: ExperimentData) -> None:
    headline = run_tables(tiny)[0]
    # A: 0.30 and 0.32, argmax 0.01 lower
    assert cells(headline, "A", "expected", "mean of 2")["AP"] == "0.310"
    assert cells(headline, "A", "expected", "0")["AP"] == "0.300"
    assert cells(headline, "A", "expected", "1")["AP50"] == "0.320"
    assert cells(headline, "A", "argmax", "mean of 2")["AP"] == "0.300"
    assert [row.cells[2] for row in headline.rows[:3]] == ["mean of 2", "0", "1"]


def test_ap_by_size_says_on_how_many_objects_it_rests(paired: Study) -> None:
    sizes = paired.breakdowns["A"].num_by_size
    assert sum(sizes.values()) == 29, "all objects of the fixture"
    note = comparison_tables(paired)[0].notes[0]
    assert f"AP_small {sizes['small']} objects (too few)" in note
    assert f"AP_large {sizes['large']} objects (too few)" in note
    (headline,) = [table for table in all_tables(paired) if table.title.startswith("Average precision")]
    assert headline.notes == (note,)
    assert [num_objects(number) for number in (1, 29, 30, 1234)] == [
        "1 object (too few)",
        "29 objects (too few)",
        "30 objects",
        "1,234 objects",
    ]


def test_few_images_of_a_category_are_said_in_one_sentence(paired: Study) -> None:
    comparison = paired.comparison
    assert comparison is not None
    enough = replace(comparison, num_images=300, images_a_category=52.0)
    assert sample_notes(enough) == ()
    assert sample_notes(replace(enough, images_a_category=None)) == ()
    assert sample_notes(replace(enough, images_a_category=12.34)) == (
        "A category is in 12.3 of the 300 images on average (harmonic mean), which is few: intervals hold for as many "
        "images, not for AP on more.",
    )
    assert sample_notes(replace(enough, images_a_category=2.0)) == (
        "A category is in 2.0 of the 300 images on average (harmonic mean), which is few: intervals are made 20 % "
        "wider, and hold for as many images, not for AP on more.",
    )
    assert sample_notes(replace(enough, num_images=29)) == ("29 images are too few to rely on an interval.",)
    assert comparison_tables(replace(paired, comparison=replace(enough, num_images=29)))[0].notes[1:] == sample_notes(
        replace(enough, num_images=29)
    )


def test_undefined_and_missing_values_are_dashes_and_leave_the_mean(tiny: ExperimentData) -> None:
    headline = run_tables(tiny)[0]
    assert cells(headline, "A", "expected", "mean of 2")["AP_large"] == "-"
    assert cells(headline, "B", "expected", "mean of 1")["AP"] == "0.050"  # B-s1 failed
    assert cells(headline, "B", "expected", "1")["AP"] == "-"
    assert cells(headline, "C", "expected", "mean of 0")["AP"] == "-"


def test_free_decoding_shows_malformed_objects(tiny: ExperimentData) -> None:
    precision, free = free_tables(tiny)
    assert cells(precision, "A", "1") == {
        "group": "A",
        "seed": "1",
        "AP": "0.160",
        "AP, expectation": "0.170",
        "AP, argmax": "0.160",
        "AP50": "0.160",
    }
    assert cells(free, "A", "1") == {
        "group": "A",
        "seed": "1",
        "objects": "400",
        "malformed": "8",
        "malformed, share": "0.020",
        "unknown category": "-",
        "repeated objects": "-",
        "empty answers": "-",
        "answers cut off": "-",
        "probability of coord tokens": "-",
    }
    assert cells(free, "A", "mean of 2")["malformed"] == "4"


def test_every_head_that_is_no_plain_word_is_explained(paired: Study) -> None:
    plain = {"group", "seed", "verdict", "reading", "state", "steps", "part", *paired.data.groups}
    heads = {head for table in all_tables(paired) for head in table.columns} - plain
    rows = {row.cells[0] for table in all_tables(paired) if table.columns[0] == "part" for row in table.rows}
    assert {"boxes in bursts", "both", "stop margin after 3", "recall, rank 3 to 4"} <= rows
    say_it = re.compile(" \u2212 |(text|coord|coord ce) loss$")
    assert {word for word in heads | rows if not meaning(word) and not say_it.search(word)} == set()
    assert "chance" in meaning("p, random swaps")
    assert meaning("AP_small") == "COCO AP of boxes under 32x32 px"
    assert meaning("AP, ideal scores").startswith("AP if each score")


def test_the_list_of_words_has_what_the_tables_have_and_nothing_else(paired: Study) -> None:
    words = dict(words_of(all_tables(paired)))
    assert words["boxes in bursts"] == "share of detections in images with 10 or more repeated boxes"
    assert words["both"].startswith("AP50 lost to boxes that are wrong in place and category")
    assert words["recall, rank …"].startswith("share found")
    assert {"IoU", "constrained", "free", "argmax", "not told apart", "p, random swaps"} <= set(words)
    assert not {"positive-only", "frame", "px:xywh and the like", "limit", "recall, rank 1", "group", "A"} & set(words)
    rows = tuple(TableRow(("A", kind, "0", "0.1")) for kind in ("positive-only", "protocol's part"))
    f1 = Table("F1", ("group", COUNTED, "seed", "IoU .50"), rows)
    files = Table("Files", ("group", "frame"), (TableRow(("A", "px:xywh")), TableRow(("B", "norm1000:xyxy"))))
    few = [word for word, _ in words_of([f1, files])]
    assert few == [COUNTED, "F1", "frame", "IoU", "positive-only", "protocol's part", "px:xywh and the like"]


def test_runs_say_where_they_stand(tiny: ExperimentData) -> None:
    runs = runs_table(tiny)
    assert cells(runs, "A", "0")["state"] == "finished"
    assert cells(runs, "A", "0")["seconds"] == "61.5"
    assert cells(runs, "B", "1")["state"] == "FAILED, step 60 of 100"
    assert cells(runs, "C", "0")["state"] == "running, step 40 of 100"
    assert cells(runs, "C", "1")["state"] == "waiting"
    assert cells(runs, "C", "1")["total loss"] == "-"
    assert cells(runs, "B", "mean of 1")["steps"] == "100"  # a failed run enters no mean
    assert cells(runs, "C", "mean of 0")["steps"] == "-"


def test_a_further_term_of_any_run_has_a_column(tiny: ExperimentData) -> None:
    changed = [
        dataclasses.replace(run, metrics={**run.metrics, "train_extra/smooth_l1": 0.25}) if run.group == "C" else run
        for run in tiny.runs
    ]
    runs = runs_table(dataclasses.replace(tiny, runs=tuple(changed)))
    assert cells(runs, "C", "0")["smooth_l1 loss"] == "0.2500"
    assert cells(runs, "A", "0")["smooth_l1 loss"] == "-"
    assert "smooth_l1 loss" not in runs_table(tiny).columns


def test_notes_say_the_ceiling_and_what_is_not_finished(tiny: ExperimentData) -> None:
    assert missing_runs(tiny) == [
        "B-s1 FAILED at step 60: the loss is not finite at step 61 [term box_l1]",
        "C-s0 is not finished: running, step 40 of 100",
        "C-s1 is not finished: waiting",
    ]
    text = "\n".join(notes(tiny))
    assert "Codec ceiling: AP 0.987" in text
    assert "Not shown: 1 run of other experiments" in text


def test_one_seed_compares_checkpoints_and_two_do_not(tiny: ExperimentData, uri: str) -> None:
    assert "this checkpoint, not about its loss" in "\n".join(notes(load_experiment(uri, "single")))
    first = dataclasses.replace(tiny, runs=tuple(run for run in tiny.runs if run.seed == 0))
    assert "these checkpoints, not these losses" in "\n".join(notes(first))
    assert "these checkpoints" not in "\n".join(notes(tiny))


def test_one_evaluated_seed_of_two_is_one_seed(tiny: ExperimentData) -> None:
    only_b = dataclasses.replace(tiny, runs=tuple(run for run in tiny.runs if run.group == "B"))
    assert "this checkpoint" in "\n".join(notes(only_b))


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_every_row_fills_every_column(tiny: ExperimentData, index: int) -> None:
    table = run_tables(tiny)[index]
    assert {len(row.cells) for row in table.rows} == {len(table.columns)}


def test_quality_is_shown_where_it_was_measured(tiny: ExperimentData) -> None:
    measured = dict(tiny.runs[0].metrics) | {
        "constrained/argmax/AP_oracle_score": 0.5,
        "constrained/argmax/F1_75": 0.25,
        "constrained/expected/F1_75": 0.75,
        "constrained/argmax/F1_macro": 0.25,
        "constrained/argmax/F1_positive": 0.75,
        "constrained/duplicates": 3.0,
    }
    runs = (dataclasses.replace(tiny.runs[0], metrics=measured), *tiny.runs[1:])
    quality, f1 = quality_tables(dataclasses.replace(tiny, runs=runs))
    found = cells(quality, "A", "0")
    assert (found["AP, ideal scores"], found["F1 .75"], found["repeated objects"]) == ("0.500", "0.250", "3")
    assert not {"AP_rare", "F1 .50"} & set(quality.columns), "no run has them"
    ours = {row.cells[1]: row.cells[-1] for row in f1.rows if row.cells[::2][:2] == ("A", "0")}
    assert ours == {"all detections": "0.250", "positive-only": "0.750", "protocol's part": "+0.500"}
    assert quality_tables(tiny) == []


def with_metrics(data: ExperimentData, **by_group: dict[str, float]) -> ExperimentData:
    runs = [dataclasses.replace(run, metrics={**run.metrics, **by_group.get(run.group, {})}) for run in data.runs]
    return dataclasses.replace(data, runs=tuple(runs))


def test_where_answers_stop_is_shown_where_it_was_measured(tiny: ExperimentData) -> None:
    assert stop_tables(tiny) == []
    found = {"free/truncated_images": 3.0, "free/truncated_fraction": 0.25, "constrained/stop_margin/after_0": 4.125}
    cut, margins = stop_tables(with_metrics(tiny, A=found, B={"constrained/stop_margin/after_5_to_9": -0.5}))
    assert cells(cut, "A", "0") == {"group": "A", "seed": "0", "answers, free": "3", "share, free": "0.250"}
    assert margins.columns == ("group", "seed", "0", "5 to 9")
    assert cells(margins, "A", "0")["0"] == "+4.12"
    assert cells(margins, "B", "0")["5 to 9"] == "\N{MINUS SIGN}0.50"


def test_other_answers_stand_beside_the_plain_ones_where_there_are_any(tiny: ExperimentData) -> None:
    plain = {"free/duplicate_stops": 0.0, "free/argmax/AP_duplicate_stop": 0.16}
    assert "Duplicate stop" not in " ".join(table.title for table in stop_tables(with_metrics(tiny, A=plain)))
    (repeats,) = stop_tables(with_metrics(tiny, A=plain | {"free/duplicate_stops": 2.0}))
    assert cells(repeats, "A", "1")["ended, free"] == "2"
    assert (cells(repeats, "A", "1")["AP, free"], cells(repeats, "A", "1")["AP with stop, free"]) == ("0.160", "0.160")


def test_speed_names_its_hardware(tiny: ExperimentData) -> None:
    data = with_metrics(tiny, A={"free/images_per_second": 2.5, "free/boxes_per_second": 10.0})
    speed = free_tables(data)[-1]
    assert speed.title == "Speed of generation, all workers at once, on unknown hardware"
    assert cells(speed, "A", "0")["boxes per second, free"] == "10.000"
    runs = tuple(dataclasses.replace(run, hardware="2 x H200") for run in data.runs)
    assert free_tables(dataclasses.replace(data, runs=runs))[-1].title.endswith(", on 2 x H200")
    runs = tuple(dataclasses.replace(run, hardware="CPU") if run.group == "A" else run for run in runs)
    title = free_tables(dataclasses.replace(data, runs=runs))[-1].title
    assert title.endswith(", on CPU (A); 2 x H200 (B); 2 x H200 (C)")


def test_clipping_is_shown_and_warned_of_where_groups_differ(tiny: ExperimentData) -> None:
    assert gradients_table(tiny) == []
    alike = with_metrics(tiny, A={"clipped_fraction": 0.2, "mean_grad_norm": 0.75}, B={"clipped_fraction": 0.4})
    (table,) = gradients_table(alike)
    assert cells(table, "A", "0")["share of steps clipped"] == "0.200"
    assert cells(table, "A", "mean of 2")["mean norm"] == "0.750"
    assert cells(table, "C", "0")["share of steps clipped"] == "-"
    assert not any("clipped" in note for note in notes(alike))
    apart = with_metrics(alike, C={"clipped_fraction": 0.97})
    (warning,) = [note for note in notes(apart) if "clipped" in note]
    assert warning.startswith("WARNING: gradients were clipped at C 97%, B 40%, A 20% of the steps")


def test_malformed_objects_are_shown_by_kind_where_there_are_any(tiny: ExperimentData) -> None:
    found = {"free/malformed/unclosed": 7.0, "free/malformed/stray_tokens": 0.0, "free/coord_mass": 0.25}
    runs = (dataclasses.replace(tiny.runs[0], metrics=found), *tiny.runs[1:])
    _, counts, kinds = free_tables(dataclasses.replace(tiny, runs=runs))
    assert kinds.columns == ("group", "seed", "unclosed")
    assert cells(kinds, "A", "0")["unclosed"] == "7"
    # The mass is that of free decoding: the grammar would leave it 1 of 1 at emitted slots.
    assert cells(counts, "A", "0")["probability of coord tokens"] == "0.250"


def test_one_seed_in_one_group_is_said_though_the_groups_have_two_together(tiny: ExperimentData) -> None:
    chosen = [run for run in tiny.runs if run.name in ("A-s1", "B-s0")]
    text = "\n".join(notes(dataclasses.replace(tiny, runs=tuple(chosen))))
    assert "these checkpoints, not these losses" in text
    mixed = [run for run in tiny.runs if run.name in ("A-s0", "A-s1", "B-s0")]
    assert "Groups with one seed are checkpoints" in "\n".join(notes(dataclasses.replace(tiny, runs=tuple(mixed))))


def test_the_summary_counts_in_grammar(tiny: ExperimentData) -> None:
    assert summary(dataclasses.replace(tiny, runs=tiny.runs[:1])) == "1 group x seed 0; 1 run: 1 finished"

"""Runs that failed for good: the report shows the hole and compares nothing that is not there."""

import io
from pathlib import Path

from rich.console import Console

from coordexp.report.study.load import load_experiment
from coordexp.report.study.study import Study
from coordexp.report.text.render import render_report, to_markdown
from coordexp.tracking import open_tracker
from tests.unit.report.report_support import write_experiment
from tests.unit.report.study.test_study import study

WHY = "step 21: the loss is nan"


def study_with_failed(store: Path, name: str, failed: str, seeds: tuple[int, ...]) -> Study:
    """Return the study of A and C, one run of which failed at step 20."""
    uri = write_experiment(store, name, groups=("A", "C"), seeds=seeds, unfinished=(failed,))
    (run_id,) = [run.run_id for run in load_experiment(uri, name).runs if run.name == failed]
    tracker = open_tracker(uri, experiment=name, artifact_root=store / "mlartifacts")
    tracker.finish(run_id, "FAILED", message=WHY)
    return study(load_experiment(uri, name), store, store / "cache")


def printed(found: Study) -> str:
    text = io.StringIO()
    render_report(found, Console(file=text, width=240))
    assert WHY in to_markdown(found)
    return text.getvalue()


def test_a_group_whose_only_run_failed_has_no_value_and_no_difference(store: Path) -> None:
    found = study_with_failed(store, "only", "C-s0", seeds=(0,))
    assert found.missing[0] == f"C-s0 FAILED at step 20: {WHY}"
    assert found.comparison is not None
    assert found.comparison.groups == ("A",)
    assert found.comparison.pairs == ()
    assert found.verdict.startswith("Without C-s0: ")
    text = printed(found)
    assert f"C-s0 FAILED at step 20: {WHY}" in text
    assert "1 failed" in text
    assert "better" not in text
    assert "FAILED, step 20 of 60" in text


def test_a_failed_seed_of_two_is_left_out_and_the_difference_is_of_the_seeds_both_have(store: Path) -> None:
    found = study_with_failed(store, "half", "C-s1", seeds=(0, 1))
    assert found.missing[0] == f"C-s1 FAILED at step 20: {WHY}"
    comparison = found.comparison
    assert comparison is not None
    assert comparison.seeds == {"A": (0, 1), "C": (0,)}
    (pair,) = comparison.pairs
    assert pair.num_seeds == 1
    assert pair.paired_by_seed
    assert pair.seed_std is None  # nothing is known of how seeds differ: checkpoints, not losses
    assert found.verdict.startswith("Without C-s1: ")
    both = comparison.value_by_seed["A"][0].value - comparison.value_by_seed["C"][0].value
    assert abs(pair.difference.value - both) < 1e-12, "the difference takes in a seed that C does not have"
    text = printed(found)
    assert "is better" not in text
    assert "Groups with one seed are checkpoints: a comparison with them is not one of losses." in text

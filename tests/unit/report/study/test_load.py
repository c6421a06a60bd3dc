from pathlib import Path

import pytest

from coordexp.errors import TrackingError
from coordexp.report.study.data import ExperimentData, Point
from coordexp.report.study.load import load_experiment
from tests.support.metrics import unregistered


def test_runs_come_by_group_and_seed_with_their_states(tiny: ExperimentData) -> None:
    assert [(run.name, run.state, run.step) for run in tiny.runs] == [
        ("A-s0", "finished", 100),
        ("A-s1", "finished", 100),
        ("B-s0", "finished", 100),
        ("B-s1", "failed", 60),
        ("C-s0", "running", 40),
        ("C-s1", "waiting", 0),
    ]
    assert tiny.runs[3].message == "the loss is not finite at step 61 [term box_l1]"
    assert tiny.runs[0].params["training.max_steps"] == "100"
    assert [len(runs) for runs in tiny.groups.values()] == [2, 2, 2]


def test_curves_are_the_losses_and_the_subset_ap(tiny: ExperimentData) -> None:
    curves = tiny.runs[0].curves
    assert len(curves["train_total_loss"]) == 10
    assert curves["subset/constrained/expected/AP"] == (Point(50, 0.15), Point(100, 0.30))
    assert "free/malformed" not in curves
    assert unregistered(name for run in tiny.runs for name in run.metrics) == []


def test_without_a_name_the_last_started_experiment_is_read(uri: str) -> None:
    assert load_experiment(uri).name == "tiny"
    assert load_experiment(uri, "single").name == "single"


def test_an_unknown_experiment_is_answered_with_the_known_ones(uri: str) -> None:
    with pytest.raises(TrackingError, match=r"has no experiment 'tinny', or it was deleted there; did you mean tiny"):
        load_experiment(uri, "tinny")
    with pytest.raises(TrackingError, match=r"'empty' .* has no runs yet"):
        load_experiment(uri, "empty")


def test_a_missing_database_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match="there is no MLflow database at"):
        load_experiment(f"sqlite:///{tmp_path}/mlflow.db")
    assert list(tmp_path.iterdir()) == []

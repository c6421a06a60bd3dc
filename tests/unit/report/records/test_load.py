"""What a report reads of an experiment, and which of its two sources it believes."""

import dataclasses
from pathlib import Path

import pytest

from coordexp.errors import TrackingError
from coordexp.report.records.data import ExperimentData, Point, RunRecord, State
from coordexp.report.records.load import joined, load_experiment
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
    with pytest.raises(TrackingError, match=r"'tinny'.*\btiny\b"):
        load_experiment(uri, "tinny")
    with pytest.raises(TrackingError, match="'empty'"):
        load_experiment(uri, "empty")


def test_a_missing_database_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match=f"{tmp_path}/mlflow.db"):
        load_experiment(f"sqlite:///{tmp_path}/mlflow.db")
    assert list(tmp_path.iterdir()) == []


def record(name: str, state: State, **fields: object) -> RunRecord:
    return dataclasses.replace(RunRecord("", "C", 0, state), **{"run_dir": name, **fields})


MLFLOW_IDS = {"run_id": "r1", "parent_id": "p1", "key": "k1"}


@pytest.mark.parametrize(
    ("server_state", "disk_state", "source"),
    [
        ("running", "running", "folder"),  # MLflow hears of steps later
        ("running", "failed", "folder"),
        ("failed", "running", "folder"),  # the same command goes on
        ("waiting", "finished", "folder"),  # the server was away
        ("finished", "finished", "MLflow"),  # it has the whole run
        ("finished", "running", "MLflow"),
        ("running", "waiting", "MLflow"),  # the folder has no status yet
    ],
)
def test_of_two_sources_the_one_that_knows_more_wins(server_state: State, disk_state: State, source: str) -> None:
    on_server = record("MLflow", server_state, step=1, **MLFLOW_IDS)
    on_disk = record("folder", disk_state, step=2)
    run = joined(on_server, on_disk)
    assert run.run_dir == source
    assert run.step == (1 if source == "MLflow" else 2), "numbers belong to the state beside them"
    assert (run.run_id, run.parent_id, run.key) == tuple(MLFLOW_IDS.values()), "only MLflow has these"


def test_a_run_that_one_source_has_is_taken_as_it_stands_there() -> None:
    alone = record("folder", "running")
    assert joined(None, alone) is alone
    assert joined(alone, None) is alone

"""The ablation command from lock to report, without Ray and with a stand-in for the trainer core."""

import json
import re

import pytest

from coordexp.config import load_config
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ComparisonError, ConfigError, DataError, ResourceError, TrackingError, TrainingError
from coordexp.report.records.load import load_experiment
from coordexp.runs.experiment import read_record
from coordexp.runs.plan import plan_runs
from coordexp.tracking.connection import connect
from coordexp.tracking.publish import tracking_uri
from tests.support.ablation import StandIn, make_config, run

pytestmark = pytest.mark.timeout(240)


@pytest.mark.usefixtures("unreported")
def test_epochs_over_a_part_of_the_images_become_steps(base, runs_dir):
    data = {"shapes": {"num_train": 8, "num_val": 3}, "max_train_images": 5}
    training = {"epochs": 3, "per_device_batch_size": 2}
    config = make_config(base, runs_dir, "epochs", data=data, training=training)
    function = StandIn()
    code, text = run(config, function)
    assert (code, function.done) == (0, ["A", "C"])
    assert re.search(r"training\.epochs: 3\b.*\b5 training images.*\b9 steps of 2\b", text)
    plan = plan_runs(config)[0]
    stored = json.loads(plan.folder.fingerprint.read_text(encoding="utf-8"))["config"]
    assert stored["training"]["max_steps"] == 9
    assert stored["data"]["max_train_images"] == 5
    assert load_config(plan.folder.config).training.num_steps == 9
    recorded = load_experiment(tracking_uri(config), "epochs")
    assert {run.params["training.max_steps"] for run in recorded.runs} == {"9"}
    again = StandIn()
    assert run(config, again)[0] == 0
    assert again.done == []


def states(config: ExperimentConfig) -> dict[str, str]:
    return {plan.name: plan.status().state for plan in plan_runs(config)}


def test_all_runs_are_done_recorded_and_reported_and_done_once(base, runs_dir, request):
    config = make_config(base, runs_dir, "whole")
    first = StandIn()
    code, text = run(config, first)
    assert (code, first.done) == (0, ["A", "C"])
    assert "C-s0  finished at step 1" in text
    assert "0.250" in text
    assert "0.500" in text
    assert (runs_dir / "whole" / "report" / "report.md").is_file()
    data = load_experiment(tracking_uri(config), "whole")
    assert {run.name: (run.state, run.metrics["constrained/expected/AP"]) for run in data.runs} == {
        "A-s0": ("finished", 0.25),
        "C-s0": ("finished", 0.5),
    }
    assert data.codec_ceiling > 0.9
    files = [path for path in (runs_dir / "mlartifacts" / "whole").rglob("*") if path.is_file()]
    # With the ablation itself: its record, the report, and the annotations it was made from.
    shared = {path.name for path in files if path.parent.name in ("report", "data")} | {"experiment.json"}
    assert {
        "experiment.json",
        "report.html",
        "report.json",
        "ap.png",
        "ap.svg",
        "instances_val.json",
        "val_images.json",
    } <= {path.name for path in files}
    assert sorted(path.name for path in files if path.name not in shared) == sorted(
        2 * ["MLmodel", "config.yaml", "fingerprint.json", "progress.log", "measured.json", "metrics.jsonl"]
        + 2 * ["model.safetensors", "detections.argmax.json", "detections.expected.json"]
    )

    client = connect(tracking_uri(config))
    experiment = client.get_experiment_by_name("whole").experiment_id
    ended = {run.info.run_id: run.info.end_time for run in client.search_runs([experiment])}
    assert len(ended) == 3
    request.getfixturevalue("undrawn")
    again = StandIn()
    code, text = run(config, again)
    assert (code, again.done) == (0, [])
    assert "A-s0  finished before" in text
    assert {run.info.run_id: run.info.end_time for run in client.search_runs([experiment])} == ended

    # Another reading of what is finished: only the report is new, and later reports keep to it.
    assert data.readings == {"A": "argmax", "C": "expected"}
    other = make_config(base, runs_dir, "whole", evaluation={"reading": {"A": "expected"}})
    code, text = run(other, again)
    assert (code, again.done) == (0, [])
    assert "Own reading: A, C by expectation" in text
    assert load_experiment(tracking_uri(config), "whole").readings == {"A": "expected", "C": "expected"}
    assert read_record(runs_dir / "whole").reading == {"A": "expected", "C": "expected"}


@pytest.mark.usefixtures("unreported")
def test_another_configuration_is_refused_and_fresh_starts_over(base, runs_dir):
    config = make_config(base, runs_dir, "changed")
    assert run(config, StandIn())[0] == 0
    changed = make_config(base, runs_dir, "changed", training={"max_steps": 7})
    with pytest.raises(ConfigError, match=r"training\.max_steps: 1000 -> 7"):
        run(changed, StandIn())

    function = StandIn()
    code, _ = run(changed, function, fresh=True)
    assert (code, function.done) == (0, ["A", "C"])
    assert (runs_dir / "changed.old-1" / "A-s0" / "status.json").is_file()
    data = load_experiment(tracking_uri(changed), "changed")
    assert {run.params["training.max_steps"] for run in data.runs} == {"7"}
    assert "Not shown: 2 runs" in data.others[0]


@pytest.mark.usefixtures("undrawn")
def test_a_failing_run_stops_no_other_and_is_tried_again(base, runs_dir):
    config = make_config(base, runs_dir, "failing")
    code, text = run(config, StandIn({"A": TrainingError("the loss is nan at step 3")}))
    assert code == 1
    assert states(config) == {"A-s0": "failed", "C-s0": "finished"}
    assert "A-s0  failed at step 0" in text
    assert text.splitlines()[-1] == (
        "1 of 2 runs failed (A-s0: the loss is nan at step 3); where the cause is gone, the same command does them "
        "again from their last checkpoints"
    )
    assert "0.500" in text
    data = load_experiment(tracking_uri(config), "failing")
    assert [(run.name, run.state, run.message) for run in data.runs if run.state != "finished"] == [
        ("A-s0", "failed", "the loss is nan at step 3")
    ]
    assert "TrainingError" in (runs_dir / "failing" / "A-s0" / "error.log").read_text()

    # A slip in somebody's own loss file is a failed run as well, not the end of the command.
    assert run(config, StandIn({"A": AttributeError("no such field")}))[0] == 1
    assert states(config) == {"A-s0": "failed", "C-s0": "finished"}

    mended = StandIn()
    assert run(config, mended)[0] == 0
    assert mended.done == ["A"]


@pytest.mark.usefixtures("unreported")
def test_an_interrupted_run_is_marked_and_gone_on_with(base, runs_dir):
    config = make_config(base, runs_dir, "interrupted")
    code, text = run(config, StandIn({"A": KeyboardInterrupt()}))
    assert code == 130
    assert "the same command continues" in text
    assert plan_runs(config)[0].status().state == "stopped"
    data = load_experiment(tracking_uri(config), "interrupted")
    assert {run.name: run.state for run in data.runs} == {"A-s0": "stopped", "C-s0": "waiting"}
    function = StandIn()
    assert run(config, function)[0] == 0
    assert function.done == ["A", "C"]


def test_nothing_is_trained_or_recorded_where_something_is_wrong_before(base, runs_dir, tmp_path):
    function = StandIn()
    missing = {
        "format": "coco",
        "train_annotations": str(tmp_path / "none.json"),
        "train_images": str(tmp_path),
        "val_annotations": str(tmp_path / "none.json"),
        "val_images": str(tmp_path),
    }
    with pytest.raises(DataError, match=r"none\.json"):
        run(make_config(base, runs_dir, "no_data", data=missing), function)
    with pytest.raises(TrackingError, match=r"127\.0\.0\.1:9"):
        run(make_config(base, runs_dir, "no_server", tracking={"uri": "http://127.0.0.1:9"}), function)
    with pytest.raises(ResourceError, match=r"inline.*cluster\.num_workers.* 2"):
        run(make_config(base, runs_dir, "two", cluster={"executor": "inline", "num_workers": 2}), function)
    assert function.done == []
    for name in ("no_data", "no_server", "two"):
        assert not list(runs_dir.glob(f"{name}/*/status.json"))
    with pytest.raises(TrackingError, match="two"):
        load_experiment(tracking_uri(make_config(base, runs_dir, "two")), "two")


@pytest.mark.usefixtures("unreported")
def test_runs_that_differ_outside_the_factor_are_refused(base, runs_dir):
    config = make_config(base, runs_dir, "factor")
    assert run(config, StandIn({"C": TrainingError("no")}))[0] == 1
    stored = runs_dir / "factor" / "A-s0" / "fingerprint.json"
    values = json.loads(stored.read_text())
    stored.write_text(json.dumps(values | {"code": values["code"] | {"coordexp/losses/criterion.py": "0" * 16}}))
    function = StandIn()
    with pytest.raises(ComparisonError, match=r"coordexp/losses/criterion\.py"):
        run(config, function)
    assert function.done == []


def test_a_report_that_cannot_be_made_costs_no_run(base, runs_dir, monkeypatch, request):
    def full(*arguments, **options):
        raise ResourceError("the report cannot be written: no space left")

    config = make_config(base, runs_dir, "unreported")
    monkeypatch.setattr("coordexp.report.write.report_experiment", full)
    code, text = run(config, StandIn())
    assert code == 1
    assert "no space left" in text
    assert "report unreported" in text
    assert set(states(config).values()) == {"finished"}
    monkeypatch.undo()
    request.getfixturevalue("undrawn")
    again = StandIn()
    assert run(config, again)[0] == 0
    assert again.done == []

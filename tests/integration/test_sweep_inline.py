"""A whole sweep without Ray: search, halving, winners, report, resume; a stand-in for the trainer core."""

import hashlib
import json
import os
import re
import shlex
import time
from pathlib import Path

import mlflow
import pytest
import yaml

from coordexp.cli.main import parse
from coordexp.config import load_config
from coordexp.runs.status import RunStatus, read_status, write_status
from coordexp.search.space import grid
from coordexp.sweep.trials import proposed
from tests.support.sweep import STEPS, StandIn, make_places, run, true_ap, write_files

pytestmark = [pytest.mark.ci, pytest.mark.timeout(240)]

INLINE = "cluster.executor=inline"
LOG_SPACE = "{objective.lambda_coord: {low: 0.02, high: 200.0, scale: log, num: 5}}"  # 0.02 0.2 2 20 200


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return make_places(tmp_path_factory.mktemp("base"))


def runs_of(root: Path) -> dict[str, mlflow.entities.Run]:
    client = mlflow.MlflowClient(f"sqlite:///{root}/runs/mlflow.db")
    experiment = client.get_experiment_by_name("find")
    return {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


@pytest.fixture
def unplotted(monkeypatch):
    """For tests that look at no figure of the response."""
    monkeypatch.setattr("coordexp.report.sweep.write_response", lambda *_: ([], "<svg></svg>"))


def _no_final_picture_was_seen(root: Path) -> None:
    def pictures(name: str) -> set[str]:
        images = json.loads((root / name).read_text())["images"]
        return {hashlib.sha256((root / "data" / "train" / row["file_name"]).read_bytes()).hexdigest() for row in images}

    final = {hashlib.sha256(item.read_bytes()).hexdigest() for item in (root / "data" / "val").iterdir()}
    train, val = pictures("tune_train.json"), pictures("tune_val.json")
    assert (len(train), len(val), len(final)) == (18, 6, 4)
    assert not train & val
    assert not final & (train | val)
    # The same pictures as the experiment will generate for itself.
    run_config = yaml.safe_load((root / "t000-s0" / "config.yaml").read_text())
    assert run_config["data"]["val_annotations"] == str(root / "tune_val.json")
    assert run_config["data"]["train_annotations"] == str(root / "tune_train.json")


def _the_printed_commands_take_the_group(text: str) -> None:
    copy, ablation = text.strip().splitlines()[-2:]
    words = copy.split()
    assert words[0] == "cp"
    Path(words[2]).write_bytes(Path(words[1]).read_bytes())
    options = parse(shlex.split(ablation.partition("coordexp ")[2]))
    config = load_config(options.config, options.overrides)
    assert list(config.ablation.groups) == ["C", "C_tuned"]
    tuned, plain = config.run("C_tuned", 0), config.run("C", 0)
    assert tuned.objective == plain.objective.model_copy(update={"lambda_coord": 2.0})


def test_a_sweep_finds_the_weight_and_says_how_to_use_it(base, tmp_path):
    path = write_files(tmp_path, base, space=LOG_SPACE, asha="asha: {enabled: true, reduction_factor: 2.0}")
    (tmp_path / "groups").mkdir()
    (tmp_path / "groups" / "C.yaml").write_text("objective: {use_coordexp_loss: true, use_geom_loss: true}\n")

    code, text, sweep = run(path, StandIn(), INLINE)

    root = tmp_path / "runs" / "find"
    assert code == 0, text
    assert [point["objective.lambda_coord"] for point in grid(sweep.settings.space)] == [0.02, 0.2, 2.0, 20.0, 200.0]
    states = {name: read_status(root / f"{name}-s0").state for name in ("t000", "t001", "t002", "t003", "t004")}
    assert states == {"t000": "finished", "t001": "finished", "t002": "finished", "t003": "pruned", "t004": "pruned"}
    # Only the two best have further seeds.
    assert sorted(path.name for path in root.glob("t*-s[12]")) == ["t001-s1", "t001-s2", "t002-s1", "t002-s2"]
    assert (root / "t002-s1" / "merged").is_dir()
    assert "Chosen for group C: objective.lambda_coord = 2." in text
    assert re.search(r"\bt002\b.*\bt001 by 0\.1000 AP\b", text)

    group = root / "C_tuned.yaml"
    assert yaml.safe_load(group.read_text()) == {
        "objective": {"use_coordexp_loss": True, "use_geom_loss": True, "lambda_coord": 2.0}
    }
    assert re.search(r"AP 0\.5015 \(.*0\.0007\) .*\b1, 2\b.*\b6 images", group.read_text())
    assert {item.name for item in (root / "report").iterdir()} == {"report.html", "response.png", "response.svg"}

    recorded = runs_of(tmp_path)
    trials = {name: item for name, item in recorded.items() if name.startswith("t")}
    assert len(trials) == 9
    parent = recorded["find"]
    assert parent.info.status == "FINISHED"
    assert json.loads(parent.data.tags["sweep_space"]) == {
        "objective.lambda_coord": {"low": 0.02, "high": 200.0, "scale": "log", "num": 5}
    }
    for item in trials.values():
        assert item.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert item.info.status == "FINISHED"
    assert trials["t003-s0"].data.params["objective.lambda_coord"] == "20.0"
    assert trials["t003-s0"].data.tags["sweep_trial"] == "t003"
    assert trials["t003-s0"].data.tags["pruned"].startswith("at step")
    assert trials["t002-s1"].data.tags["sweep_stage"] == "winner"
    assert trials["t002-s2"].data.metrics["constrained/expected/AP"] == pytest.approx(true_ap(2.0, 2))

    _no_final_picture_was_seen(root)
    _the_printed_commands_take_the_group(text)

    before = group.read_bytes(), {name: item.data.metrics for name, item in trials.items()}
    unsent = [root / name / "recorded.json" for name in ("t000-s0", "t003-s0", "t002-s2")]
    for file in unsent:
        file.unlink()  # as if the server had been away at their ends
    code, text, _ = run(path, StandIn(stop_at=("t000-s0", 1)), INLINE)  # nothing runs again
    assert code == 0
    assert all(file.is_file() for file in unsent)
    assert (group.read_bytes(), {n: r.data.metrics for n, r in runs_of(tmp_path).items() if n != "find"}) == before


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on_and_adds_nothing_twice(base, tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()
    keys = {
        "space": "{objective.lambda_coord: {low: 0.02, high: 200.0, scale: log}}",
        "search": "search: {method: optuna, num_trials: 6, seed: 3}",
        "asha": "asha: {enabled: false}",
    }
    path = write_files(tmp_path, base, **keys)
    code, _, undisturbed = run(write_files(whole, base, **keys), StandIn(), INLINE)
    assert code == 0

    code, text, sweep = run(path, StandIn(stop_at=("t003-s0", 3)), INLINE)
    assert code == 130
    assert "the same command continues" in text
    root = tmp_path / "runs" / "find"
    assert read_status(root / "t003-s0").state == "stopped"
    assert len(proposed(sweep)) == 4
    code, text, _ = run(path, StandIn(stop_at=("t005-s2", 2)), INLINE)
    assert code == 130
    code, text, _ = run(path, StandIn(), INLINE)
    assert code == 0, text

    assert proposed(sweep) == proposed(undisturbed)
    assert (root / "t003-s0" / "attempts").read_text().split() == ["0", "2"]
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/runs/mlflow.db")
    recorded = runs_of(tmp_path)
    assert len([name for name in recorded if name.startswith("t")]) == 6 + 2 * 2
    for name, item in recorded.items():
        if name.startswith("t"):
            history = client.get_metric_history(item.info.run_id, "train_total_loss")
            assert [point.step for point in history] == [1, 2, 3, 4], name


@pytest.mark.slow
def test_a_failed_trial_is_shown_and_tried_again(base, tmp_path):
    path = write_files(tmp_path, base, space=LOG_SPACE, asha="asha: {enabled: false}")
    code, text, _ = run(path, StandIn(broken="t001-s0"), INLINE)
    assert code == 1
    assert "t001 failed: ValueError: shapes do not match" in text
    assert "Chosen for group C: objective.lambda_coord = 2." in text
    assert runs_of(tmp_path)["t001-s0"].info.status == "FAILED"
    code, text, _ = run(path, StandIn(), INLINE)
    assert code == 0, text
    assert "t001 failed" not in text


@pytest.mark.slow
@pytest.mark.usefixtures("unplotted")
def test_the_time_since_a_killed_sweep_costs_none_of_its_budget(base, tmp_path):
    path = write_files(tmp_path, base, space="{objective.lambda_coord: {values: [1.0]}}", asha="asha: {enabled: false}")
    options = (INLINE, "sweep.winners.seeds=[]", "cluster.max_gpu_hours=10.0")
    assert run(path, StandIn(stop_at=("t000-s0", 3)), *options)[0] == 130
    directory = tmp_path / "runs" / "find" / "t000-s0"
    killed_at = time.time() - 48 * 3600
    write_status(directory, RunStatus("running", step=2, since=killed_at - 60))
    for file in directory.iterdir():
        os.utime(file, (killed_at, killed_at))
    code, text, _ = run(path, StandIn(), *options)
    assert code == 0, text
    assert 60 <= read_status(directory).seconds < 600


@pytest.mark.usefixtures("unplotted")
def test_search_and_winners_share_a_budget(base, tmp_path):
    space = "{objective.lambda_coord: {values: [1.0, 2.0]}}"
    path = write_files(tmp_path, base, space=space, asha="asha: {enabled: false}")
    directory = tmp_path / "runs" / "find"
    assert run(path, StandIn(stop_at=("t001-s2", 1)), INLINE)[0] == 130
    (directory / "t001-s2" / "status.json").unlink()  # as if it had not begun
    hour = [f"t{trial:03d}-s{seed}" for trial in (0, 1) for seed in (0, 1)]
    for name in hour:
        assert read_status(directory / name).state == "finished"
        write_status(directory / name, RunStatus("finished", step=STEPS, seconds=3600.0))

    code, text, _ = run(path, StandIn(), INLINE, "cluster.max_gpu_hours=4.0")

    assert code == 3, text
    assert "4 CPU hours" in text
    assert not any((directory / name / "metrics.jsonl").exists() for name in ("t000-s2", "t001-s2"))
    code, text, _ = run(path, StandIn(), INLINE, "cluster.max_gpu_hours=6.5")
    assert code == 0, text
    assert {read_status(directory / f"t{trial:03d}-s2").state for trial in (0, 1)} == {"finished"}

"""What a dry run says of a plan: its power, its time, its budget, and what does not fit."""

import json
import os

import pytest
from rich.console import Console

from coordexp.ablation.describe import describe, summary
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ConfigError, TokenizerError
from coordexp.runs.plan import plan_runs
from coordexp.runs.status import RunStatus, write_status
from coordexp.statistics.power import planned_detectable


def lines(runs_dir, *, seeds=(0,), **data):
    sections = {"experiment": {"name": "x", "runs_dir": str(runs_dir)}, "ablation": {"seeds": seeds}}
    config = ExperimentConfig.model_validate(sections | ({"data": data} if data else {}))
    return {line[:16].strip(): line[16:] for line in summary(config, plan_runs(config))}


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_the_smallest_difference_is_that_of_images_and_seeds(tmp_path, seeds):
    line = lines(tmp_path, seeds=seeds, shapes={"num_val": 250})["can detect"]
    for fact in (f"{planned_detectable(250, len(seeds)):.3f}", "80 % power", "5 % level", "250 validation"):
        assert fact in line
    assert ("checkpoints" in line) == (len(seeds) == 1)


def test_what_a_dry_run_has_not_looked_at_is_said(tmp_path):
    config = ExperimentConfig.model_validate({"experiment": {"name": "x", "runs_dir": str(tmp_path)}})
    away = ExperimentConfig.model_validate({**config.model_dump(), "model": {"path": "someone/not-here"}})
    (line,) = (line for line in summary(config, plan_runs(config)) if line.startswith("not checked"))
    (line_of_hub,) = (line for line in summary(away, plan_runs(away)) if line.startswith("not checked"))
    for fact in ("annotations", "weights", "coordexp doctor"):
        assert fact in line
    assert "hub" not in line
    assert "someone/not-here" in line_of_hub
    assert "hub" in line_of_hub


def test_the_images_of_a_file_are_counted(tmp_path):
    path = tmp_path / "val.json"
    images = [{"id": i, "width": 10, "height": 10, "file_name": f"{i}.jpg"} for i in range(7)]
    path.write_text(json.dumps({"images": images, "annotations": [], "categories": [{"id": 1, "name": "a"}]}))
    paths = dict.fromkeys(("train_annotations", "train_images", "val_annotations", "val_images"), str(path))
    assert "; 7 validation images" in lines(tmp_path, format="coco", **paths)["can detect"]
    path.unlink()
    line = lines(tmp_path, format="coco", **paths)["can detect"]
    assert "unknown" in line
    assert str(path) in line


def test_units_are_what_a_plan_detects_by(tmp_path):
    path = tmp_path / "val.json"
    images = [{"id": i, "width": 10, "height": 10, "file_name": f"{i}.jpg", "clip": i // 20} for i in range(400)]
    path.write_text(json.dumps({"images": images, "annotations": [], "categories": [{"id": 1, "name": "a"}]}))
    paths = dict.fromkeys(("train_annotations", "train_images", "val_annotations", "val_images"), str(path))
    line = lines(tmp_path, format="coco", unit_by="clip", **paths)["can detect"]
    for fact in (f"{planned_detectable(20, 1):.3f}", "400 validation images", "20 units"):
        assert fact in line
    without_units = lines(tmp_path, format="coco", unit_by="scene", **paths)["can detect"]
    assert "400 validation images" in without_units
    assert "unit" not in without_units


def test_a_dry_run_says_how_many_runs_fit_at_once_and_what_of_the_budget_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr("coordexp.ablation.describe.local_nodes", lambda num_gpus: [{"CPU": 64.0, "GPU": 8.0}])
    config = ExperimentConfig.model_validate(
        {
            "experiment": {"name": "x", "runs_dir": str(tmp_path)},
            "cluster": {"gpus_per_worker": 1.0, "num_workers": 4, "max_gpu_hours": 30.0},
            "ablation": {"seeds": [0, 1, 2]},
        }
    )
    plans = plan_runs(config)
    shown = {line[:16].strip(): line[16:] for line in summary(config, plans)}
    assert shown["runs at once"] == "2 on (64 CPUs, 8 GPUs)"
    assert "known once" in shown["estimated time"]
    assert shown["budget"] == "30 GPU hours, 0 used"

    write_status(plans[0].run_dir, RunStatus("finished", seconds=7200.0))
    write_status(plans[1].run_dir, RunStatus("stopped", seconds=3600.0))
    shown = {line[:16].strip(): line[16:] for line in summary(config, plans)}
    assert shown["estimated time"].startswith("2 h 0 min ")
    assert shown["budget"] == "30 GPU hours, 12 used"

    # Its command was killed days ago, an hour after it had got its workers.
    write_status(plans[2].run_dir, RunStatus("running", since=1000.0))
    os.utime(plans[2].run_dir / "status.json", (4600.0, 4600.0))
    shown = {line[:16].strip(): line[16:] for line in summary(config, plans)}
    assert shown["budget"] == "30 GPU hours, 16 used"


def test_a_dry_run_says_what_does_not_fit(tmp_path, monkeypatch):
    monkeypatch.setattr("coordexp.ablation.describe.local_nodes", lambda num_gpus: [{"CPU": 64.0, "GPU": 4.0}] * 2)
    config = ExperimentConfig.model_validate(
        {"experiment": {"name": "x", "runs_dir": str(tmp_path)}, "cluster": {"gpus_per_worker": 8.0}}
    )
    shown = {line[:16].strip(): line[16:] for line in summary(config, plan_runs(config))}
    for fact in ("none", "1 x (1 CPU, 8 GPUs)", "(64 CPUs, 4 GPUs) + (64 CPUs, 4 GPUs)"):
        assert fact in shown["runs at once"]
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    shown = {line[:16].strip(): line[16:] for line in summary(config, plan_runs(config))}
    assert "head:6379" in shown["runs at once"]


OFFSETS = {"optimizer": "multimodal_coord_offset"}


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"cluster": {"strategy": "zero2"}}, "has nothing to share"),
        ({"objective": {"extra": {"smoth_l1": 1}}}, r"objective\.extra\.smoth_l1.*did you mean smooth_l1"),
        (
            {"custom": {"coord_offset": {"enabled": True, "ids": {"start": 3, "end": 9}}}, "training": OFFSETS},
            r"custom\.coord_offset\.ids is 3\.\.9, but embedded has its coord tokens at 641\.\.1640",
        ),
        (
            {"custom": {"coord_offset": {"enabled": True, "ids": [700, 3]}}, "training": OFFSETS},
            r"custom\.coord_offset\.ids is a list with 3, but embedded has its coord tokens at 641\.\.1640",
        ),
    ],
)
def test_a_dry_run_refuses_what_the_run_would(tmp_path, sections, sentence):
    experiment = {"name": "x", "runs_dir": str(tmp_path)}
    config = ExperimentConfig.model_validate({"experiment": experiment, "ablation": {"groups": {"A": {}}}, **sections})
    with pytest.raises((ConfigError, TokenizerError), match=sentence):
        describe(config, Console())

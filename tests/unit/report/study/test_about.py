"""The box at the top: what the groups are in formula, and everything of the runs that is on record."""

from pathlib import Path

import pytest
import yaml

from coordexp.report.records.artifacts import Artifacts
from coordexp.report.records.data import ExperimentData, Point, RunRecord
from coordexp.report.study.about import Fairness, about
from coordexp.report.study.study import Study
from coordexp.report.text.notes import about_lines, terms_table

PARAMS = {
    "model.path": "embedded", "training.tuning": "lora", "training.lora.rank": "16", "data.format": "shapes",
    "data.shapes.num_train": "2400", "data.shapes.num_val": "300", "evaluation.decoding": '["constrained", "free"]',
}  # fmt: skip


def run_of(group: str, folder: Path, *, config: dict[str, object] | None, **params: str) -> RunRecord:
    run_dir = folder / f"{group}-s0"
    run_dir.mkdir()
    if config is not None:
        whole = {"experiment": {"name": "x", "group": group, "seed": 0}, **config}
        (run_dir / "config.yaml").write_text(yaml.safe_dump(whole))
    return RunRecord(
        f"id{group}", group, 0, "finished", step=300, run_dir=str(run_dir), params={**PARAMS, **params},
        metrics={"final/train_seconds": 1800.0, "final/seconds": 2700.0}, hardware="2 x H200",
        curves={"num_images": (Point(10, 160.0), Point(20, 160.0))}, started=0.0, ended=3660.0,
        commit="0123456789abcdef",
        reading="argmax" if group == "A" else "expected",
    )  # fmt: skip


@pytest.fixture
def study(tmp_path: Path) -> Study:
    geometry = {"use_coord_ce": True, "use_coordexp_loss": True, "use_geom_loss": True, "alpha_l1": 2.0}
    target = {"soft_target": {"weight": 0.5, "shape": "two_bin", "width": 1.0}}
    runs = (
        run_of("A", tmp_path, config={}),
        run_of("C", tmp_path, config={"objective": {**geometry, "extra": target}}, **{"training.lora.rank": "64"}),
        run_of("new", tmp_path, config={"objective": {"a_key_of_tomorrow": 1}}),
    )
    data = ExperimentData("x", "", runs)
    return Study(data, about=about(data, Artifacts(data, cache=tmp_path / "cache", runs_dir=tmp_path)))


def test_each_group_is_a_formula_and_each_fact_is_said_once(study: Study) -> None:
    assert dict(about_lines(study)) == {
        "A": "loss = text_ce + coord_ce; boxes read by argmax (the most likely bin)",
        "C": "loss = text_ce + coord_ce + 2 x box_l1 + box_giou + 0.5 x soft_target; boxes read by expectation (the "
        "mean over bins)",
        "model": "A, new: embedded, LoRA of rank 16; C: embedded, LoRA of rank 64",
        "data": "drawn shapes: 2,400 images to train, 300 to test",
        "training": "300 steps a run, 320 images in all",
        "decoding": "constrained and free",
        "date": "1970-01-01 00:00 to 1970-01-01 01:01 UTC",
        "commit": "0123456789ab",
        "hardware": "2 x H200",
        "hours": "1.5 of training, all runs added up; 2.2 with evaluation",
    }


def test_a_group_that_writes_digits_does_not_look_like_group_a(tmp_path: Path) -> None:
    in_digits = {"custom": {"coord_tokens": {"enabled": False}}}
    data = ExperimentData("x", "", (run_of("A", tmp_path, config={}), run_of("T", tmp_path, config=in_digits)))
    found = dict(about_lines(Study(data, about=about(data, Artifacts(data, cache=tmp_path / "c", runs_dir=tmp_path)))))
    assert found["A"] == "loss = text_ce + coord_ce; boxes read by argmax (the most likely bin)"
    assert found["T"] == (
        "loss = text_ce + coord_ce; coordinates written as digits of plain text, no coord tokens; boxes read as written"
    )


def test_data_files_are_named_without_their_folders(tmp_path: Path) -> None:
    files = {
        "data.format": "coco",
        "data.train_annotations": "/secret/train.json",
        "data.val_annotations": "/b/val.json",
    }
    data = ExperimentData("x", "", (run_of("A", tmp_path, config=None, **files),))
    found = about(data, Artifacts(data, cache=tmp_path / "cache", runs_dir=tmp_path))
    assert found is not None
    assert dict(found.facts)["data"] == "trained on train.json, tested on val.json"
    assert found.groups == {}
    assert terms_table(found) is None


NAMES = ("A-s0", "C-s0")


@pytest.mark.parametrize(
    ("hardware", "said"),
    [
        ((), ""),
        (("CPU with AVX2",), ""),
        (
            ("NVIDIA H200", "CPU with AVX2"),
            " They ran on different hardware, which can change last digits: NVIDIA H200, CPU with AVX2.",
        ),
    ],
)
def test_different_hardware_is_said_and_refuses_nothing(hardware, said):
    fairness = Fairness(True, ("objective",), (), checked=NAMES, hardware=hardware)
    assert fairness.sentence == f"The 2 runs differ in nothing, the declared factor (objective) included.{said}"
    with_files = Fairness(True, ("objective",), (), checked=NAMES, foreign=("rtdetr",), hardware=hardware)
    assert f"{said} Foreign: rtdetr" in with_files.sentence

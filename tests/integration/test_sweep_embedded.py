"""A real sweep of the embedded model, inline: the trainer core meets the tuning split."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from coordexp.cli.sweep import run_and_report
from coordexp.runs.reporter import read_rows
from coordexp.sweep.load import load_sweep

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SWEEP = Path(__file__).parents[2] / "experiments" / "sweeps" / "sigma_w1.yaml"
FEW = [
    "cluster.executor=inline",
    "training.max_steps=2",
    "training.per_device_batch_size=2",
    "data.bucket_size=null",
    "training.logging_steps=1",
    "evaluation.every_steps=1",
    "evaluation.subset_images=2",
    "evaluation.loss_images=2",
    "evaluation.decoding=[constrained]",
    "data.shapes.num_train=12",
    "data.shapes.num_val=3",
    "data.image_cache_mib=0",
    "sweep.tuning_split={num_images: 4, fraction: null, seed: 0}",
    "sweep.space={custom.coord_soft_ce_w1.target_sigma: {values: [1.0, 4.0]}}",
    "sweep.winners={num: 1, seeds: [1]}",
    "sweep.asha.enabled=false",
]


def test_two_trials_and_a_winner_of_the_embedded_model(tmp_path):
    sweep = load_sweep(SWEEP, [*FEW, f"experiment.runs_dir={tmp_path}/runs"])
    text = io.StringIO()

    code = run_and_report(sweep, console=Console(file=text, width=160))

    assert code == 0, text.getvalue()
    root = tmp_path / "runs" / "sweep_sigma_w1"
    for name in ("t000-s0", "t001-s0"):
        rows = read_rows(root / name / "metrics.jsonl")
        assert any("constrained/expected/AP" in row.metrics for row in rows)
        assert {row.step for row in rows if "subset/constrained/expected/AP" in row.metrics} == {1, 2}
        assert not (root / name / "merged").exists()
    first, second = (read_rows(root / name / "metrics.jsonl")[0].metrics for name in ("t000-s0", "t001-s0"))
    assert first["train_total_loss"] != second["train_total_loss"]  # the searched weight reached the loss
    held_out = {row["id"] for row in json.loads((root / "tune_val.json").read_text())["images"]}
    found = json.loads((root / "t000-s0/eval/final/constrained/detections.expected.json").read_text())
    assert {row["image_id"] for row in found} <= held_out
    assert len(held_out) == 4
    assert "Chosen for group D: custom.coord_soft_ce_w1.target_sigma = " in text.getvalue()
    assert "target_sigma: " in (root / "D_tuned.yaml").read_text()

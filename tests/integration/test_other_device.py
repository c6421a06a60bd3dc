"""No part of a run mixes tensors of its device with the CPU's: what a GPU would refuse in its first minute."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from coordexp.runs.folder import RunFolder
from coordexp.runs.reporter import read_rows
from tests.support.training import prepared, small_config, train_here, with_changes

ROOT = Path(__file__).parents[2]
TERMS_OF_BINS = ("box_centre_l1", "box_ciou", "box_diou", "coord_slice_ce", "emd2", "ordinal_ce", "smooth_l1")
TERMS_OF_BINS += ("soft_target", "text_gate")


def run_elsewhere(config, *, is_killed=False, first=""):
    """Run it on the other device in a process of its own, and return what became of that."""
    file = config.experiment.runs_dir / "config.json"
    file.write_text(config.model_dump_json())
    lines = [first, "from pathlib import Path", "from tests.support.other_device import main"]
    lines.append(f"main(Path({str(file)!r}), is_killed={is_killed})")
    return subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True)


def numbers_of(config):
    rows = read_rows(RunFolder.of(config).metrics)
    timed = ("second", "per_second", "throughput", "mfu", "memory", "merge_lost")  # and float32's own rounding
    return {
        f"{name} at {row.step}": value
        for row in rows
        for name, value in row.metrics.items()
        if not any(word in name for word in timed)
    }


@pytest.mark.slow
def test_a_run_that_is_killed_and_resumed_there_ends_as_one_on_the_cpu(base, tmp_path):
    steps = {"max_steps": 2, "checkpoint_steps": 1}
    small = {"max_new_tokens": 8, "loss_images": 2}
    here, there = (
        prepared(with_changes(small_config(base, tmp_path / name, **steps), evaluation=small))
        for name in ("here", "there")
    )
    train_here(here)
    done = run_elsewhere(there, is_killed=True)
    assert done.returncode == 0, done.stderr
    assert "resumes at step 1" in done.stdout
    expected = numbers_of(here)
    assert {"train_total_loss at 1", "eval_total_loss at 2", "constrained/argmax/AP at 2"} <= expected.keys()
    assert numbers_of(there) == pytest.approx(expected, rel=1e-3, nan_ok=True)
    merged = [load_file(RunFolder.of(config).path / "merged" / "model.safetensors") for config in (here, there)]
    for name, weight in merged[0].items():
        torch.testing.assert_close(merged[1][name], weight, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.slow
def test_what_stays_behind_is_refused(base, tmp_path):
    """Negative control: a batch that nobody moves."""
    config = prepared(small_config(base, tmp_path))
    stays = "from coordexp.data.batch import Batch\nBatch.to = lambda self, device, **keys: self"
    done = run_elsewhere(config, first=stays)
    assert done.returncode == 1
    assert "tensors of two devices" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"gradient_accumulation_steps": 2}},
        {"training": {"tuning": "dora", "gradient_checkpointing": True, "log_term_gradients": 2}},
        {"data": {"structure": "spec"}},
        {"evaluation": {"decoding": ("constrained", "free"), "every_steps": 2}},
        {"training": {"normalise_by": "data"}, "custom": {"coord_soft_ce_w1": {"enabled": True}}},
        {
            "custom": {"coord_tokens": {"enabled": False}, "coord_offset": {"enabled": False}},
            "objective": {"use_coordexp_loss": False, "use_geom_loss": False, "extra": {"ntl": {"weight": 1.0}}},
            "training": {"optimizer": "multimodal"},
        },
        {"objective": {"extra": {name: {"weight": 1.0} for name in TERMS_OF_BINS}}},
    ],
    ids=["accumulated", "dora", "added markers", "free", "group D", "text arm", "all terms"],
)
def test_no_configuration_mixes_devices(base, tmp_path, sections):
    config = prepared(with_changes(small_config(base, tmp_path), **sections))
    done = run_elsewhere(config)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (RunFolder.of(config).path / "merged" / "model.safetensors").is_file()

"""Rows and checkpoints of a local run."""

import pytest

from coordexp.runs.commit import committed_checkpoints
from coordexp.runs.folder import step_of
from coordexp.runs.reporter import LocalReporter
from coordexp.runs.rows import Row, append_rows, read_rows


def _checkpoint(path, text="weights"):
    path.mkdir(parents=True)
    (path / "weights.bin").write_text(text)
    return path


def _row(step):
    return Row(step=step, time=float(step), metrics={"train_total_loss": 1.0 / step})


def test_commits_keep_the_newest_checkpoints(tmp_path):
    reporter = LocalReporter(tmp_path / "run", keep_checkpoints=2)
    for step in (10, 20, 30):
        reporter.commit([_row(step)], step=step, checkpoint=_checkpoint(tmp_path / f"scratch-{step}"))
    assert [step_of(path) for path in committed_checkpoints(tmp_path / "run")] == [20, 30]
    assert [row.step for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [10, 20, 30]
    assert not (tmp_path / "scratch-30").exists()


def test_nan_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        append_rows(tmp_path / "metrics.jsonl", [Row(step=1, time=0.0, metrics={"x": float("nan")})])
    assert not (tmp_path / "metrics.jsonl").exists()

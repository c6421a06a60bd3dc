"""What the driver of a run commits before the workers that wait for it go on."""

import pytest
from ray.train import Checkpoint

from coordexp.cluster.driver import CommitRows
from coordexp.errors import CheckpointError
from coordexp.runs.commit import committed_checkpoints
from coordexp.runs.reporter import read_rows


def report(commit, run_dir, step):
    """Report one row and one checkpoint, as Ray does with the metrics of two ranks."""
    path = run_dir / "checkpoints" / f"step_{step:06d}"
    path.mkdir(parents=True)
    (path / "weights").write_text(str(step))
    rows = [{"step": step, "time": 1.0, "metrics": {"epoch": 0.5}}]
    first, second = ({"step": step, "rows": found, "is_final": False} for found in (rows, []))
    commit.after_report(None, [first, second], Checkpoint(str(path)))


def test_workers_go_on_once_rows_and_checkpoint_are_there_and_old_ones_gone(tmp_path):
    found = []

    def look():
        rows = [row.step for row in read_rows(tmp_path / "metrics.jsonl")]
        found.append((rows, [path.name for path in committed_checkpoints(tmp_path)]))

    commit = CommitRows(tmp_path, keep_checkpoints=1, let_go_on=look)
    report(commit, tmp_path, 1)
    report(commit, tmp_path, 2)
    assert found == [([1], ["step_000001"]), ([1, 2], ["step_000002"])]


def test_workers_do_not_go_on_where_a_report_was_not_committed(tmp_path):
    went_on = []
    commit = CommitRows(tmp_path, keep_checkpoints=1, let_go_on=lambda: went_on.append(True))
    report(commit, tmp_path, 1)
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(CheckpointError, match="the same command goes on"):
        report(commit, tmp_path, 2)
    assert went_on == [True]
    assert [path.name for path in committed_checkpoints(tmp_path)] == ["step_000001"]

"""A run that is killed at any touch of the disk, and goes on by the same command, ends as if nothing had been."""

import itertools
import os
import shutil
from pathlib import Path

import pytest

from coordexp.runs.folder import step_of
from coordexp.runs.reporter import LocalReporter, committed_checkpoints, final_metrics
from coordexp.runs.rows import Row, append_rows, read_rows

TOUCHES = (
    *((Path, name) for name in ("open", "write_bytes", "mkdir", "replace", "unlink")),
    *((shutil, name) for name in ("move", "rmtree")),
)


class _KilledError(BaseException):
    pass


def _run(run_dir):
    """Go on to step 8 with a checkpoint every other step, then evaluate."""
    reporter = LocalReporter(run_dir, keep_checkpoints=2)
    begin = 0 if reporter.newest is None else step_of(reporter.newest)
    for step in range(begin + 2, 9, 2):
        scratch = f"{run_dir}.scratch/{step}"
        os.makedirs(scratch, exist_ok=True)  # not a touch that kills
        with open(f"{scratch}/weights", "w") as handle:
            handle.write(f"of step {step}")
        rows = [Row(done, float(done), {"train_total_loss": 1.0 / done}) for done in (step - 1, step)]
        reporter.commit(rows, step=step, checkpoint=Path(scratch))
    if "final/steps" not in final_metrics(run_dir):
        reporter.commit([Row(8, 8.0, {"final/steps": 8.0})], step=8, checkpoint=None, is_final=True)


def _run_until(monkeypatch, run_dir, kill_at):
    """Run until the disk is touched for the ``kill_at``-th time; return whether that happened."""
    touch_numbers = itertools.count()

    def dying(real):
        def touch(*arguments, **options):
            if next(touch_numbers) >= kill_at:  # a dead process touches nothing
                raise _KilledError
            return real(*arguments, **options)

        return touch

    with monkeypatch.context() as patch:
        for place, name in TOUCHES:
            patch.setattr(place, name, dying(getattr(place, name)))
        try:
            _run(run_dir)
        except _KilledError:
            return True
    return False


def _outcome(run_dir):
    """Return the rows and the newest checkpoint; a kill before pruning leaves an older one too many."""
    newest = committed_checkpoints(run_dir)[-1]
    return [path.read_text() for path in (run_dir / "metrics.jsonl", newest / "weights", newest / "commit.json")]


def test_no_row_is_doubled_or_missing_wherever_a_run_is_killed(tmp_path, monkeypatch):
    _run(tmp_path / "whole")
    undisturbed = _outcome(tmp_path / "whole")
    assert [row.step for row in read_rows(tmp_path / "whole" / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6, 7, 8, 8]
    assert [step_of(path) for path in committed_checkpoints(tmp_path / "whole")] == [6, 8]
    for kill_at in itertools.count():
        run_dir = tmp_path / str(kill_at)
        if not _run_until(monkeypatch, run_dir, kill_at):
            break
        _run(run_dir)
        assert _outcome(run_dir) == undisturbed, kill_at
    assert kill_at > 30


def test_nan_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        append_rows(tmp_path / "metrics.jsonl", [Row(step=1, time=0.0, metrics={"x": float("nan")})])
    assert not (tmp_path / "metrics.jsonl").exists()

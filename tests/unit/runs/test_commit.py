from coordexp.runs.commit import (
    commit_checkpoint,
    drop_uncommitted,
)
from coordexp.runs.rows import Row, append_rows, read_rows


def write_checkpoint(run_dir, step, *, committed=True):
    path = run_dir / "checkpoints" / f"step_{step:06d}"
    path.mkdir(parents=True)
    (path / "weights").write_text(str(step))
    if committed:
        commit_checkpoint(path, rows=len(read_rows(run_dir / "metrics.jsonl")))
    return path


def add_row(run_dir, step):
    append_rows(run_dir / "metrics.jsonl", [Row(step=step, time=1.0, metrics={"epoch": 0.5})])


def steps(run_dir):
    return [row.step for row in read_rows(run_dir / "metrics.jsonl")]


def test_rows_and_checkpoints_after_the_last_mark_are_dropped(tmp_path):
    add_row(tmp_path, 1)
    first = write_checkpoint(tmp_path, 1)
    add_row(tmp_path, 2)
    orphan = write_checkpoint(tmp_path, 2, committed=False)
    assert drop_uncommitted(tmp_path) == first
    assert steps(tmp_path) == [1]
    assert not orphan.exists()


def test_a_final_row_of_the_last_checkpoints_step_is_dropped_too(tmp_path):
    add_row(tmp_path, 2)
    last = write_checkpoint(tmp_path, 2)
    add_row(tmp_path, 2)  # the final evaluation, after which the run died
    assert drop_uncommitted(tmp_path) == last
    assert steps(tmp_path) == [2]

"""Damaged checkpoints, rows and states: noticed, said in one sentence, and the run goes on."""

import json
import os

import pytest

from coordexp.runs import reporter
from coordexp.runs.reporter import Checksum, LocalReporter, commit_checkpoint, drop_uncommitted
from coordexp.runs.rows import Row, append_rows, read_rows
from coordexp.runs.status import RunStatus, read_status, write_status

MARKER = "commit.json"


@pytest.fixture
def run_dir(tmp_path):
    """Steps 2 and 4 committed, each with a row and two files, one of them in a folder."""
    for step in (2, 4):
        append_rows(tmp_path / "metrics.jsonl", [Row(step=step, time=1.0, metrics={"epoch": 0.5})])
        path = tmp_path / "checkpoints" / f"step_{step:06d}"
        (path / "shards").mkdir(parents=True)
        (path / "weights").write_bytes(bytes(range(100)))
        (path / "shards" / "optimizer").write_bytes(b"moments")
        commit_checkpoint(path, rows=len(read_rows(tmp_path / "metrics.jsonl")))
    return tmp_path


def checkpoint(run_dir, step):
    return run_dir / "checkpoints" / f"step_{step:06d}"


def steps(run_dir):
    return [row.step for row in read_rows(run_dir / "metrics.jsonl")]


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def zero(path):
    path.write_bytes(bytes(path.stat().st_size))


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("file", "damage", "reason"),
    [
        ("weights", cut, "weights has 99 of 100 bytes"),
        ("weights", zero, "content of weights"),
        ("shards/optimizer", cut, "optimizer has 6 of 7 bytes"),
        ("shards/optimizer", lambda path: path.unlink(), "optimizer is missing"),
        (MARKER, cut, None),
        (MARKER, lambda path: os.truncate(path, 40), MARKER),
        (MARKER, lambda path: path.write_bytes(b"\xff"), MARKER),
        (MARKER, lambda path: change(path, files={"weights": ["sha256"]}), MARKER),
    ],
)
def test_the_checkpoint_before_a_damaged_one_is_used_and_the_rows_are_cut_to_it(run_dir, file, damage, reason):
    damage(checkpoint(run_dir, 4) / file)
    newest, sentences = drop_uncommitted(run_dir)
    if reason is None:  # the last newline of the marker is no information
        assert (newest, sentences) == (checkpoint(run_dir, 4), [])
        return
    assert newest == checkpoint(run_dir, 2)
    (sentence,) = sentences
    for fact in ("step_000004", reason, "continues from step_000002"):
        assert fact in sentence
    assert steps(run_dir) == [2]
    assert not checkpoint(run_dir, 4).exists()


def test_without_a_good_checkpoint_the_run_starts_from_the_beginning_and_says_so(run_dir):
    cut(checkpoint(run_dir, 2) / "weights")
    cut(checkpoint(run_dir, 4) / "weights")
    reporter = LocalReporter(run_dir)
    assert reporter.newest is None
    assert len(reporter.damaged) == 2
    assert all("from the beginning" in sentence for sentence in reporter.damaged)
    assert steps(run_dir) == []


@pytest.mark.parametrize("tail", ["", '{"step": 4, "ti', "\x00" * 40 + "\n", '{"step": 4}\n'])
def test_rows_that_are_lost_cost_the_checkpoint_they_belong_to(run_dir, tail):
    path = run_dir / "metrics.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0] + tail)
    assert steps(run_dir) == [2]
    newest, sentences = drop_uncommitted(run_dir)
    assert newest == checkpoint(run_dir, 2)
    (sentence,) = sentences
    for fact in ("step_000004", "1 of its 2 rows"):
        assert fact in sentence
    assert path.read_text().count("\n") == 1


@pytest.mark.parametrize(
    "text", ["", '{"state": "fini', "null", '{"state": "gone"}', "\x00" * 9, '{"state": "running", "step": 1e999}']
)
def test_a_damaged_status_counts_as_stopped_so_that_the_same_command_goes_on(tmp_path, text):
    (tmp_path / "status.json").write_text(text)
    status = read_status(tmp_path)
    assert status.state == "stopped"
    assert f"{tmp_path}/status.json" in status.message


@pytest.mark.parametrize("changed_byte", [0, 5_000, 9_999])
def test_of_a_large_file_both_ends_are_hashed(tmp_path, monkeypatch, changed_byte):
    monkeypatch.setattr(reporter, "WHOLE_BYTES", 1_000)
    monkeypatch.setattr(reporter, "END_BYTES", 100)
    path = tmp_path / "large"
    path.write_bytes(bytes(10_000))
    checksum = Checksum.of(path)
    assert checksum.mismatch(path) is None
    content = bytearray(10_000)
    content[changed_byte] = 1
    path.write_bytes(content)
    assert (checksum.mismatch(path) is None) == (changed_byte == 5_000)  # the middle of a large file is not read
    path.write_bytes(bytes(9_999))
    mismatch = checksum.mismatch(path)
    for fact in ("large", "9,999", "10,000"):
        assert fact in mismatch


def test_on_a_full_disk_a_status_is_written_in_the_room_of_the_old_one(tmp_path, monkeypatch):
    write_status(tmp_path, RunStatus("running", message="a rather long sentence about what had happened before"))

    def full(path, value):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("coordexp.runs.status.write_json", full)
    write_status(tmp_path, RunStatus("failed", message="the disk is full"))
    assert read_status(tmp_path) == RunStatus("failed", message="the disk is full")
    with pytest.raises(OSError, match="No space"):  # of the operating system
        write_status(tmp_path / "new", RunStatus("failed"))

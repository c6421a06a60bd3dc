"""Files and folders that are whole or absent, also after somebody was killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from coordexp.files import read_once, replace_directory


def _dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def _write(path, text):
    with replace_directory(path) as building:
        (building / "a.txt").write_text(text)


def test_a_folder_is_replaced_whole(tmp_path):
    _write(tmp_path / "out", "one")
    _write(tmp_path / "out", "two")
    assert (tmp_path / "out" / "a.txt").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failure_leaves_the_old_folder(tmp_path):
    _write(tmp_path / "out", "one")
    with pytest.raises(OSError, match="full"), replace_directory(tmp_path / "out"):
        raise OSError("full")
    assert (tmp_path / "out" / "a.txt").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_a_killed_writer_left_is_cleared_up(tmp_path):
    left = tmp_path / f".out.{_dead_pid()}.tmp"
    left.mkdir()
    (left / "half").write_text("x")
    other = tmp_path / f".other.{_dead_pid()}.tmp"
    other.mkdir()
    _write(tmp_path / "out", "one")
    assert not left.exists()
    assert other.exists()  # of another folder: not ours to clear up


def test_what_a_killed_writer_had_moved_aside_comes_back(tmp_path):
    aside = tmp_path / f".out.{_dead_pid()}.old"
    aside.mkdir()
    (aside / "a.txt").write_text("one")
    with pytest.raises(OSError, match="full"), replace_directory(tmp_path / "out"):
        raise OSError("full")
    assert (tmp_path / "out" / "a.txt").read_text() == "one"


def test_a_living_writers_folder_is_left_alone(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        theirs = tmp_path / f".out.{living.pid}.tmp"
        theirs.mkdir()
        _write(tmp_path / "out", "one")
        assert theirs.exists()
        living.communicate(b"\n")


def test_a_file_is_read_again_only_where_it_has_changed_or_had_to_make_room(tmp_path: Path) -> None:
    read: list[str] = []

    @read_once(max_bytes=10)
    def text_of(path: Path) -> str:
        read.append(path.name)
        return path.read_text()

    a, b, c = (tmp_path / name for name in "abc")
    for path in (a, b, c):
        path.write_text("four")
    assert [text_of(path) for path in (a, a, b, a, c, a, b)] == ["four"] * 7
    assert read == ["a", "b", "c", "b"]  # c took the place of b, which had not been asked for since a
    a.write_text("other")
    assert text_of(a) == "other"
    (tmp_path / "large").write_text("more than ten")
    assert [text_of(tmp_path / "large") for _ in range(2)] == ["more than ten"] * 2
    assert read[-1] == "large"
    assert read.count("large") == 1

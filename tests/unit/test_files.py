"""Files and folders that are whole or absent, also after somebody was killed."""

import gzip
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from coordexp.errors import DataError
from coordexp.files import (
    JsonValue,
    kept_json,
    kept_model,
    parse_json,
    parse_model,
    read_content,
    read_json,
    read_json_lines,
    read_model,
    read_once,
    replace_directory,
)


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


def test_a_file_is_read_again_only_where_it_has_changed(tmp_path: Path) -> None:
    read: list[str] = []

    @read_once
    def text_of(path: Path) -> str:
        read.append(path.name)
        return path.read_text()

    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("four")
    b.write_text("five")
    assert [text_of(path) for path in (a, a, b, a)] == ["four", "four", "five", "four"]
    a.write_text("other")
    assert text_of(a) == "other"
    assert read == ["a", "b", "a"]


def test_a_folder_is_read_again_where_a_file_in_it_has_changed(tmp_path: Path) -> None:
    """The folder's own time stays when a file in it is written in place."""

    @read_once
    def text_of(folder: Path) -> str:
        return "".join(file.read_text() for file in sorted(folder.rglob("*.txt")))

    (tmp_path / "below").mkdir()
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "below" / "b.txt").write_text("two")
    assert text_of(tmp_path) == text_of(tmp_path) == "onetwo"
    (tmp_path / "below" / "b.txt").write_text("three")
    assert text_of(tmp_path) == "onethree"


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b'{"a": \xff}', "byte 6.*UTF-8"),
        ('{"a": 1', "line 1 column 8.*JSON"),
        ("[NaN]", "'NaN'"),
        ("[-Infinity]", "'-Infinity'"),
        ("[1e999]", "'1e999'"),
    ],
)
def test_whatever_is_wrong_with_json_is_one_error_that_says_where(content: bytes | str, facts: str) -> None:
    with pytest.raises(ValueError, match=facts) as raised:
        parse_json(content)
    assert len(str(raised.value)) < 120
    with pytest.raises(ValueError, match=facts):
        parse_model(dict[str, JsonValue], content)


def test_fields_have_just_their_type(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Kept:
        step: int
        shares: tuple[float, ...]

    assert parse_model(Kept, '{"step": 3, "shares": [1, 0.5]}') == Kept(3, (1.0, 0.5))
    for text in ('{"step": "3", "shares": []}', '{"step": 3.0, "shares": []}', '{"step": 3}', "[]", "3"):
        (tmp_path / "kept.json").write_text(text)
        assert kept_model(Kept, tmp_path / "kept.json") is None
        with pytest.raises(ValueError, match="step|shares|file"):
            parse_model(Kept, text)


def test_a_folder_a_loop_of_links_and_a_file_of_another_encoding_are_named(tmp_path: Path) -> None:
    loop, latin = tmp_path / "loop.json", tmp_path / "latin.json"
    loop.symlink_to(loop)
    latin.write_bytes('{"a": "é"}'.encode("latin-1"))
    for path, fact in (
        (tmp_path, "folder"),
        (tmp_path / "none.json", "not found"),
        (loop, "read"),
        (latin, "byte 7"),
    ):
        with pytest.raises(DataError, match=re.escape(str(path))) as raised:
            read_json(path)
        assert fact in str(raised.value)
        assert kept_json(path) is None
        with pytest.raises(DataError, match=re.escape(str(path))):
            read_model(dict[str, str], path, what="texts")
        with pytest.raises(DataError, match=re.escape(str(path))):
            read_json_lines(dict[str, str], path)


def test_a_packed_file_of_two_parts_is_unpacked(tmp_path: Path):
    path = tmp_path / "a.json"
    path.write_bytes(gzip.compress(b"[1]") + gzip.compress(b" " * 997))
    assert read_content(path) == b"[1]" + b" " * 997
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="gzip"):
        read_content(path)

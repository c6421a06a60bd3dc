"""Folders for temporary files: where sockets fit, and where something can be made."""

import os
import tempfile
from multiprocessing.connection import Listener

import pytest

from coordexp.errors import ResourceError
from coordexp.temporary import check_can_be_made, folder_for_sockets, shorten_temporary_folder


def test_a_socket_fits_into_every_folder_that_is_kept(tmp_path, monkeypatch):
    """Of any length: the folder is kept, or another one is taken, and multiprocessing can listen there."""
    is_kept: list[bool] = []
    for length in range(60, 120, 3):
        folder = tmp_path / ("x" * max(1, length - len(str(tmp_path)) - 1))
        folder.mkdir(exist_ok=True)
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr(tempfile, "tempdir", None)
        shorten_temporary_folder()
        is_kept.append(tempfile.gettempdir() == str(folder))
        assert os.environ["TMPDIR"] == tempfile.gettempdir()
        with tempfile.TemporaryDirectory(prefix="pymp-") as short, Listener(f"{short}/listener-12345678"):
            pass
    assert is_kept == sorted(is_kept, reverse=True)
    assert not is_kept[-1]


def test_letters_of_several_bytes_count_as_such():
    assert folder_for_sockets("/" + "ü" * 40, below=40, variable="TMPDIR") == "/tmp"
    assert folder_for_sockets("/" + "u" * 40, below=40, variable="TMPDIR") == "/" + "u" * 40


def test_without_a_short_folder_the_variable_and_the_length_are_named(monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ResourceError, match="RAY_TMPDIR.* 35 "):
        folder_for_sockets("/scratch/" + "x" * 120, below=72, variable="RAY_TMPDIR")


@pytest.mark.parametrize("folder", ["/dev/null/x", "/proc/x/y", "/dev/null"])
def test_where_nothing_can_be_made_the_variable_is_named(folder):
    with pytest.raises(ResourceError, match=rf"RAY_TMPDIR.*{folder}"):
        check_can_be_made(folder, variable="RAY_TMPDIR")


def test_where_something_can_be_made_nothing_is_left(tmp_path):
    check_can_be_made(str(tmp_path / "not" / "there"), variable="RAY_TMPDIR")
    assert list(tmp_path.iterdir()) == []

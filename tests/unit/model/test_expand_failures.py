"""An expansion that is interrupted, killed or refused by the disk leaves nothing that looks finished."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from coordexp.cli.main import main
from coordexp.errors import CheckpointError, ResourceError
from coordexp.model.checkpoint import rewrite
from coordexp.model.expand import expand_to
from coordexp.model.loading import load


@pytest.fixture
def source(make_base, sharded, tmp_path_factory):
    return sharded(make_base(tied=False, structure=None), tmp_path_factory.mktemp("source") / "sharded")


def _break_in_the_middle(monkeypatch, action):
    """Call ``action`` when a part of the weights is on the disk."""
    right, written = rewrite.save_file, []

    def broken(tensors, file, metadata):
        right(tensors, file, metadata)
        written.append(file)
        action()

    monkeypatch.setattr(rewrite, "save_file", broken)
    return written


def _command(source: Path, output: Path) -> list[str]:
    return ["expand-vocab", "--model", str(source), "--output", str(output)]


def test_killed_in_the_middle_and_done_again(source, tmp_path, monkeypatch):
    child = os.fork()
    if not child:
        _break_in_the_middle(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGKILL))
        main(_command(source, tmp_path / "out"))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert len(list(tmp_path.iterdir())) == 1  # hidden, and swept up by the next
    assert main(_command(source, tmp_path / "out")) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert load(tmp_path / "out").vocab.coord_ids == range(641, 1641)


def test_a_full_disk_is_one_sentence(source, tmp_path, monkeypatch, capsys):
    def full():
        raise OSError(28, "No space left on device")

    _break_in_the_middle(monkeypatch, full)
    capsys.readouterr()
    assert main(_command(source, tmp_path / "out")) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "no space left" in error
    assert str(tmp_path / "out") in error
    assert list(tmp_path.iterdir()) == []


def test_a_disk_too_small_is_told_before_anything_is_written(source, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    monkeypatch.setattr(rewrite, "save_file", lambda *_, **__: pytest.fail("something was written"))
    with pytest.raises(ResourceError, match=rf"{tmp_path}.* 0\.00 GiB.* 0\.07 GiB"):
        expand_to(source, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_exists_is_refused(source, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match=str(tmp_path / "out")):
        expand_to(source, tmp_path / "out")
    with pytest.raises(CheckpointError, match=str(source)):
        expand_to(source, source)

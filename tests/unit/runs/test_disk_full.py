import errno
import shutil
from collections import namedtuple

import pytest

from coordexp.errors import DataError, ResourceError
from coordexp.files import is_disk_full
from coordexp.runs.reporter import commit_checkpoint, explain_disk_full

_Usage = namedtuple("_Usage", "total used free")


@pytest.fixture
def run_dir(tmp_path):
    """Step 2 is committed with 3 MiB, step 4 is half there."""
    for step in (2, 4):
        (tmp_path / "checkpoints" / f"step_{step:06d}").mkdir(parents=True)
        (tmp_path / "checkpoints" / f"step_{step:06d}" / "weights").write_bytes(bytes(3 * 2**20))
    commit_checkpoint(tmp_path / "checkpoints" / "step_000002", rows=0)
    return tmp_path


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (RuntimeError("I/O error: No space left on device (os error 28)"), True),
        (RuntimeError("[enforce fail at inline_container.cc:664] . PytorchStreamWriter failed writing file"), True),
        (RuntimeError("PytorchStreamReader failed reading zip archive: failed finding central directory"), False),
        (OSError("1048576 requested and 393200 written"), True),
        (RuntimeError("2 devices were requested and 1 was found"), False),
        (DataError("a.json: no images"), False),
    ],
)
def test_a_full_disk_is_told_from_other_errors(run_dir, error, is_full):
    assert is_disk_full(error) == is_full
    assert (explain_disk_full(error, run_dir) is error) != is_full
    assert (run_dir / "checkpoints" / "step_000004").exists() != is_full  # it makes room for the status


def test_the_sentence_names_the_disk_and_what_is_free(run_dir, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Usage(0, 0, 2**20))
    explained = explain_disk_full(OSError(errno.ENOSPC, "No space left on device"), run_dir)
    assert isinstance(explained, ResourceError)
    disk = next(path for path in run_dir.parents if path.is_mount())
    for fact in (f"disk at {disk} ", "1.0 MiB", "same command"):
        assert fact in str(explained)

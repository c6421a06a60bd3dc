"""prepare after a kill, a second time, and beside another: the folder is whole or absent, and never mixed."""

import json
import re
import signal
import subprocess
import sys

import pytest

from coordexp.data.sources.prepare import PrepareSpec
from coordexp.errors import DataError
from tests.support.samples import prepare


def spec_of(coco, **options):
    return PrepareSpec(coco.annotations, coco.images, coco.root / "out", **options)


_KILLED = """
import os, signal, sys
from pathlib import Path
from coordexp.data.sources.prepare import PrepareSpec, prepare
root = Path(sys.argv[1])
def progress(stage, done, total):
    if stage == "writing":
        os.kill(os.getpid(), signal.SIGKILL)
spec = PrepareSpec(root / "instances.json", root / "images", root / "out")
prepare(spec, ceiling=lambda table: None, progress=progress)
"""


def test_the_same_command_works_after_a_kill(coco):
    coco.enlarge()
    done = subprocess.run([sys.executable, "-c", _KILLED, str(coco.root)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (coco.root / "out").exists()
    assert len(list(coco.root.glob(".out.*"))) == 1
    assert prepare(spec_of(coco)).is_new
    assert not list(coco.root.glob(".out.*"))


def test_the_same_again_does_nothing_and_something_else_is_refused(coco):
    prepare(spec_of(coco))
    output = coco.root / "out"
    before = (output / "samples.jsonl").stat().st_mtime_ns
    again = prepare(spec_of(coco))
    assert not again.is_new
    assert again.manifest == json.loads((output / "manifest.json").read_text())
    assert (output / "samples.jsonl").stat().st_mtime_ns == before
    with pytest.raises(DataError, match=re.escape(str(output))):
        prepare(spec_of(coco, coord_tokens=True))
    coco.document["annotations"].pop()
    with pytest.raises(DataError, match=re.escape(str(output))):
        prepare(spec_of(coco.save()))
    mine = coco.root / "mine"
    mine.mkdir()
    prepare(PrepareSpec(coco.annotations, coco.images, mine))  # an empty folder is fine
    (coco.root / "photos").mkdir()
    (coco.root / "photos" / "a.jpg").touch()
    with pytest.raises(DataError, match="photos"):
        prepare(PrepareSpec(coco.annotations, coco.images, coco.root / "photos"))
    assert (coco.root / "photos" / "a.jpg").exists()


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"images": []}'])
def test_what_cannot_be_read_leaves_nothing(coco, content):
    if content is None:
        coco.annotations.unlink()
    else:
        coco.annotations.write_bytes(content)
    before = sorted(coco.root.rglob("*"))
    with pytest.raises(DataError, match=r"instances\.json: "):
        prepare(spec_of(coco))
    assert sorted(coco.root.rglob("*")) == before

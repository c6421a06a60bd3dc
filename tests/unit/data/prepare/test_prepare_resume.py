"""prepare after a kill, a second time, and beside another: finished shards are kept, and results are never mixed."""

import json
import os
import signal
import subprocess
import sys

import pytest

from coordexp.data.prepare import prepare as prepare_module
from coordexp.data.prepare import prepare_shard
from coordexp.data.prepare.prepare import PrepareSpec, prepare
from coordexp.errors import DataError


def spec_of(coco, **options):
    return PrepareSpec(coco.annotations, coco.images, coco.root / "out", **options)


_KILLED = """
import os, signal, sys
from pathlib import Path
from coordexp.data.prepare import prepare_shard
from coordexp.data.prepare.prepare import PrepareSpec, prepare
prepare_shard.IMAGES_PER_SHARD = 7
root = Path(sys.argv[1])
def progress(stage, done, total):
    if stage == "writing" and done >= 28:
        os.kill(os.getpid(), signal.SIGKILL)
prepare(PrepareSpec(root / "instances.json", root / "images", root / "out"), progress=progress)
"""


def test_a_killed_run_goes_on_from_its_shards(coco, small_shards, monkeypatch):
    coco.enlarge()
    done = subprocess.run([sys.executable, "-c", _KILLED, str(coco.root)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (coco.root / "out").exists()
    kept = sorted((coco.root / ".out.partial" / "shards").glob("*.npz"))
    assert len(kept) == 4

    made = []
    original = prepare_shard._Maker.lines
    monkeypatch.setattr(prepare_shard._Maker, "lines", lambda self: (made.append(self), original(self))[1])
    prepare(spec_of(coco))
    assert len(made) == 9 - 4
    again = PrepareSpec(coco.annotations, coco.images, coco.root / "again")
    prepare(again)
    for name in ("samples.jsonl", "manifest.json"):
        assert (coco.root / "out" / name).read_bytes() == (coco.root / "again" / name).read_bytes()
    assert not (coco.root / ".out.partial").exists()


def interrupted(coco, **options):
    def progress(stage, done, total):
        if stage == "writing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(spec_of(coco, **options), progress=progress)


@pytest.mark.parametrize("damage", ["lines", "facts", "options", "annotations", "categories"])
def test_a_kept_shard_that_is_not_this_one_is_made_anew(coco, small_shards, damage):
    coco.enlarge()
    interrupted(coco, ordering="random" if damage == "options" else "top_left")
    shards = coco.root / ".out.partial" / "shards"
    [facts] = shards.glob("*.npz")
    if damage == "lines":
        os.truncate(facts.with_suffix(".jsonl"), 20)
    elif damage == "facts":
        facts.unlink()
    elif damage == "annotations":
        for annotation in coco.document["annotations"]:
            annotation["bbox"][0] += 0.5
        coco.save()
    elif damage == "categories":
        coco.document["categories"][0]["name"] = "dog"
        coco.save()
    prepare(spec_of(coco))
    prepare(PrepareSpec(coco.annotations, coco.images, coco.root / "again"))
    assert (coco.root / "out" / "samples.jsonl").read_bytes() == (coco.root / "again" / "samples.jsonl").read_bytes()


def test_the_same_again_does_nothing_and_something_else_is_refused(coco):
    prepare(spec_of(coco))
    output = coco.root / "out"
    before = (output / "samples.jsonl").stat().st_mtime_ns
    again = prepare(spec_of(coco))
    assert not again.is_new
    assert again.manifest == json.loads((output / "manifest.json").read_text())
    assert (output / "samples.jsonl").stat().st_mtime_ns == before
    with pytest.raises(DataError, match="other annotations or with other options; remove it"):
        prepare(spec_of(coco, coord_tokens=True))
    coco.document["annotations"].pop()
    with pytest.raises(DataError, match="other annotations"):
        prepare(spec_of(coco.save()))
    mine = coco.root / "mine"
    mine.mkdir()
    prepare(PrepareSpec(coco.annotations, coco.images, mine))  # an empty folder is fine
    (coco.root / "photos").mkdir()
    (coco.root / "photos" / "a.jpg").touch()
    with pytest.raises(DataError, match="no prepared data set; expected a new or empty folder"):
        prepare(PrepareSpec(coco.annotations, coco.images, coco.root / "photos"))
    assert (coco.root / "photos" / "a.jpg").exists()


def test_two_at_once_are_one_too_many(coco):
    def progress(stage, done, total):
        if stage == "writing":
            with pytest.raises(DataError, match="another process is preparing it"):
                prepare(spec_of(coco))

    prepare(spec_of(coco), progress=progress)
    assert (coco.root / "out" / "manifest.json").is_file()


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


def test_a_changed_digest_would_be_noticed(coco, monkeypatch, small_shards):
    """Negative control: were a shard named by its number alone, other options would find the old one."""
    coco.enlarge()
    monkeypatch.setattr(prepare_shard.ShardTask, "digest", lambda self: "0")
    interrupted(coco, max_objects=1)
    prepare(spec_of(coco))
    monkeypatch.undo()
    prepare(PrepareSpec(coco.annotations, coco.images, coco.root / "again"))
    assert (coco.root / "out" / "samples.jsonl").read_bytes() != (coco.root / "again" / "samples.jsonl").read_bytes()


def test_a_full_disk_is_no_data_error(coco, monkeypatch):
    def full(path, value, indent=None):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(prepare_module, "write_json", full)
    with pytest.raises(OSError, match="No space left"):
        prepare(spec_of(coco))
    assert not (coco.root / "out").exists()
    monkeypatch.undo()
    assert prepare(spec_of(coco)).is_new

"""A fixed subset of a split, and a fingerprint of bytes."""

import os
import shutil
from pathlib import Path

import pytest

from coordexp.data.sample import Sample
from coordexp.data.splits.splits import data_fingerprint, stratified_subset
from coordexp.errors import DataError
from tests.unit.data.sample_support import things


def made(num_objects, image_id):
    return Sample(Path("a.jpg"), 10, 10, image_id, things(*[("cat", (0, 0, 1, 1))] * num_objects))


SAMPLES = [made(i % 5, image_id=1000 + i) for i in range(500)]


def test_a_subset_is_spread_over_the_numbers_of_objects():
    chosen = stratified_subset(SAMPLES, 50)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 50
    numbers = [len(SAMPLES[i].objects) for i in chosen]
    assert [numbers.count(k) for k in range(5)] == [10] * 5
    skewed = [made(0 if i < 900 else i - 899, image_id=i) for i in range(1000)]
    largest = [len(skewed[i].objects) for i in stratified_subset(skewed, 100)]
    assert largest.count(0) == 90
    assert max(largest) > 90


def test_a_subset_is_of_images_not_of_places():
    chosen = {SAMPLES[i].image_id for i in stratified_subset(SAMPLES, 37)}
    backward = SAMPLES[::-1]
    assert {backward[i].image_id for i in stratified_subset(backward, 37)} == chosen
    assert stratified_subset(SAMPLES, 37) == stratified_subset(SAMPLES, 37)
    # Not a prefix: image ids and file order say much about a picture.
    assert max(chosen) > 1400
    assert len(chosen - {1000 + i for i in range(0, 500, 13)}) > 10


@pytest.mark.parametrize("n", [499, 500, 501, 10_000])
def test_a_subset_is_never_larger_than_the_whole(n):
    assert len(stratified_subset(SAMPLES, n)) == min(n, 500)
    assert stratified_subset([], 5) == []


def test_a_fingerprint_follows_the_bytes_and_not_the_place(coco, tmp_path):
    paths = [coco.annotations, coco.images]
    before = data_fingerprint(paths)
    assert data_fingerprint(paths) == before
    shutil.copytree(coco.root, tmp_path / "elsewhere")
    assert data_fingerprint([tmp_path / "elsewhere" / path.relative_to(coco.root) for path in paths]) == before
    assert data_fingerprint(paths[::-1]) != before
    assert data_fingerprint(paths[:1]) != before


@pytest.mark.parametrize(
    "change",
    [
        lambda coco: coco.annotations.write_text(coco.annotations.read_text() + " "),
        lambda coco: (coco.images / "new.jpg").touch(),
        lambda coco: (coco.images / "b.png").unlink(),
        lambda coco: (coco.images / "b.png").rename(coco.images / "c.png"),
        lambda coco: os.truncate(coco.images / "b.png", 100),
        lambda coco: ((coco.images / "sub").mkdir(), (coco.images / "b.png").rename(coco.images / "sub" / "b.png")),
    ],
)
def test_a_fingerprint_sees_changes(coco, change):
    before = data_fingerprint([coco.annotations, coco.images])
    change(coco)
    assert data_fingerprint([coco.annotations, coco.images]) != before


def test_a_picture_changed_to_the_same_size_is_seen_where_it_is_read(coco, monkeypatch):
    def flip(name: str) -> None:
        content = bytearray((coco.images / name).read_bytes())
        content[-1] ^= 1
        (coco.images / name).write_bytes(content)

    before = data_fingerprint([coco.images])
    flip("b.png")
    after = data_fingerprint([coco.images])
    assert after != before
    # Above the limit every n-th file is read, from the first on: here the first alone.
    monkeypatch.setattr("coordexp.data.splits.splits._HASHED_BYTES", 1)
    sampled = data_fingerprint([coco.images])
    flip("b.png")
    assert data_fingerprint([coco.images]) == sampled
    flip("a.jpg")
    assert data_fingerprint([coco.images]) != sampled


def test_a_fingerprint_of_nothing_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        data_fingerprint([tmp_path / "none"])

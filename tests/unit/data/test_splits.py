"""A fixed subset of a split, and a fingerprint of bytes."""

import functools
import json
import os
import random
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from coordexp import files
from coordexp.config.schema.data import Data
from coordexp.data.sample import Sample, Samples
from coordexp.data.sets.fingerprint import data_fingerprint
from coordexp.data.sources.coco.source import CocoSource
from coordexp.data.sources.door import load_split
from coordexp.data.split_data import SplitData
from coordexp.data.splits.check import names_of, untrained_names
from coordexp.data.splits.chosen import chosen_part
from coordexp.data.splits.subset import stratified_subset
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import DataError
from tests.support.samples import pairs_of, read_jsonl, things


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


@pytest.fixture
def fingerprint_of(tmp_path):
    """Fingerprint paths, with what is kept of large folders in one place."""
    return functools.partial(data_fingerprint, known=tmp_path / "hashes")


def test_a_fingerprint_follows_the_bytes_and_not_the_place(coco, tmp_path, fingerprint_of):
    paths = [coco.annotations, coco.images]
    before = fingerprint_of(paths)
    assert fingerprint_of(paths) == before
    shutil.copytree(coco.root, tmp_path / "elsewhere")
    assert fingerprint_of([tmp_path / "elsewhere" / path.relative_to(coco.root) for path in paths]) == before
    assert fingerprint_of(paths[::-1]) != before
    assert fingerprint_of(paths[:1]) != before


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
def test_a_fingerprint_sees_changes(coco, change, fingerprint_of):
    before = fingerprint_of([coco.annotations, coco.images])
    change(coco)
    assert fingerprint_of([coco.annotations, coco.images]) != before


def test_what_is_no_picture_and_what_runs_write_changes_no_fingerprint(coco, fingerprint_of):
    runs = coco.images / "sub" / "runs"
    before = fingerprint_of([coco.images], without=runs)
    assert before == fingerprint_of([coco.images])
    (runs / "one").mkdir(parents=True)
    (runs / "one" / "status.json").write_text("{}")
    for name in (".DS_Store", ".nfs0001", "Thumbs.db", "desktop.ini"):
        (coco.images / "sub" / name).write_text("x")
    (coco.images / ".thumbnails").mkdir()
    (coco.images / ".thumbnails" / "a.jpg").touch()
    (coco.images / ".#a.jpg").symlink_to("nowhere")  # an editor's
    assert fingerprint_of([coco.images], without=runs) == before
    assert fingerprint_of([coco.images]) != before
    # A generated data set lies below the folder of the runs.
    assert fingerprint_of([coco.images], without=coco.root) == fingerprint_of([coco.images])
    shutil.copy(coco.images / "a.jpg", coco.images / "sub")
    assert fingerprint_of([coco.images], without=runs) != before


def test_a_picture_changed_to_the_same_size_is_seen_where_it_is_read(coco, monkeypatch, fingerprint_of):
    def flip(name: str) -> None:
        content = bytearray((coco.images / name).read_bytes())
        content[-1] ^= 1
        (coco.images / name).write_bytes(content)

    before = fingerprint_of([coco.images])
    flip("b.png")
    after = fingerprint_of([coco.images])
    assert after != before
    # Above the limit every n-th file is read, from the first on: here the first alone.
    monkeypatch.setattr("coordexp.data.sets.fingerprint.HASHED_BYTES", 1)
    sampled = fingerprint_of([coco.images])
    flip("b.png")
    assert fingerprint_of([coco.images]) == sampled
    flip("a.jpg")
    assert fingerprint_of([coco.images]) != sampled


def test_a_folder_is_read_once_and_an_image_that_was_written_to_again(coco, monkeypatch, fingerprint_of):
    read: list[str] = []
    original = files.sha256_of_file
    monkeypatch.setattr(files, "sha256_of_file", lambda path: (read.append(path.name), original(path))[1])
    whole = fingerprint_of([coco.images])
    assert sorted(read) == ["a.jpg", "b.png"]
    read.clear()
    assert fingerprint_of([coco.images]) == whole
    assert read == []
    image = coco.images / "b.png"
    before, content = image.stat(), bytearray(image.read_bytes())
    content[-1] ^= 1
    image.write_bytes(content)
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))  # its date is put back, and its size was kept
    assert fingerprint_of([coco.images]) != whole
    assert read == ["b.png"]


def test_a_fingerprint_of_nothing_is_refused(tmp_path, fingerprint_of):
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "none"))):
        fingerprint_of([tmp_path / "none"])


def drawn(seed: int, *, num: int = 2000) -> list[Sample]:
    """Images like COCO's: few or many objects, all large or all small, of one category mostly, rare categories."""
    rng = np.random.default_rng(seed)
    popularity = 1 / np.arange(1, 41)
    popularity /= popularity.sum()
    samples = []
    for at in range(num):
        scale, main = rng.lognormal(-2, 0.8), rng.choice(40, p=popularity)
        objects = []
        for _ in range(rng.geometric(0.15) - 1):
            w, h = np.minimum(0.9, scale * rng.lognormal(0, 0.5, 2))
            category = main if rng.random() < 0.6 else rng.choice(40, p=popularity)
            objects.append((f"thing {category}", (0.0, 0.0, float(w), float(h))))
        samples.append(Sample(Path("a.jpg"), 640, 480, at * 7 + 3, things(*objects)))
    return samples


def apart(samples: list[Sample], chosen: list[int]) -> tuple[float, float, float]:
    """Distances of part and whole: mean number of objects, shares of sizes, shares of categories."""

    def shares(indices, key) -> Counter:
        found = Counter(key(samples[i], *pair) for i in indices for pair in pairs_of(samples[i].objects))
        return Counter({name: count / found.total() for name, count in found.items()})

    def size(sample: Sample, desc: str, box) -> str:
        area = box[2] * box[3] * sample.width * sample.height
        return "small" if area < 32**2 else "medium" if area < 96**2 else "large"

    everyone = range(len(samples))
    distances = []
    for key in (size, lambda sample, desc, box: desc):
        part, whole = shares(chosen, key), shares(everyone, key)
        distances.append(sum(abs(part[name] - whole[name]) for name in whole) / 2)
    mean = np.mean([len(samples[i].objects) for i in chosen]) / np.mean([len(s.objects) for s in samples])
    return abs(float(mean) - 1), distances[0], distances[1]


@pytest.mark.parametrize("seed", range(3))
def test_it_is_closer_to_the_whole_than_chance(seed: int) -> None:
    samples = drawn(seed)
    chosen = stratified_subset(samples, 150)
    at_random = [apart(samples, random.Random(k).sample(range(len(samples)), 150)) for k in range(30)]
    number, size, category = apart(samples, chosen)
    assert number < 0.005 < np.mean([a for a, _, _ in at_random])
    assert size < np.quantile([b for _, b, _ in at_random], 0.3)
    assert category < np.quantile([c for _, _, c in at_random], 0.3)


def test_the_order_of_the_file_is_nothing_to_it() -> None:
    samples = drawn(0, num=300)
    ids = {samples[i].image_id for i in stratified_subset(samples, 40)}
    for seed in range(3):
        shuffled = random.Random(seed).sample(samples, len(samples))
        assert {shuffled[i].image_id for i in stratified_subset(shuffled, 40)} == ids
    assert len(ids) == 40


def test_the_choice_is_pinned() -> None:
    """It must not move between versions of Python, NumPy or this package: curves of two runs would not compare."""
    bare = [Sample(Path("a.jpg"), 10, 10, k, things(*[("cat", (0, 0, 1, 1))] * (k % 3))) for k in range(60)]
    assert stratified_subset(bare, 6) == [10, 11, 17, 34, 36, 48]


@pytest.mark.parametrize("kind", [list, Samples.of])
def test_a_part_is_of_images_and_a_seed_and_lies_in_every_larger_one(kind):
    whole = SplitData(kind(SAMPLES), (), {"boxes": 1000, "images_without_objects": 100}, {})

    def ids(data, num, seed=0):
        return [one.image_id for one in chosen_part(data, num, seed=seed).samples]

    small, large = ids(whole, 40), ids(whole, 90)
    assert small == sorted(small)  # in the order of the split
    assert set(small) < set(large)
    assert (len(small), len(large)) == (40, 90)
    assert set(ids(whole, 40, seed=1)) != set(small)
    assert set(ids(SplitData(kind(SAMPLES[::-1]), (), whole.counts, {}), 40)) == set(small)
    part = chosen_part(whole, 40, seed=0)
    assert part.counts["boxes"] == sum(len(one.objects) for one in part.samples)
    assert part.counts["images_without_objects"] == sum(not len(one.objects) for one in part.samples)
    assert part.counts["not_chosen"] == 460
    assert chosen_part(whole, 500, seed=0) is whole


def test_training_without_a_box_stops_and_validation_without_one_does_not(coco):
    data = Data(
        format="coco", train_annotations=coco.annotations, train_images=coco.images,
        val_annotations=coco.annotations, val_images=coco.images,
    )  # fmt: skip
    for annotation in coco.document["annotations"]:
        annotation["iscrowd"] = 1
    coco.save()
    with pytest.raises(DataError, match=r"2 training .*2 crowd"):
        load_split(data, "train", data_dir=coco.root)
    with pytest.raises(DataError, match=r"2 validation .*2 crowd"):
        load_split(data, "val", data_dir=coco.root)
    coco.document["annotations"] = []
    coco.save()
    with pytest.raises(DataError, match=r"2 training .*data\.train_annotations"):
        load_split(data, "train", data_dir=coco.root)
    assert load_split(data, "val", data_dir=coco.root).counts["boxes"] == 0


def test_classes_that_only_validation_has_are_named(coco):
    train = CocoSource(coco.annotations, coco.images).read().samples
    assert names_of(train) == names_of(list(train)) == {"traffic light", "cat"}
    assert untrained_names(names_of(train), {"Cat ", "traffic  light"}) == ""
    assert untrained_names(names_of(train), {"dog", "cat"}).endswith("that no run can learn it: dog")
    many = {f"class {at}" for at in range(10, 30)}
    assert untrained_names((), many).startswith("20 classes are in validation only")
    assert untrained_names((), many).endswith("class 16, class 17 and 12 more")


def test_names_are_trimmed_and_counted(coco):
    coco.document["categories"][0]["name"] += "\n"
    data = CocoSource(coco.save().annotations, coco.images).read()
    assert (names_of(data.samples), data.counts["trimmed_names"]) == ({"traffic light", "cat"}, 1)
    assert set(read_ground_truth(coco.annotations).categories.values()) == {"traffic light", "cat"}
    record = {"image": "a.jpg", "objects": [{"desc": name, "bbox": [0, 0, 1, 1]} for name in ("cup\n", "cup", " a b")]}
    lines = coco.root / "train.jsonl"
    lines.write_text(json.dumps(record))
    found = read_jsonl(lines, coco.images)
    assert (found.samples[0].objects.descs, found.counts["trimmed_names"]) == (("cup", "cup", "a b"), 2)


def test_edges() -> None:
    empty = [Sample(Path("a.jpg"), 10, 10, k, things()) for k in range(9)]
    assert len(stratified_subset(empty, 4)) == 4
    assert stratified_subset(empty, 0) == stratified_subset([], 3) == []
    assert stratified_subset(empty, 9) == list(range(9))

"""YOLO as it is found: splits in any case, labels beside JPEGImages, key points behind boxes, missing files."""

from pathlib import Path

import numpy as np
import pytest

from coordexp.config.schema.data import Data
from coordexp.data.sources.door import load_split
from coordexp.data.sources.source import found_sentence
from coordexp.data.sources.yolo.rows import guess_layout
from coordexp.errors import DataError
from tests.unit.data.sources.test_folder import NAMES, SIZE, TRUTH, picture, ultralytics, voc, write, yolo

EVERY = TRUTH["train"] | TRUTH["val"]


def read_all(root: Path, tmp_path: Path):
    """Read both splits, and check each picture's objects."""
    data = Data.model_validate({"path": root})
    loaded = {split: load_split(data, split, data_dir=tmp_path / "made") for split in TRUTH}
    for read in loaded.values():
        for sample in read.samples:
            wanted = EVERY[sample.image.stem]
            assert sample.objects.descs == tuple(NAMES[c] for c, _ in wanted)
            boxes = sample.objects.boxes_norm_xyxy * np.array(SIZE * 2)
            assert np.allclose(boxes, np.array([box for _, box in wanted]), atol=1e-3)
    return loaded


@pytest.mark.parametrize(
    ("train", "val", "images", "labels", "above"),
    [
        ("Train", "Valid", "images", "labels", ""),
        ("TRAIN", "VAL", "Images", "Labels", ""),
        ("Train", "Test", "images", "labels", ""),
        ("training", "validation", "images", "labels", ""),
        ("Train", "Valid", ".", ".", ""),
        ("Train", "Validation", "images", "labels", "my/set"),
        ("train2017", "val2017", "images", "labels", "set"),
    ],
)
def test_the_makers_split_is_kept_in_any_case_and_further_down(tmp_path, train, val, images, labels, above):
    root = tmp_path / "set"
    for split, folder in (("train", train), ("val", val)):
        for name, objects in TRUTH[split].items():
            picture(root / above / folder / images / f"{name}.jpg")
            write(root / above / folder / labels / f"{name}.txt", yolo(objects))
    write(root / above / "classes.txt", "\n".join(NAMES))
    loaded = read_all(root, tmp_path)
    assert {split: len(read.samples) for split, read in loaded.items()} == {"train": 4, "val": 2}


def test_a_yaml_file_names_its_folders_in_another_case(tmp_path):
    root = tmp_path / "set"
    for split, folder in (("train", "Train"), ("val", "Valid")):
        for name, objects in TRUTH[split].items():
            picture(root / folder / "Images" / f"{name}.jpg")
            write(root / folder / "Labels" / f"{name}.txt", yolo(objects))
    write(root / "data.yaml", "train: ../train/images\nval: ../valid/images\nnames: [cat, traffic light]")
    loaded = read_all(root, tmp_path)
    assert len(loaded["val"].samples) == 2


def test_two_sets_beside_each_other_are_not_made_one(tmp_path):
    for name in ("one", "two"):
        ultralytics(tmp_path / name)
    with pytest.raises(DataError, match=r"YOLO in one, YOLO in two.*data\.path"):
        found_sentence(Data.model_validate({"path": tmp_path}))


@pytest.mark.parametrize("labels", ["labels", "Labels"])
@pytest.mark.parametrize("inner", ["", "train", "a/b"])
def test_labels_of_yolo_beside_jpegimages(tmp_path, labels, inner):
    root = tmp_path / "set"
    for name, objects in EVERY.items():
        picture(root / "JPEGImages" / inner / f"{name}.jpg")
        write(root / labels / inner / f"{name}.txt", yolo(objects))
    write(root / "classes.txt", "\n".join(NAMES))
    loaded = read_all(root, tmp_path)
    assert sum(len(read.samples) for read in loaded.values()) == 6
    assert sum(read.counts["boxes"] for read in loaded.values()) == 10


def test_labels_of_voc_beside_jpegimages(tmp_path):
    root = tmp_path / "set"
    for name, objects in EVERY.items():
        picture(root / "JPEGImages" / f"{name}.jpg")
        write(root / "labels" / f"{name}.xml", voc(name, objects))
    assert found_sentence(Data.model_validate({"path": root})).startswith("Pascal VOC")
    assert sum(read.counts["boxes"] for read in read_all(root, tmp_path).values()) == 10


# --- key points behind boxes ------------------------------------------------------------------------


def pose(root: Path, *, size: int, visible=True, outside=False, yaml="") -> None:
    """Write three points for each box: two of its corners and its centre; the second may be hidden, or outside."""
    for split, images in TRUTH.items():
        for name, objects in images.items():
            picture(root / "images" / split / f"{name}.jpg")
            rows = []
            for c, (x1, y1, x2, y2) in objects:
                left, top, right, bottom = x1 / SIZE[0], y1 / SIZE[1], x2 / SIZE[0], y2 / SIZE[1]
                centre = ((left + right) / 2, (top + bottom) / 2)
                second = (right - left + right, bottom) if outside else (right, bottom)
                row = [c, *centre, right - left, bottom - top]
                for place, is_seen in (((left, top), True), (second, visible), (centre, True)):
                    row += place if is_seen else (0, 0)
                    row += [2 if is_seen else 0] if size == 3 else []
                rows.append(" ".join(f"{value:.6g}" for value in row))
            write(root / "labels" / split / f"{name}.txt", "\n".join(rows))
    write(root / "data.yaml", f"train: images/train\nval: images/val\nnames: [cat, traffic light]\n{yaml}")


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("visible", [True, False])
def test_the_box_before_key_points_is_read_though_no_kpt_shape_says_so(tmp_path, size, visible):
    pose(tmp_path / "set", size=size, visible=visible)
    loaded = read_all(tmp_path / "set", tmp_path)
    assert all(any("key points" in note for note in read.notes) for read in loaded.values())


@pytest.mark.parametrize("size", [2, 3])
def test_key_points_outside_their_boxes_are_asked_for(tmp_path, size):
    pose(tmp_path / "set", size=size, outside=True)
    with pytest.raises(DataError, match=rf"key points.*kpt_shape: \[3, {size}\].*kpt_shape: null"):
        found_sentence(Data.model_validate({"path": tmp_path / "set"}))
    write(tmp_path / "set" / "data.yaml", (tmp_path / "set" / "data.yaml").read_text() + f"kpt_shape: [3, {size}]")
    again = tmp_path / "again"
    (tmp_path / "set").rename(again)  # a folder is looked at once in a process
    read_all(again, tmp_path)


def test_null_says_that_rows_are_polygons(tmp_path):
    pose(tmp_path / "set", size=2, yaml="kpt_shape: null\n")
    read = load_split(Data.model_validate({"path": tmp_path / "set"}), "train", data_dir=tmp_path / "made")
    assert read.notes == ()
    assert read.samples[0].objects.boxes_norm_xyxy[0].tolist() == pytest.approx([0.1, 0.1, 0.5, 0.6], abs=1e-5)


def around(rng, points, *, centre, radius):
    """Return a row of class 0 whose points lie around a centre."""
    angles = np.sort(rng.uniform(0, 2 * np.pi, points))
    places = centre + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return [0.0, *places.ravel().tolist()]


def test_polygons_stay_polygons():
    rng = np.random.default_rng(0)
    scattered = [around(rng, 8, centre=rng.uniform(0.1, 0.9, 2), radius=0.05) for _ in range(40)]
    assert guess_layout(scattered, where=Path("set")) == "plain", "anywhere in the picture, of one length"
    of_lengths = [around(rng, n, centre=np.array([0.4, 0.4]), radius=0.05) for n in (5, 6, 7)]
    assert guess_layout(of_lengths, where=Path("set")) == "plain", "of several lengths"
    turned = [[0, 0.4, 0.3, 0.5, 0.4, 0.4, 0.5, 0.3, 0.4], [0, 0.4, 0.4, 0.5, 0.4, 0.5, 0.5, 0.4, 0.5]]
    assert guess_layout(turned, where=Path("set")) == "plain", "rectangles, turned and upright"
    assert guess_layout([], where=Path("set")) == "plain"


def test_few_polygons_in_the_middle_are_asked_for_rather_than_guessed():
    rng = np.random.default_rng(0)
    rows = [around(rng, 5, centre=np.array([0.4, 0.4]), radius=0.05) for _ in range(2)]
    with pytest.raises(DataError, match="kpt_shape"):
        guess_layout(rows, where=Path("set"))


# --- files of labels and pictures that do not go together ---------------------------------------------


def test_pictures_without_labels_and_labels_without_a_picture_are_counted(tmp_path):
    ultralytics(tmp_path / "set")
    (tmp_path / "set" / "labels" / "train" / "t0.txt").unlink()
    (tmp_path / "set" / "images" / "train" / "t1.jpg").unlink()
    read = load_split(Data.model_validate({"path": tmp_path / "set"}), "train", data_dir=tmp_path / "made")
    assert any("1 picture" in note for note in read.notes)
    assert any("1 file" in note and "t1.txt" in note for note in read.notes)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x81\x8d\xff\xfe\x00\x01", "UTF-8"),
        ("0 .5 .5 .1 .1\n".encode("utf-16-le"), "line 1"),
        (b"\0\0\0\0", "line 1"),
        (b"0,.5,.5,.1,.1", "line 1"),
        (b"0 nan .5 .1 .1", r"\[0, 1\]"),
        (b"0", "'0'"),
        (b"0 .5 .5 .1 .1 .2 .2 2", "kpt_shape"),
    ],
)
def test_labels_that_cannot_be_read_are_no_picture_without_objects(tmp_path, content, reason):
    ultralytics(tmp_path / "set")
    (tmp_path / "set" / "labels" / "train" / "t0.txt").write_bytes(content)
    with pytest.raises(DataError, match=rf"t0\.txt: .*{reason}"):
        load_split(Data.model_validate({"path": tmp_path / "set"}), "train", data_dir=tmp_path / "made")


@pytest.mark.parametrize("damage", ["dead link", "folder"])
def test_a_file_of_labels_that_is_none(tmp_path, damage):
    ultralytics(tmp_path / "set")
    path = tmp_path / "set" / "labels" / "train" / "t0.txt"
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        path.symlink_to("/nowhere/t0.txt")
    with pytest.raises(DataError, match=r"t0\.txt"):
        load_split(Data.model_validate({"path": tmp_path / "set"}), "train", data_dir=tmp_path / "made")


def test_labels_in_capitals_and_in_utf_16(tmp_path):
    ultralytics(tmp_path / "set")
    labels = tmp_path / "set" / "labels" / "train"
    (labels / "t0.txt").rename(labels / "t0.TXT")
    (labels / "t1.txt").write_bytes((labels / "t1.txt").read_text().encode("utf-16"))
    read_all(tmp_path / "set", tmp_path)


def test_a_folder_above_the_data_that_cannot_be_listed_is_no_reason_to_stop(tmp_path, monkeypatch):
    """Home folders of a cluster may be entered and not listed; root, who runs this in a container, may list all."""
    root = tmp_path / "home" / "set"
    ultralytics(root)
    list_folder = Path.iterdir

    def guarded(folder):
        if folder == tmp_path / "home":
            raise PermissionError(13, "Permission denied")
        return list_folder(folder)

    monkeypatch.setattr(Path, "iterdir", guarded)
    read_all(root, tmp_path)

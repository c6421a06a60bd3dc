"""The files of a data set are found as people lay them out, and asked for where the folder does not say."""

import json
from pathlib import Path

import pytest

from coordexp.errors import DataError
from coordexp.scaffold.coco_folder import SplitFiles, find_split

LAYOUTS = {
    "COCO 2017": {
        "annotations/instances_train2017.json": "train2017", "annotations/instances_val2017.json": "val2017",
        "annotations/captions_train2017.json": None, "annotations/person_keypoints_val2017.json": None,
    },
    "datumaro": {"annotations/instances_train.json": "images/train", "annotations/instances_val.json": "images/val"},
    "Roboflow": {"train/_annotations.coco.json": "train", "valid/_annotations.coco.json": "valid"},
    "YOLO converted": {"instances_train.json": "train/images", "instances_valid.json": "valid/images"},
    "one folder of pictures": {"train.json": "images", "val.json": "images"},
    "a test part": {"train.json": "train", "test.json": "test"},
}  # fmt: skip


def lay_out(root: Path, files: dict[str, str | None], *, name: str = "1.jpg") -> Path:
    for file, images in files.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        entries = {"images": [{"id": 1, "file_name": name}], "annotations": [], "categories": []}
        (root / file).write_text(json.dumps(entries), encoding="utf-8")
        if images is not None:
            (root / images).mkdir(parents=True, exist_ok=True)
            (root / images / name).write_bytes(b"")
    return root


def found(root: Path, split: str, **known: Path | None) -> SplitFiles:
    return find_split(root, split, **{"annotations": None, "images": None, **known})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_usual_layout_says_it_all(tmp_path, layout):
    root = lay_out(tmp_path, LAYOUTS[layout])
    pairs = [(file, images) for file, images in LAYOUTS[layout].items() if images is not None]
    for split, (file, images) in zip(("train", "val"), pairs, strict=True):
        assert found(root, split) == SplitFiles(root / file, root / images)


def test_what_is_named_is_taken(tmp_path):
    root = lay_out(tmp_path, {"a.json": "somewhere/else", "b.json": "somewhere/other"})
    assert found(root, "val", annotations=root / "b.json") == SplitFiles(root / "b.json", root / "somewhere" / "else")
    both = found(root, "val", annotations=root / "b.json", images=root / "somewhere" / "other")
    assert both == SplitFiles(root / "b.json", root / "somewhere" / "other")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"no JSON file; name it with --train-annotations"),
        ({"train_a.json": "a", "train_b.json": "b"}, r"there is train_a\.json, train_b\.json"),
        ({"train.json": None}, r"no folder in .* such as 1\.jpg"),
    ],
)
def test_what_a_folder_does_not_say_is_asked_for(tmp_path, files, message):
    with pytest.raises(DataError, match=message):
        found(lay_out(tmp_path, files), "train")


def test_another_format_gets_its_converter_unless_it_is_converted(tmp_path):
    (tmp_path / "labels" / "train").mkdir(parents=True)
    (tmp_path / "labels" / "train" / "1.txt").write_text("0 .5 .5 .1 .1\n0 0.5 0.5 0.1 0.1\n", encoding="utf-8")
    (tmp_path / "labels" / "train" / "2.txt").write_text("0 0.5 0.5 0.1 0.1\n", encoding="utf-8")
    with pytest.raises(DataError, match="looks like labels of YOLO"):
        found(tmp_path, "train")
    lay_out(tmp_path, {"instances_train.json": "images/train"})
    assert found(tmp_path, "train").images == tmp_path / "images" / "train"
    with pytest.raises(DataError, match="there is no such folder"):
        found(tmp_path / "gone", "train")


@pytest.mark.parametrize("content", ['{"image": "a.jpg"', "[1]\n", "\xff\n"])
def test_a_damaged_jsonl_is_one_sentence(tmp_path, content):
    (tmp_path / "train.jsonl").write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=r"train.jsonl: expected one JSON object a line"):
        found(tmp_path, "train")

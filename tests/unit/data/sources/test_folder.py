"""``data.path``: one small set, laid out as each tool does, is found by its content and read to the same boxes."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coordexp.config.keys import identity
from coordexp.config.schema import RunConfig
from coordexp.config.schema.data import Data
from coordexp.data.sources.door import load_split
from coordexp.data.sources.recorded import recorded_data
from coordexp.data.sources.source import SPLITS, found_sentence, source_of
from coordexp.errors import DataError
from coordexp.tracking.payload import flatten_config

SIZE = (80, 40)
NAMES = ("cat", "traffic light")
# Split -> picture -> objects: category and corners in pixels.
TRUTH = {
    "train": {f"t{at}": [(0, (8 + at, 4, 40, 24)), (1, (48, 10, 80, 40))] for at in range(4)},
    "val": {f"v{at}": [(1, (0, 0, 16 + at, 20))] for at in range(2)},
}


def write(path: Path, text: str, *, encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", SIZE).save(path)


def coco(split: str, folder: str = "") -> str:
    images = [
        {"id": at, "file_name": f"{folder}{name}.jpg", "width": SIZE[0], "height": SIZE[1]}
        for at, name in enumerate(TRUTH[split], start=1)
    ]
    annotations = [
        {"id": 10 * at + i, "image_id": at, "category_id": c + 1, "bbox": [x1, y1, x2 - x1, y2 - y1]}
        for at, objects in enumerate(TRUTH[split].values(), start=1)
        for i, (c, (x1, y1, x2, y2)) in enumerate(objects)
    ]
    categories = [{"id": at, "name": name} for at, name in enumerate(NAMES, start=1)]
    return json.dumps({"images": images, "annotations": annotations, "categories": categories})


def yolo(objects, *, polygon: bool = False) -> str:
    lines = []
    for c, (x1, y1, x2, y2) in objects:
        left, top, right, bottom = x1 / SIZE[0], y1 / SIZE[1], x2 / SIZE[0], y2 / SIZE[1]
        box = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
        points = (left, top, right, top, right, bottom, left, bottom)
        lines.append(f"{c} " + " ".join(f"{value:.6f}" for value in (points if polygon else box)))
    return "\r\n".join(lines) + "\r\n"


def voc(name: str, objects, *, ending: str = ".jpg", first: int = 1) -> str:
    boxes = "".join(
        f"<object><name>{NAMES[c]}</name><difficult>0</difficult><bndbox><xmin>{x1 + first}</xmin><ymin>{y1 + first}"
        f"</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object>"
        for c, (x1, y1, x2, y2) in objects
    )
    size = f"<size><width>{SIZE[0]}</width><height>{SIZE[1]}</height><depth>3</depth></size>"
    return f'<?xml version="1.0"?><annotation><filename>old {name}{ending}</filename>{size}{boxes}</annotation>'


def lay_out_yolo(root: Path, pictures: str, labels: str, **options) -> None:
    for split, images in TRUTH.items():
        for name, objects in images.items():
            picture(root / pictures.format(split=split) / f"{name}.jpg")
            write(root / labels.format(split=split) / f"{name}.txt", yolo(objects, **options))


def ultralytics(root: Path) -> None:
    lay_out_yolo(root, "images/{split}", "labels/{split}", polygon=True)
    write(
        root / "data.yaml",
        "path: ../datasets/gone\ntrain: images/train\nval: images/val\nnames: {0: cat, 1: traffic light}",
    )


def roboflow_yolo(root: Path) -> None:
    lay_out_yolo(root, "{split}/images", "{split}/labels")
    (root / "val").rename(root / "valid")
    write(root / "data.yaml", "train: ../train/images\nval: ../valid/images\nnc: 2\nnames: ['cat', 'traffic light']")


def yaml_of_lists(root: Path) -> None:
    lay_out_yolo(root, "images", "labels")
    for split, images in TRUTH.items():
        write(root / f"{split}.txt", "".join(f"/content/drive/set/images/{name}.jpg\n" for name in images))
    text = "train: C:\\sets\\mine\\train.txt\nval: val.txt\nnames: [cat, traffic light]"
    write(root / "mine.yml", text, encoding="utf-8-sig")


def darknet(root: Path) -> None:
    lay_out_yolo(root, "obj_{split}_data", "obj_{split}_data")
    for split, images in TRUTH.items():
        write(root / f"{split}.txt", "".join(f"data/obj_{split}_data/{name}.jpg\r\n" for name in images))
    write(root / "obj.names", "cat\r\ntraffic light\r\n", encoding="utf-8-sig")
    write(root / "obj.data", "classes = 2\ntrain = data/train.txt\nvalid = data/val.txt\nnames = data/obj.names\n")


def bare_folders(root: Path) -> None:
    lay_out_yolo(root, "{split}/images", "{split}/labels")
    write(root / "classes.txt", "cat\ntraffic light\n")


def official_voc(root: Path) -> None:
    for split, images in TRUTH.items():
        for name, objects in images.items():
            picture(root / "VOC2007" / "JPEGImages" / f"{name}.jpg")
            write(root / "VOC2007" / "Annotations" / f"{name}.xml", voc(name, objects))
        write(root / "VOC2007" / "ImageSets" / "Main" / f"{split}.txt", "".join(f"{name}\r\n" for name in images))
        write(root / "VOC2007" / "ImageSets" / "Main" / f"cat_{split}.txt", "".join(f"{name}  1\n" for name in images))


def voc_by_folder_from_zero(root: Path) -> None:
    for split, folder in (("train", "Train"), ("val", "test")):
        for name, objects in TRUTH[split].items():
            picture(root / "images" / folder / f"{name}.JPG")
            write(root / "images" / folder / f"{name}.xml", "\ufeff" + voc(name, objects, ending=".JPG", first=0))


def lay_out_voc(root: Path, pictures: str, labels: str) -> None:
    for split, images in TRUTH.items():
        for name, objects in images.items():
            picture(root / pictures.format(split=split) / f"{name}.jpg")
            write(root / labels.format(split=split) / f"{name}.xml", voc(name, objects))


def voc_beside_each_split(root: Path) -> None:
    lay_out_voc(root, "{split}/images", "{split}/annotations")


def voc_by_folder_of_labels(root: Path) -> None:
    lay_out_voc(root, "images/{split}", "xmls/{split}")


def voc_trainval_and_test(root: Path) -> None:
    lay_out_voc(root, "pictures", "annotations")
    write(root / "ImageSets" / "trainval.txt", "".join(f"{name}\n" for name in TRUTH["train"]))
    write(root / "ImageSets" / "test.txt", "".join(f"{name}\n" for name in TRUTH["val"]))


def yolo_pose(root: Path) -> None:
    ultralytics(root)
    lay_out_yolo(root, "images/{split}", "labels/{split}")
    for path in (root / "labels").rglob("*.txt"):
        path.write_text("".join(f"{line} 0.01 0.02 0.9 0.95\n" for line in path.read_text().splitlines()))
    write(root / "data.yaml", (root / "data.yaml").read_text() + "\nkpt_shape: [2, 2]\n")


def coco_2017(root: Path) -> None:
    for split, images in TRUTH.items():
        write(root / "annotations" / f"instances_{split}2017.json", coco(split))
        write(root / "annotations" / f"captions_{split}2017.json", coco(split))
        for name in images:
            picture(root / f"{split}2017" / f"{name}.jpg")


def roboflow_coco(root: Path) -> None:
    for split, folder in (("train", "train"), ("val", "valid")):
        write(root / "export" / folder / "_annotations.coco.json", coco(split), encoding="utf-8-sig")
        for name in TRUTH[split]:
            picture(root / "export" / folder / f"{name}.jpg")


def label_studio_coco(root: Path) -> None:
    for split, images in TRUTH.items():
        write(root / f"{split}.json", coco(split, folder="..\\..\\label-studio\\data\\"))
        for name in images:
            picture(root / "images" / f"{name}.jpg")


def jsonl(root: Path) -> None:
    for split, images in TRUTH.items():
        lines = []
        for name, objects in images.items():
            picture(root / "images" / split / f"{name}.jpg")
            for c, (x1, y1, x2, y2) in objects:  # one line an object
                box = [x1 / SIZE[0], y1 / SIZE[1], x2 / SIZE[0], y2 / SIZE[1]]
                lines.append(json.dumps({"image": f"{split}/{name}.jpg", "label": NAMES[c], "bbox": box}))
        write(root / f"{split}.jsonl", "\r\n".join(lines), encoding="utf-8-sig")


def chat(root: Path) -> None:
    for split, images in TRUTH.items():
        records = []
        for name, objects in images.items():
            picture(root / "images" / f"{name}.jpg")
            found = [{"bbox_2d": [x + 0.25 for x in box], "label": NAMES[c]} for c, box in objects]
            answer = f"```json\n{json.dumps(found)}\n```"
            turns = [{"from": "human", "value": "<image>Locate all."}, {"from": "gpt", "value": answer}]
            records.append({"image": f"images/{name}.jpg", "conversations": turns})
        write(root / f"{split}.json", json.dumps(records))


def swift(root: Path) -> None:
    for split, images in TRUTH.items():
        lines = []
        for name, objects in images.items():
            picture(root / f"{name}.jpg")
            refs = [NAMES[c] for c, _ in objects]
            found = {"ref": refs, "bbox": [list(box) for _, box in objects]}
            turns = [{"role": "assistant", "content": "<ref-object><bbox>" * len(objects)}]
            lines.append(json.dumps({"messages": turns, "images": [f"/home/me/{name}.jpg"], "objects": found}))
        write(root / f"{split}.jsonl", "\n".join(lines))


LAYOUTS = {
    "YOLO": (ultralytics, roboflow_yolo, yaml_of_lists, darknet, bare_folders, yolo_pose),
    "Pascal VOC": (
        *(official_voc, voc_by_folder_from_zero, voc_beside_each_split),
        *(voc_by_folder_of_labels, voc_trainval_and_test),
    ),
    "COCO": (coco_2017, roboflow_coco, label_studio_coco),
    "JSONL": (jsonl, swift),
    "JSON records": (chat,),
}
EVERY = [(kind, lay_out) for kind, several in LAYOUTS.items() for lay_out in several]


@pytest.mark.parametrize(("kind", "lay_out"), EVERY, ids=lambda value: getattr(value, "__name__", value))
def test_a_layout_is_found_and_read_to_the_boxes_that_are_in_it(tmp_path, kind, lay_out):
    root = tmp_path / "my set"
    lay_out(root)
    data = Data.model_validate({"path": root})
    assert found_sentence(data).startswith(kind)
    for split, truth in TRUTH.items():
        read = load_split(data, split, data_dir=tmp_path / "made")
        assert {sample.image.stem for sample in read.samples} == set(truth)
        for sample in read.samples:
            assert (sample.width, sample.height) == SIZE
            wanted = truth[sample.image.stem]
            assert sample.objects.descs == tuple(NAMES[c] for c, _ in wanted)
            boxes = sample.objects.boxes_norm_xyxy * np.array(SIZE * 2)
            assert np.abs(boxes - np.array([box for _, box in wanted])).max() < 0.26  # of the chat's quarter pixel


def test_pictures_of_the_split_come_before_copies_of_the_same_names(tmp_path):
    coco_2017(tmp_path)
    for name in (name for images in TRUTH.values() for name in images):
        picture(tmp_path / "boxes drawn" / f"{name}.jpg")
    data = Data.model_validate({"path": tmp_path})
    for split in SPLITS:
        read = load_split(data, split, data_dir=tmp_path / "made").samples
        assert {sample.image.parent.name for sample in read} == {f"{split}2017"}


@pytest.mark.parametrize("places", [("images", "labels"), ("images", "annotations/xmls")])
def test_xml_in_a_folder_of_its_own_beside_the_pictures(tmp_path, places):
    lay_out_voc(tmp_path, *places)
    data = Data.model_validate({"path": tmp_path})
    loaded = [load_split(data, split, data_dir=tmp_path / "made") for split in SPLITS]
    assert [len(one.samples) for one in loaded] == [5, 1]
    assert sum(one.counts["boxes"] for one in loaded) == 10


@pytest.mark.parametrize("fraction", [0.2, 0.5])  # 0.2 is the default, which a record leaves out
def test_what_nobody_split_is_split_by_picture_and_seed(tmp_path, fraction):
    for name, objects in (TRUTH["train"] | TRUTH["val"]).items():
        for copy in ("", "_jpg.rf.0a1b", "_jpg.rf.2c3d"):
            picture(tmp_path / "images" / f"{name}{copy}.jpg")
            write(tmp_path / "labels" / f"{name}{copy}.txt", yolo(objects))

    def parts(**keys):
        data = Data.model_validate({"path": tmp_path, "val_fraction": fraction, **keys})
        loaded = (load_split(data, split, data_dir=tmp_path / "made").samples for split in SPLITS)
        return [{sample.image.name for sample in samples} for samples in loaded]

    train, val = parts()
    assert len(train | val) == 18
    assert not train & val
    pictures = [{name[:2] for name in part if ".rf." in name} for part in (train, val)]
    assert not pictures[0] & pictures[1], "copies of one picture stay together"
    assert parts() == [train, val]
    assert parts(split_seed=1) != [train, val]
    other = Data.model_validate({"path": tmp_path, "val_fraction": fraction, "max_train_images": 1})
    source = source_of(other, "val", data_dir=tmp_path / "made")
    params = flatten_config(identity(RunConfig(data=other)))
    assert ("data.val_fraction" in params) == (fraction != 0.2)
    known = recorded_data(params, data_hash=None, data_dir=tmp_path / "made")
    assert known.ground_truth == source.ground_truth()
    elsewhere = recorded_data({**params, "data.path": "/gone"}, data_hash=None, data_dir=tmp_path / "made")
    assert elsewhere.ground_truth == source.ground_truth()
    assert {Path(one["file_name"]).name for one in json.loads(source.ground_truth().read_text())["images"]} == val


@pytest.mark.parametrize(
    ("files", "facts"),
    [
        ({"a.txt": "nothing"}, r"a\.txt.*data\.train_annotations"),
        (
            {"train_a.json": coco("train"), "train_b.json": coco("train")},
            r"train_a.*train_b.*train_annotations",
        ),
        ({"a.json": coco("train"), "b.json": coco("val")}, r"a\.json, b\.json.*train_annotations"),
        ({"a/x.json": coco("train"), "b/x.json": coco("val")}, r"COCO in a, COCO in b.*data\.path"),
    ],
)
def test_what_a_folder_does_not_say_is_asked_for(tmp_path, files, facts):
    for name, text in files.items():
        write(tmp_path / name, text)
    with pytest.raises(DataError, match=facts):
        found_sentence(Data.model_validate({"path": tmp_path}))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("7 .1 .1 .1 .1", r"\b7\b.*\b2\b"),
        ("0 10 20 30 40", r"0 10 20 30 40.*\[0, 1\]"),
        ("cat .1 .1 .1 .1", r"cat \.1 \.1 \.1 \.1"),
        ("0 .1 .1 .1", r"0 \.1 \.1 \.1\b"),
    ],
)
def test_a_line_of_labels_that_cannot_be_read_is_named(tmp_path, line, reason):
    ultralytics(tmp_path)
    write(tmp_path / "labels" / "train" / "t1.txt", f"0 .5 .5 .2 .2\n{line}")
    with pytest.raises(DataError, match=rf"t1\.txt: line 2: .*{reason}"):
        load_split(Data.model_validate({"path": tmp_path}), "train", data_dir=tmp_path / "made")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("</annotation>", "", "XML"),
        ("<annotation>", "<!DOCTYPE a [<!ENTITY b 'c'>]><annotation>", "entities"),
        ("<name>cat</name>", "", "object 1 .*name"),
        ("bndbox", "polygon", "object 1 .*bndbox"),
        ("<xmax>40</xmax>", "<xmax>forty</xmax>", "xmax.*'forty'"),
    ],
)
def test_xml_that_cannot_be_read_is_named(tmp_path, old, new, reason):
    lay_out_voc(tmp_path, "images", "images")
    path = tmp_path / "images" / "t0.xml"
    path.write_text(path.read_text().replace(old, new))
    data = Data.model_validate({"path": tmp_path, "val_fraction": 0.2})
    with pytest.raises(DataError, match=rf"t0\.xml: .*{reason}"):
        [load_split(data, split, data_dir=tmp_path / "made") for split in SPLITS]
    accepted = Data.model_validate({"path": tmp_path, "max_bad_fraction": 0.5})
    assert sum(len(load_split(accepted, split, data_dir=tmp_path / "made").samples) for split in SPLITS) == 5

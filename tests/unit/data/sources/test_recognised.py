"""Formats that are known and not read are named, with the export that is read; in a folder, and by their own path."""

import json
from pathlib import Path

import pytest

from coordexp.config.schema.data import Data
from coordexp.data.sources.door import load_split
from coordexp.data.sources.source import SPLITS, found_sentence
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import DataError
from tests.unit.data.sources.test_folder import coco, coco_2017, official_voc, picture, write

BOX = {"x": 1, "y": 2, "width": 30, "height": 20}
DATUMARO = {
    "info": {},
    "categories": {"label": {"labels": [{"name": "cat"}]}},
    "items": [{"id": "a", "annotations": [{"type": "bbox", "label_id": 0, "bbox": [1, 2, 30, 20]}]}],
}
SUPERVISELY = {
    "size": {"height": 40, "width": 80},
    "objects": [{"classTitle": "cat", "geometryType": "rectangle", "points": {"exterior": [[1, 2], [30, 20]]}}],
}
INFERENCE = {"image": {"width": 80, "height": 40}, "predictions": [BOX | {"class": "cat", "confidence": 0.9}]}
LABELME = {"shapes": [{"label": "cat", "points": [[1, 2], [30, 20]], "shape_type": "rectangle"}], "imagePath": "a.jpg"}
VIA = {"a.jpg123": {"filename": "a.jpg", "regions": [{"shape_attributes": {"name": "rect"} | BOX}]}}
LABEL_STUDIO = [
    {
        "id": 1,
        "annotations": [{"completed_by": 1, "result": [{"from_name": "label", "to_name": "image"}]}],
        "data": {"image": "/data/upload/a.jpg"},
    }
]
CREATE_ML = [{"image": "a.jpg", "annotations": [{"label": "cat", "coordinates": BOX}]}]
CVAT = "<?xml version='1.0' encoding='utf-8'?>\n<annotations><version>1.1</version><meta><task/></meta>{}</annotations>"
CVAT_IMAGES = CVAT.format('<image id="0" name="a.jpg" width="80" height="40"><box label="cat" xtl="1"/></image>')
CVAT_VIDEO = CVAT.format('<track id="0" label="cat"><box frame="0" xtl="1" ytl="2" xbr="31" ybr="22"/></track>')
ROBOFLOW_CSV = "filename,width,height,class,xmin,ymin,xmax,ymax\na.jpg,80,40,cat,1,2,31,22\n"

FILES = [
    ("annotations.xml", CVAT_IMAGES, "CVAT for images.*COCO 1.0"),
    ("annotations.xml", CVAT_VIDEO, "CVAT for video.*COCO 1.0"),
    ("annotations/default.json", json.dumps(DATUMARO), "Datumaro.*COCO 1.0"),
    ("ds0/ann/a.jpg.json", json.dumps(SUPERVISELY), "Supervisely.*Export to COCO"),
    ("meta.json", json.dumps({"classes": [], "projectType": "images"}), "Supervisely.*Export to COCO"),
    ("result.json", json.dumps(INFERENCE), "Roboflow inference.*COCO"),
    ("train.jsonl", json.dumps(INFERENCE), "Roboflow inference.*COCO"),
    ("a.json", json.dumps(LABELME), "LabelMe.*labelme2coco"),
    ("via.json", json.dumps(VIA), "VIA.*COCO"),
    ("project-1.json", json.dumps(LABEL_STUDIO), "Label Studio.*COCO"),
    ("_annotations.createml.json", json.dumps(CREATE_ML), "CreateML.*COCO"),
    ("train/_annotations.csv", ROBOFLOW_CSV, "CSV of Roboflow.*COCO"),
    ("labels.csv", "image,x1,y1,x2,y2,label\na.jpg,1,2,31,22,cat\n", "CSV.*COCO.*bbox_2d"),
    ("train/cat.tfrecord", "\x00\x01", "TFRecord.*COCO"),
    ("train/data-00000-of-00001.arrow", "ARROW1", "save_to_disk.*to_parquet"),
]


@pytest.mark.parametrize(("name", "content", "said"), FILES)
def test_a_folder_in_another_tools_own_format(tmp_path, name, content, said):
    picture(tmp_path / "images" / "a.jpg")
    write(tmp_path / name, content)
    with pytest.raises(DataError, match=rf"(?s){Path(name).name}: .*{said}"):
        found_sentence(Data.model_validate({"path": tmp_path}))


@pytest.mark.parametrize(("name", "content", "said"), FILES)
def test_the_same_file_by_its_own_path(tmp_path, name, content, said):
    picture(tmp_path / "images" / "a.jpg")
    path = tmp_path / name
    write(path, content)
    places = {f"{split}_annotations": path for split in SPLITS} | {f"{split}_images": path.parent for split in SPLITS}
    with pytest.raises(DataError, match=rf"(?s){Path(name).name}: .*{said}"):
        load_split(Data.model_validate({"format": "coco", **places}), "train", data_dir=tmp_path / "made")
    with pytest.raises(DataError, match=said):
        read_ground_truth(path)


@pytest.mark.parametrize("lay_out", [coco_2017, official_voc])
def test_other_files_beside_a_set_that_is_read_are_no_reason_to_stop(tmp_path, lay_out):
    lay_out(tmp_path)
    write(tmp_path / "notes.csv", "a,b\n1,2\n")
    write(tmp_path / "meta.json", json.dumps({"classes": [], "projectType": "images"}))
    data = Data.model_validate({"path": tmp_path})
    assert load_split(data, "train", data_dir=tmp_path / "made").counts["boxes"] == 8


# --- key point files, alone and beside boxes ------------------------------------------------------------


@pytest.mark.parametrize("beside", [None, "captions_train2017.json"])
def test_files_of_key_points_that_are_alone_hold_the_boxes(tmp_path, beside):
    coco_2017(tmp_path)
    for path in (tmp_path / "annotations").iterdir():
        path.unlink()
    for split in SPLITS:
        write(tmp_path / "annotations" / f"person_keypoints_{split}2017.json", coco(split))
    if beside is not None:
        write(tmp_path / "annotations" / beside, json.dumps({"images": [], "annotations": []}))
    read = load_split(Data.model_validate({"path": tmp_path}), "train", data_dir=tmp_path / "made")
    assert read.counts["boxes"] == 8


def test_files_of_boxes_come_before_files_of_key_points(tmp_path):
    coco_2017(tmp_path)
    for split, other in (("train", "val"), ("val", "train")):
        write(tmp_path / "annotations" / f"person_keypoints_{split}2017.json", coco(other))
    read = load_split(Data.model_validate({"path": tmp_path}), "train", data_dir=tmp_path / "made")
    assert read.counts["boxes"] == 8


# --- a file that says a split and cannot be read ---------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (coco("val")[:300], "JSON"),
        ("", "JSON"),
        ("[]", "list"),
        (json.dumps({"images": [], "categories": []}), "'annotations'"),
        (json.dumps([{"image": "v0.jpg", "rects": []}]), "image, rects"),
    ],
)
def test_a_damaged_validation_file_does_not_make_the_set_one_that_nobody_split(tmp_path, content, reason):
    coco_2017(tmp_path)
    write(tmp_path / "annotations" / "instances_val2017.json", content)
    with pytest.raises(DataError, match=rf"instances_val2017\.json: .*{reason}"):
        found_sentence(Data.model_validate({"path": tmp_path}))


def test_measures_and_lists_without_labels_are_no_annotations(tmp_path):
    coco_2017(tmp_path)
    write(tmp_path / "val_metrics.json", json.dumps({"loss": 1.5}))
    write(tmp_path / "image_info_test2017.json", json.dumps({"images": [], "categories": []}))
    assert "instances_val2017" in found_sentence(Data.model_validate({"path": tmp_path}))


def test_records_that_nobody_knows_are_named_by_their_keys(tmp_path):
    picture(tmp_path / "a.jpg")
    write(tmp_path / "train.jsonl", json.dumps({"image": "a.jpg", "rects": [[1, 2, 3, 4]]}))
    with pytest.raises(DataError, match=r"train\.jsonl: .*image, rects"):
        found_sentence(Data.model_validate({"path": tmp_path}))


# --- Pascal VOC ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("object>", "Object>"),
        ("<annotation>", '<annotation xmlns="http://tool/1">'),
        ("<xmax>", "<XMAX>"),
    ],
)
def test_tags_in_another_case_or_in_a_namespace_are_read(tmp_path, old, new):
    official_voc(tmp_path)
    path = tmp_path / "VOC2007" / "Annotations" / "t0.xml"
    path.write_text(
        path.read_text().replace(old, new).replace("</xmax>", f"</{new[1:-1]}>" if "X" in new else "</xmax>")
    )
    read = load_split(Data.model_validate({"path": tmp_path}), "train", data_dir=tmp_path / "made")
    assert read.counts["boxes"] == 8


def test_objects_below_another_tag_are_read(tmp_path):
    official_voc(tmp_path)
    path = tmp_path / "VOC2007" / "Annotations" / "t0.xml"
    text = path.read_text()
    path.write_text(
        text.replace("<object>", "<objects><object>", 1).replace("</annotation>", "</objects></annotation>")
    )
    read = load_split(Data.model_validate({"path": tmp_path}), "train", data_dir=tmp_path / "made")
    assert read.counts["boxes"] == 8


def test_the_encoding_that_xml_declares_counts(tmp_path):
    official_voc(tmp_path)
    path = tmp_path / "VOC2007" / "Annotations" / "t0.xml"
    text = path.read_text().replace('version="1.0"', 'version="1.0" encoding="gbk"').replace("<name>cat", "<name>猫")
    path.write_bytes(text.encode("gbk"))
    read = load_split(Data.model_validate({"path": tmp_path}), "train", data_dir=tmp_path / "made")
    assert read.samples[0].objects.descs == ("猫", "traffic light")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("object>", "item>"), "<bndbox>"),
        (lambda text: text.replace("<xmax>40", "<xmax>nan"), "xmax.*'nan'"),
        (lambda text: text.replace("<xmax>40", "<xmax>1e999"), "xmax.*'1e999'"),
        (lambda text: "<html><body/></html>", "'html'"),
        (lambda text: "", "XML"),
    ],
)
def test_xml_that_cannot_be_read_is_no_picture_without_objects(tmp_path, change, reason):
    official_voc(tmp_path)
    path = tmp_path / "VOC2007" / "Annotations" / "t0.xml"
    path.write_text(change(path.read_text()))
    with pytest.raises(DataError, match=rf"t0\.xml: .*{reason}"):
        load_split(Data.model_validate({"path": tmp_path}), "train", data_dir=tmp_path / "made")


def test_official_lists_in_another_case(tmp_path):
    official_voc(tmp_path)
    lists = tmp_path / "VOC2007" / "ImageSets" / "Main"
    for name in ("train", "val"):
        (lists / f"{name}.txt").rename(lists / f"{name.capitalize()}.TXT")
    assert "Train.TXT and Val.TXT" in found_sentence(Data.model_validate({"path": tmp_path}))


@pytest.mark.parametrize(("name", "cure"), [("set.zip", "unpack"), ("train.json", "four paths")])
def test_a_file_in_the_place_of_the_folder(tmp_path, name, cure):
    write(tmp_path / name, "PK")
    with pytest.raises(DataError, match=rf"{name}.*data\.path.*{cure}"):
        found_sentence(Data.model_validate({"path": tmp_path / name}))

"""One rule for boxes in every format: the same five boxes give the same targets and counts in each."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from coordexp.config.schema.data import Data
from coordexp.data.box_rule import apply_box_rule
from coordexp.data.sources.door import load_split
from coordexp.data.sources.source import source_of
from coordexp.detection.ceiling import codec_ceiling
from coordexp.detection.coco_eval import evaluate_detections
from coordexp.errors import DataError

SIZE = (100, 50)
# Corners in pixels: plain, over two edges, of no width, swapped in both directions, swapped and of no height.
CORNERS = [(10, 10, 40, 40), (-10, 20, 120, 45), (60, 5, 60, 30), (90, 45, 70, 5), (50, 30, 20, 30)]
TARGETS = [(10, 10, 40, 40), (0, 20, 100, 45), (70, 5, 90, 45)]
COUNTS = {"boxes": 3, "clipped": 1, "no_extent": 2, "swapped": 2}


def test_the_rule_by_hand():
    corners = np.array([*CORNERS, (120, 10, 140, 20)], float)
    ruled = apply_box_rule(corners, np.array([SIZE] * 6, float))
    assert ruled.was_swapped.tolist() == [False, False, False, True, True, False]
    assert ruled.was_clipped.tolist() == [False, True, False, False, False, True]
    assert ruled.has_extent.tolist() == [True, True, False, True, False, True]
    assert ruled.is_outside.tolist() == [False, False, False, False, False, True]
    assert ruled.corners_xyxy[[0, 1, 3]].tolist() == [list(map(float, box)) for box in TARGETS]


def write_coco(root, corners, **of_image):
    boxes = [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in corners]
    images = [{"id": 1, "file_name": "a.png", "width": SIZE[0], "height": SIZE[1], **of_image}]
    annotations = [{"id": at, "image_id": 1, "category_id": 1, "bbox": box} for at, box in enumerate(boxes, start=1)]
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "cat"}]}
    (root / "a.json").write_text(json.dumps(content))
    return content


def lvis(root, corners):
    content = write_coco(root, corners, neg_category_ids=[], not_exhaustive_category_ids=[])
    content["categories"][0]["frequency"] = "f"
    (root / "a.json").write_text(json.dumps(content))


def jsonl(root, corners, **record):
    objects = [{"desc": "cat", "bbox_2d": list(box)} for box in corners]
    (root / "a.jsonl").write_text(json.dumps({"image": "a.png", "bbox_format": "pixels", "objects": objects, **record}))


def fractions(root, corners):
    boxes = [[x / side for x, side in zip(box, SIZE * 2, strict=True)] for box in corners]
    jsonl(root, (), bbox_format="normalised", objects=[{"desc": "cat", "bbox": box} for box in boxes])


def chat(root, corners):
    answer = json.dumps([{"bbox_2d": list(box), "label": "cat"} for box in corners])
    turns = [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": answer}]
    (root / "a.jsonl").write_text(json.dumps({"image": "a.png", "messages": turns, "bbox_format": "pixels"}))


def swift(root, corners):
    objects = {"ref": ["cat"] * len(corners), "bbox": [list(box) for box in corners]}
    (root / "a.jsonl").write_text(json.dumps({"images": ["a.png"], "messages": [], "objects": objects}))


def voc(root, corners):
    tags = ("xmin", "ymin", "xmax", "ymax")
    boxes = "".join(
        "<object><name>cat</name><bndbox>"
        + "".join(f"<{tag}>{value}</{tag}>" for tag, value in zip(tags, box, strict=True))
        + "</bndbox></object>"
        for box in [*corners, (10.5, 10, 40, 40)]  # a fraction: counted from 0, as the others here
    )
    (root / "a.xml").write_text(f"<annotation><filename>a.png</filename>{boxes}</annotation>")


def yolo(root, corners):
    lines = [f"0 {(x1 + x2) / 200} {(y1 + y2) / 100} {(x2 - x1) / 100} {(y2 - y1) / 50}" for x1, y1, x2, y2 in corners]
    (root / "a.txt").write_text("\n".join(lines))
    (root / "classes.txt").write_text("cat\n")


def imagefolder(root, corners):
    boxes = [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in corners]
    record = {"file_name": "a.png", "objects": {"bbox": boxes, "categories": ["cat"] * len(boxes)}}
    (root / "metadata.jsonl").write_text(json.dumps(record))


FORMATS = [write_coco, lvis, jsonl, fractions, chat, swift, voc, yolo, imagefolder]


def both_splits(root, write, corners):
    for split in ("train", "val"):
        (root / split).mkdir(parents=True)
        Image.new("RGB", SIZE, "grey").save(root / split / "a.png")
        write(root / split, corners)
    if write is yolo:
        shutil.move(root / "train" / "classes.txt", root / "classes.txt")
        (root / "val" / "classes.txt").unlink()
    return Data.model_validate({"path": root})


@pytest.mark.parametrize("write", FORMATS)
def test_one_rule_in_every_format(tmp_path, write):
    data = both_splits(tmp_path / "set", write, CORNERS)
    for split in ("train", "val"):
        read = load_split(data, split, data_dir=tmp_path / "made")
        targets = read.samples[0].objects.boxes_norm_xyxy * np.array(SIZE * 2)
        assert np.allclose(targets[:3], TARGETS, atol=1e-4)
        assert read.rejected == ()
        counts = dict(COUNTS, boxes=4) if write is voc else COUNTS
        assert {name: read.counts[name] for name in COUNTS} == counts
        for sentence in ("1 in all", "2 in all"):  # one is clipped, two are of no extent, two are put in order
            assert any(sentence in note for note in read.notes)


@pytest.mark.parametrize("write", FORMATS)
def test_a_box_wholly_outside_its_image_is_a_bad_record_in_every_format(tmp_path, write):
    data = both_splits(tmp_path / "set", write, [*CORNERS, (110, 10, 130, 30)])
    with pytest.raises(DataError, match="outside"):
        load_split(data, "train", data_dir=tmp_path / "made")


@pytest.mark.parametrize("write", [write_coco, lvis])
def test_a_ground_truth_of_coco_keeps_boxes_of_no_extent(tmp_path, write):
    """pycocotools counts each of them as an object that is missed: AP here is its AP, on the file as it is."""
    corners = [box for box in CORNERS if box[0] <= box[2]]  # none is swapped: nothing has to be repaired
    data = both_splits(tmp_path / "set", write, corners)
    source = source_of(data, "val", data_dir=tmp_path / "made")
    assert source.ground_truth() == source.annotations, "the original bytes"
    detections = [
        {"image_id": 1, "category_id": 1, "bbox": [x1, y1, x2 - x1, y2 - y1], "score": 0.9}
        for x1, y1, x2, y2 in corners[:2]
    ]
    results = tmp_path / "dets.json"
    results.write_text(json.dumps(detections))
    measured = evaluate_detections(source.annotations, results)
    assert measured.AP is not None
    if write is write_coco:
        content = json.loads(source.annotations.read_text())
        for one in content["annotations"]:
            one |= {"area": one["bbox"][2] * one["bbox"][3], "iscrowd": 0}
        (tmp_path / "gt.json").write_text(json.dumps(content))
        truth = COCO(str(tmp_path / "gt.json"))
        judge = COCOeval(truth, truth.loadRes(str(results)), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
        assert pytest.approx(judge.stats[0], abs=1e-12) == measured.AP
        assert measured.AP < 0.7, "the box of no extent is missed"


def test_a_repaired_ground_truth_of_coco_keeps_boxes_of_no_extent_too(tmp_path):
    data = both_splits(tmp_path / "set", write_coco, CORNERS)
    made = json.loads(source_of(data, "val", data_dir=tmp_path / "made").ground_truth().read_text())
    assert sorted(one["bbox"] for one in made["annotations"]) == sorted(
        [[10, 10, 30, 30], [-10, 20, 130, 25], [60, 5, 0, 25], [70, 5, 20, 40], [20, 30, 30, 0]]
    )


def test_boxes_of_no_extent_do_not_lower_the_ceiling_that_is_judged(tmp_path):
    write_coco(tmp_path, [CORNERS[0], CORNERS[2]])
    assert codec_ceiling(tmp_path / "a.json") < 0.9
    assert codec_ceiling(tmp_path / "a.json", only_with_extent=True) == pytest.approx(1.0)


def test_a_file_whose_boxes_mostly_reach_beyond_their_images_is_refused(tmp_path):
    data = both_splits(tmp_path / "set", jsonl, [(10, 10, 150, 90)] * 20)
    with pytest.raises(DataError, match="100%"):
        load_split(data, "train", data_dir=tmp_path / "made")
    taken = data.model_copy(update={"max_bad_fraction": 1.0})
    read = load_split(taken, "train", data_dir=tmp_path / "made")
    assert read.counts["clipped"] == 20
    assert "100%" in read.warnings[0]


def test_each_part_of_a_set_that_is_not_split_counts_its_own_boxes(tmp_path):
    for at in range(4):
        Image.new("RGB", SIZE, "grey").save(tmp_path / f"{at}.png")
        yolo(tmp_path, [CORNERS[3], CORNERS[1]] if at < 3 else [CORNERS[0]])
        (tmp_path / "a.txt").rename(tmp_path / f"{at}.txt")
    data = Data.model_validate({"path": tmp_path, "val_fraction": 0.5})
    parts = [load_split(data, split, data_dir=tmp_path / "made").counts for split in ("train", "val")]
    assert sorted(counts["swapped"] for counts in parts) == [1, 2]
    assert sum(counts["clipped"] for counts in parts) == 3

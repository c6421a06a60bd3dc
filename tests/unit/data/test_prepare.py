"""prepare: records and manifest by hand, bad records, and equal bytes."""

import hashlib
import json
from pathlib import Path

import pytest

from coordexp.coord_tokens.bins import quantise_boxes
from coordexp.data.sources.coco.source import CocoSource
from coordexp.data.sources.prepare import PrepareSpec
from coordexp.detection import evaluate_detections
from coordexp.detection.ceiling import codec_ceiling
from coordexp.errors import DataError
from tests.support.samples import pairs_of, prepare, read_jsonl


def spec_of(coco, **options):
    return PrepareSpec(coco.annotations, coco.images, coco.root / "out", **options)


def records_of(output):
    return [json.loads(line) for line in (output / "samples.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def crowded(coco):
    """The two images with a crowd, an ignored box, a box over the border, and one 0.02 px wide."""
    coco.document["annotations"] += [
        {"id": 3, "image_id": 7, "category_id": 1, "bbox": [0, 0, 50, 25], "iscrowd": 1},
        {"id": 4, "image_id": 7, "category_id": 1, "bbox": [50, 25, 50, 25], "iscrowd": 0, "ignore": 1},
        {"id": 5, "image_id": 3, "category_id": 1, "bbox": [-4, 32, 20, 64]},
        {"id": 6, "image_id": 3, "category_id": 2, "bbox": [32.005, 0, 0.02, 32]},
    ]
    return coco.save()


def test_records_by_hand(crowded):
    prepare(spec_of(crowded))
    first, second = records_of(crowded.root / "out")
    assert first == {
        "image": "a.jpg",
        "width": 100,
        "height": 50,
        "image_id": 7,
        "objects": [  # from the top left: y1, then x1
            {"desc": "cat", "bbox": [0.0, 0.0, 1.0, 1.0]},
            {"desc": "traffic light", "bbox": [0.1, 0.4, 0.4, 0.8]},
        ],
        "ignored_objects": [
            {"desc": "cat", "bbox": [0.0, 0.0, 0.5, 0.5], "iscrowd": 1},
            {"desc": "cat", "bbox": [0.5, 0.5, 1.0, 1.0], "ignore": 1},
        ],
    }
    assert [item["desc"] for item in second["objects"]] == ["traffic light", "cat"]
    assert second["objects"][1]["bbox"] == [0.0, 0.5, 0.25, 1.0]
    assert "ignored_objects" not in second


def test_the_manifest_by_hand(crowded):
    made = prepare(spec_of(crowded))
    output = crowded.root / "out"
    manifest = json.loads((output / "manifest.json").read_text())
    assert made.is_new
    assert made.manifest == manifest
    assert manifest["annotations_sha256"] == hashlib.sha256(crowded.annotations.read_bytes()).hexdigest()
    assert manifest["outputs"]["samples.jsonl"] == {
        "sha256": hashlib.sha256((output / "samples.jsonl").read_bytes()).hexdigest(),
        "records": 2,
    }
    assert manifest["inputs"] == {
        "annotations": "instances.json",
        "bytes": crowded.annotations.stat().st_size,
        "image_root": str(crowded.images),
    }
    counts = manifest["counts"]
    wanted = {"images": 2, "annotations": 6, "boxes": 4, "crowd": 1, "ignored": 1, "clipped": 1, "thin": 1}
    assert {name: counts[name] for name in wanted} == wanted
    assert manifest["written"] == {
        "images": 2, "objects": 4, "not_targets": 2, "capped_images": 0, "capped_objects": 0,
    }  # fmt: skip
    assert manifest["categories"] == [
        {"id": 1, "name": "cat", "images": 2, "objects": 2},
        {"id": 2, "name": "traffic light", "images": 2, "objects": 2},
    ]
    assert manifest["codec"]["version"] == 1
    assert manifest["codec"]["num_bins"] == 1000
    assert manifest["rejected"] == []
    assert sorted(path.name for path in output.iterdir()) == ["manifest.json", "samples.jsonl"]
    assert [path.name for path in crowded.root.glob(".*")] == []


def test_the_ceiling_is_that_of_evaluation(coco_tiny, tmp_path):
    annotations = coco_tiny / "annotations" / "instances_val2017.json"
    manifest = prepare(PrepareSpec(annotations, coco_tiny / "images" / "val2017", tmp_path / "out")).manifest
    assert manifest["codec_ceiling"]["AP"] == pytest.approx(codec_ceiling(annotations), abs=1e-12)
    assert manifest["codec_ceiling"]["images"] == 6


def test_a_thin_box_has_one_ceiling_by_all_three_ways(coco):
    # 0.06 px of 100: both edges fall into bin 500, and the box is made a bin (0.1 px) wide.
    thin = {"id": 3, "image_id": 7, "category_id": 1, "bbox": [50.01, 10, 0.06, 30], "iscrowd": 0}
    coco.document["annotations"].append(thin)
    annotations = coco.save().annotations
    manifest = prepare(spec_of(coco)).manifest
    found = codec_ceiling(annotations)
    assert manifest["codec_ceiling"]["AP"] == pytest.approx(found, abs=1e-12)
    # The third way: write the quantised truth as detections and ask pycocotools.
    detections = []
    for item in coco.document["annotations"]:
        width, height = next((i["width"], i["height"]) for i in coco.document["images"] if i["id"] == item["image_id"])
        x, y, w, h = item["bbox"]
        corners = [min(max(c, 0.0), 1.0) for c in (x / width, y / height, (x + w) / width, (y + h) / height)]
        x1, y1, x2, y2 = (quantise_boxes([corners])[0] / 1000).tolist()
        box = [x1 * width, y1 * height, (x2 - x1) * width, (y2 - y1) * height]
        detections.append({"image_id": item["image_id"], "category_id": item["category_id"], "bbox": box, "score": 1.0})
    path = coco.root / "detections.json"
    path.write_text(json.dumps(detections))
    assert pytest.approx(found, abs=1e-12) == evaluate_detections(annotations, path).AP
    assert 0.0 < found < 1.0


def test_the_samples_are_those_of_the_annotations(coco_tiny, tmp_path):
    annotations = coco_tiny / "annotations" / "instances_train2017.json"
    images = coco_tiny / "images" / "train2017"
    prepare(PrepareSpec(annotations, images, tmp_path / "out"))
    found = read_jsonl(tmp_path / "out" / "samples.jsonl", images)
    wanted = CocoSource(annotations, images).read()
    assert [(item.image, item.image_id, item.width, item.height) for item in found.samples] == [
        (item.image, item.image_id, item.width, item.height) for item in wanted.samples
    ]
    for item, other in zip(found.samples, wanted.samples, strict=True):
        assert pairs_of(item.objects) == sorted(pairs_of(other.objects), key=lambda pair: pair[1][1::-1])
    assert found.counts["ignored"] == wanted.counts["crowd"] == 4
    assert found.counts["boxes"] == wanted.counts["boxes"] == 284


def test_coord_tokens_are_a_bin_wide(crowded):
    prepare(spec_of(crowded, coord_tokens=True))
    thin = records_of(crowded.root / "out")[1]["objects"][0]
    assert thin == {"desc": "traffic light", "bbox": [f"<|coord_{k}|>" for k in (500, 0, 501, 500)]}


def test_bins_are_written_as_integers(crowded):
    assert prepare(spec_of(crowded, bins=True)).manifest["options"]["boxes"] == "bins"
    first, second = records_of(crowded.root / "out")
    assert first["bbox_format"] == second["bbox_format"] == "norm1000"
    assert second["objects"][0] == {"desc": "traffic light", "bbox": [500, 0, 501, 500]}
    assert [item["bbox"] for item in first["ignored_objects"]] == [[0, 0, 500, 500], [500, 500, 999, 999]]


def test_the_cap_keeps_the_largest_and_counts_the_others(crowded):
    manifest = prepare(spec_of(crowded, max_objects=1)).manifest
    first, second = records_of(crowded.root / "out")
    assert [[item["desc"] for item in record["objects"]] for record in (first, second)] == [["cat"], ["cat"]]
    assert len(first["ignored_objects"]) == 2  # no target is not counted as one
    assert manifest["written"]["capped_objects"] == manifest["written"]["capped_images"] == 2
    assert manifest["options"]["max_objects"] == 1
    assert "largest" in manifest["cap_rule"]


def test_a_random_order_is_that_of_the_seed_and_the_image(coco):
    coco.enlarge(10)

    def orders(seed):
        output = coco.root / f"seed-{seed}"
        prepare(PrepareSpec(coco.annotations, coco.images, output, ordering="random", seed=seed))
        return [[tuple(item["bbox"]) for item in record["objects"]] for record in records_of(output)]

    first, second = orders(1), orders(2)
    assert first != second
    assert [sorted(boxes) for boxes in first] == [sorted(boxes) for boxes in second]
    coco.document["images"].reverse()
    coco.save()
    (coco.root / "seed-1").rename(coco.root / "kept")
    assert orders(1) == first[::-1]


def test_too_many_bad_records_stop_it_before_anything_is_written(coco):
    coco.document["annotations"][1]["bbox"] = [200, 0, 9, 5]
    coco.save()
    before = sorted(coco.root.rglob("*"))
    with pytest.raises(DataError, match=r"1 of 2 annotations .*annotations\[1\] \(id 2\): bbox"):
        prepare(spec_of(coco, max_bad_fraction=0.4))
    assert sorted(coco.root.rglob("*")) == before
    manifest = prepare(spec_of(coco, max_bad_fraction=0.5)).manifest
    assert manifest["rejected"] == [
        {
            "where": f"{coco.annotations}: annotations[1] (id 2)",
            "reason": "bbox [200.0, 0.0, 9.0, 5.0] lies outside its image of 100 x 50 pixels",
        }
    ]
    assert manifest["counts"]["rejected_annotations"] == 1


def test_images_may_be_elsewhere(coco):
    spec = PrepareSpec(coco.annotations, Path("/nowhere/images"), coco.root / "out", check_images="none")
    assert prepare(spec).manifest["written"]["images"] == 2
    with pytest.raises(DataError, match="/nowhere/images"):
        prepare(PrepareSpec(coco.annotations, Path("/nowhere/images"), coco.root / "x"))

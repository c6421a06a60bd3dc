import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from coordexp.detection import evaluate_detections
from coordexp.detection.box_evaluation import MatchedBoxes
from coordexp.detection.coco_eval import evaluate_boxes, published_precision
from coordexp.errors import DataError, ResourceError
from tests.support.detections import as_detections, crowded_scene, pycocotools_numbers, scene


def ground_truth() -> dict:
    """Three images of 200 x 100, two categories; image 3 is empty; ids start at 0, the trap."""
    boxes = [(1, 1, [10, 10, 40, 40]), (1, 2, [100, 20, 50, 60]), (2, 1, [5, 5, 20, 20]), (2, 1, [60, 30, 100, 60])]
    return {
        "images": [{"id": i, "width": 200, "height": 100, "file_name": f"{i}.jpg"} for i in (1, 2, 3)],
        "categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}],
        "annotations": [
            {"id": n, "image_id": i, "category_id": c, "bbox": b, "area": b[2] * b[3], "iscrowd": 0}
            for n, (i, c, b) in enumerate(boxes)
        ],
    }


def perfect(gt: dict) -> list[dict]:
    return [
        {"image_id": a["image_id"], "category_id": a["category_id"], "bbox": a["bbox"], "score": 0.9}
        for a in gt["annotations"]
    ]


def write(folder: Path, gt: object, dt: object) -> tuple[Path, Path]:
    paths = folder / "gt.json", folder / "dt.json"
    for path, value in zip(paths, (gt, dt), strict=True):
        path.write_text(value if isinstance(value, str) else json.dumps(value))
    return paths


def test_perfect_detections_score_one_although_an_annotation_has_id_zero(tmp_path: Path, capsys) -> None:
    gt = ground_truth()
    metrics = evaluate_detections(*map(str, write(tmp_path, gt, perfect(gt))))
    assert pytest.approx(1.0) == metrics.AP
    assert pytest.approx(1.0) == metrics.AR100
    assert metrics.AP_large is None  # no ground truth above 96 x 96 px
    assert capsys.readouterr().out == ""
    # Negative control: pycocotools itself falls into the trap.
    plain = COCO(str(tmp_path / "gt.json"))
    trap = COCOeval(plain, plain.loadRes(perfect(gt)), "bbox")
    trap.evaluate()
    trap.accumulate()
    trap.summarize()
    assert trap.stats[0] < 0.9


@pytest.mark.parametrize("seed", range(4))
def test_equals_pycocotools_run_on_everything_at_once(seed: int) -> None:
    given, rows = crowded_scene(seed)
    expected = pycocotools_numbers(given, rows)
    found = evaluate_boxes(given.truth, as_detections(rows))
    assert list(asdict(found).values()) == expected
    assert 0.1 < expected[0] < 0.95
    published = published_precision(given.truth, as_detections(rows))
    assert published == {"AP": found.AP, "AP50": found.AP50, "AP75": found.AP75}


def test_a_number_that_is_not_defined_is_not_published() -> None:
    given = scene((1, 1, [0, 0, 10, 10], True))
    assert published_precision(given.truth, as_detections([])) == {}


def test_no_detections_is_zero_and_no_ground_truth_is_undefined(tmp_path: Path) -> None:
    gt = ground_truth()
    metrics = evaluate_detections(*write(tmp_path, gt, []))
    assert (metrics.AP, metrics.AP50, metrics.AR100) == (0.0, 0.0, 0.0)
    gt["annotations"] = []
    metrics = evaluate_detections(*write(tmp_path, gt, []))
    assert set(asdict(metrics).values()) == {None}
    assert list(asdict(metrics))[:3] == ["AP", "AP50", "AP75"]


def test_every_image_counts_and_a_subset_only_its_own(tmp_path: Path) -> None:
    gt = ground_truth()
    only_first = [d for d in perfect(gt) if d["image_id"] == 1]
    paths = write(tmp_path, gt, only_first)
    assert evaluate_detections(*paths).AP < 0.8
    assert pytest.approx(1.0) == evaluate_detections(*paths, image_ids=[1]).AP
    assert evaluate_detections(*paths, image_ids={2}).AP == 0.0
    assert evaluate_detections(*paths, image_ids=[3]).AP is None
    with pytest.raises(DataError, match=r"gt\.json: .*\b9\b"):
        evaluate_detections(*paths, image_ids=[1, 9])


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({"image_id": 99}, "99"),
        ({"category_id": 99}, "99"),
        ({"category_id": None}, ""),
        ({"image_id": True}, ""),
        ({"image_id": 2**63}, "9223372036854775808"),
        ({"bbox": [1, 2, 3]}, "[1, 2, 3]"),
        ({"bbox": [1, 2, 3, float("nan")]}, "nan"),
        ({"bbox": [1, 2, 3, 10**400]}, ""),
        ({"score": float("inf")}, "inf"),
        ({"score": 10**400}, ""),
        ({"score": None}, ""),
    ],
)
def test_bad_detections_are_named(tmp_path: Path, change: dict, value: str) -> None:
    gt = ground_truth()
    dt = perfect(gt)
    dt[1] = dt[1] | change
    (key,) = change
    with pytest.raises(DataError, match=rf"dt\.json: .*detection\[1\]: {key}\b.*{re.escape(value)}"):
        evaluate_detections(*write(tmp_path, gt, dt))


@pytest.mark.parametrize(
    ("path", "value", "facts"),
    [
        (("images", 1, "id"), 1, r"images\[1\]: id 1\b"),
        (("images", 1, "width"), -1, r"images\[1\]: width .*-1"),
        (("categories", 1, "name"), None, r"categories\[1\]: name\b"),
        (("categories",), None, "'categories'"),
    ],
)
def test_bad_ground_truth_is_named(tmp_path: Path, path: tuple, value: object, facts: str) -> None:
    gt = ground_truth()
    place = gt
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(DataError, match=rf"gt\.json: {facts}"):
        evaluate_detections(*write(tmp_path, gt, []))


@pytest.mark.parametrize(
    "change",
    [{"category_id": 5}, {"image_id": 5}, {"bbox": [0, 0, -1]}, {"iscrowd": 2}],
    ids=["category_id", "image_id", "bbox", "iscrowd"],
)
def test_one_bad_annotation_is_left_out_and_said_and_many_are_refused(tmp_path: Path, change: dict) -> None:
    gt = ground_truth()
    good_ones = [annotation for place, annotation in enumerate(gt["annotations"]) if place != 2]
    without_bad_one = dict(gt, annotations=good_ones)
    (key,) = change
    gt["annotations"][2].update(change)
    with pytest.warns(UserWarning, match=rf"gt\.json: 1 of 4 .*\[2\]: {key}\b"):
        metrics = evaluate_detections(*write(tmp_path, gt, perfect(without_bad_one)))
    assert pytest.approx(1.0) == metrics.AP
    for annotation in gt["annotations"]:
        annotation.update(change)
    with pytest.raises(DataError, match=rf"annotations\[0\]: {key}\b.*\b4 of 4\b"):
        evaluate_detections(*write(tmp_path, gt, []))


@pytest.mark.parametrize("split", ["train2017", "val2017"])
def test_real_coco_ground_truth_fed_back(coco_tiny: Path, tmp_path: Path, split: str) -> None:
    annotations = coco_tiny / "annotations" / f"instances_{split}.json"
    data = json.loads(annotations.read_text())
    assert any(a["iscrowd"] for a in data["annotations"])
    # Crowd boxes are fed back too: COCO ignores what matches a crowd.
    detections = tmp_path / "dt.json"
    detections.write_text(json.dumps(perfect(data)))
    assert pytest.approx(1.0, abs=1e-9) == evaluate_detections(annotations, detections).AP
    # Dropping one image's detections must cost: every image counts.
    victim = data["annotations"][0]["image_id"]
    detections.write_text(json.dumps([d for d in perfect(data) if d["image_id"] != victim]))
    assert evaluate_detections(annotations, detections).AP < 0.999


def test_without_pycocotools_our_matcher_has_the_word_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    given, rows = crowded_scene(0)
    truth, detections = given.truth, as_detections(rows)
    official = published_precision(truth, detections)
    monkeypatch.setattr("coordexp.detection.coco_eval._is_installed", lambda: False)
    with pytest.warns(UserWarning, match="pycocotools"):
        assert published_precision(truth, detections) == {}
    ours = MatchedBoxes(truth, detections)
    assert {name: ours.average_precision(name) for name in official} == official
    assert set(official) == {"AP", "AP50", "AP75"}
    with pytest.raises(ResourceError, match="pycocotools"):
        evaluate_boxes(truth, detections)

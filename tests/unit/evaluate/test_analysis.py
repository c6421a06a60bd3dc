"""The analysis of a folder: by hand, round trip, and against the metrics of the same files."""

import json
from pathlib import Path

import numpy as np
import pytest

from coordexp.detection import evaluate_detections
from coordexp.detection.box_evaluation import MatchedBoxes
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import DataError
from coordexp.evaluate.analysis import Analysis, analyse_boxes
from tests.support.detections import Scene, scene
from tests.support.evaluation import Item, analyse, evaluated

# Images are 200 x 100. A box of 20 x 40 px at (20, 10): corners .1 .1 .2 .5, bins 100 100 200 500.
BOX, EXACT = [20, 10, 20, 40], (100, 100, 200, 500)
OTHER = [100, 50, 40, 40]  # .5 .5 .7 .9


def test_by_hand(tmp_path: Path) -> None:
    given = scene((1, 1, BOX), (1, 2, OTHER), (2, 1, BOX), num_images=3)
    # Image 1: x2 is 230 instead of 200 (26 px wide for 20): IoU 20/26; the corners of y are swapped.
    # Image 2: a stray of an unknown name and one far away.
    off = Item("thing 1", (100, 500, 230, 100), width=(1, 2, 40, 4))
    objects = {1: [off], 2: [Item("nothing", EXACT, category_id=None), Item("thing 1", (800, 800, 900, 900))]}
    metrics = evaluated(tmp_path, given, objects)
    found = Analysis.read(tmp_path / "free" / "analysis.json")
    assert found == analyse(given.write(tmp_path / "gt.json"), tmp_path / "free")
    assert (found.num_images, found.num_gt, found.min_iou) == (3, 3, 0.1)
    part = found.boxes["argmax"]
    assert (part.num_matched, part.num_unmatched, part.num_missed) == (1, 1, 2)
    assert part.matched_iou.edges[15] == pytest.approx(0.75)
    assert [at for at, count in enumerate(part.matched_iou.counts) if count] == [15]  # 20/26 = .769
    edges = np.array(found.coordinate_edges)
    for name, true, predicted in (("x1", 0.1, 0.1), ("y1", 0.1, 0.1), ("x2", 0.2, 0.23), ("y2", 0.5, 0.5)):
        counts = np.array(part.coordinates[name])
        assert counts.shape == (40, 40)
        ((row, column),) = np.argwhere(counts).tolist()
        assert edges[row] - 1e-9 <= true <= edges[row + 1] + 1e-9
        assert edges[column] - 1e-9 <= predicted <= edges[column + 1] + 1e-9
    by_error = {(bin.low, bin.high): bin for bin in part.width_by_error}
    assert sum(bin.count for bin in part.width_by_error) == 4
    assert by_error[0.0, 1.0].count == 3
    assert by_error[0.0, 1.0].mean_width == pytest.approx((1 + 2 + 4) / 3)
    (wide,) = (bin for bin in part.width_by_error if bin.mean_width == 40.0)
    assert wide.low <= 30 <= wide.high
    assert [(c.name, c.num_gt, c.num_detections) for c in part.categories] == [("thing 1", 2, 2), ("thing 2", 1, 0)]
    assert part.categories[1].AP == 0.0
    assert [(size.name, size.num_gt) for size in part.sizes] == [("small", 2), ("medium", 1), ("large", 0)]
    assert part.sizes[2].AP is None
    assert [(c.low, c.high, c.num_images, c.num_gt) for c in part.object_counts] == [
        (1, 1, 1, 1),
        (2, 3, 1, 2),
        (4, 7, 0, 0),
        (8, None, 0, 0),
    ]
    assert part.object_counts[2].AP is None
    assert metrics["unknown_category"] == 1
    truth = read_ground_truth(tmp_path / "gt.json")
    detections = read_detections(tmp_path / "free" / "detections.argmax.json", truth)
    alone = analyse_boxes({"argmax": MatchedBoxes(truth, detections)}, None).boxes["argmax"]  # of any detector
    assert (alone.coordinates, alone.width_by_error) == (part.coordinates, ())


def random_objects(seed: int, given: Scene) -> dict[int, list[Item]]:
    rng = np.random.default_rng(seed)
    objects: dict[int, list[Item]] = {}
    for box in given.boxes:
        x, y, w, h = box.box
        corners = np.array([x / 200, y / 100, (x + w) / 200, (y + h) / 100]) + rng.normal(0, 0.01, 4)
        expected = np.clip(corners, 0, 0.999)
        bins = tuple(int(k) for k in np.clip(np.rint(expected * 1000 + rng.normal(0, 5, 4)), 0, 999))
        objects.setdefault(box.image_id, []).append(
            Item(
                f"thing {box.category_id}",
                bins,
                category_id=box.category_id,
                expected=tuple(expected.tolist()),
                width=rng.uniform(0, 90, 4),
                score=rng.random(),
            )
        )
    return objects


def crowded() -> Scene:
    rng = np.random.default_rng(1)
    boxes = []
    for image, count in enumerate([1, 1, 2, 3, 4, 7, 8, 12, 0, 1], start=1):
        for _ in range(count):
            x, y = rng.uniform(0, 120), rng.uniform(0, 50)
            boxes.append((image, int(rng.integers(1, 3)), [x, y, *rng.uniform(8, 50, 2)]))
    return scene(*boxes, num_images=10)


def test_parts_agree_with_pycocotools_and_with_the_metrics(tmp_path: Path) -> None:
    given = crowded()
    metrics = evaluated(tmp_path, given, random_objects(0, given))
    annotations = given.write(tmp_path / "gt.json")
    analysis = analyse(annotations, tmp_path / "free")
    assert [c.num_images for c in analysis.boxes["expected"].object_counts] == [3, 2, 2, 2]
    images_of = {(1, 1): [1, 2, 10], (2, 3): [3, 4], (4, 7): [5, 6], (8, None): [7, 8]}
    for kind, part in analysis.boxes.items():
        path = tmp_path / "free" / f"detections.{kind}.json"
        for count in part.object_counts:
            direct = evaluate_detections(annotations, path, image_ids=images_of[count.low, count.high])
            assert count.AP == direct.AP
        for size in part.sizes:
            assert metrics.get(f"{kind}/AP_{size.name}") == size.AP
        assert np.mean([c.AP for c in part.categories]) == pytest.approx(metrics[f"{kind}/AP"])
        assert part.num_matched + part.num_missed == analysis.num_gt
        assert sum(part.matched_iou.counts) == part.num_matched
        assert all(np.sum(counts) == part.num_matched for counts in part.coordinates.values())
        assert sum(bin.count for bin in part.width_by_error) == 4 * part.num_matched
        assert sum(bin.count for bin in part.score_bins) == part.num_matched + part.num_unmatched
    assert analysis.boxes["argmax"] != analysis.boxes["expected"]


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    given = crowded()
    evaluated(tmp_path, given, random_objects(0, given))
    annotations = given.write(tmp_path / "gt.json")
    lines = (tmp_path / "free" / "objects.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "free" / "objects.jsonl").write_text("".join(lines[1:]))
    num_objects = sum(len(json.loads(line)["objects"]) for line in lines)
    num_left = num_objects - len(json.loads(lines[0])["objects"])
    with pytest.raises(DataError, match=rf"gt\.json.*\b{num_objects}\b.*\b{num_left} objects"):
        analyse(annotations, tmp_path / "free")

"""The codec ceiling: by hand, and to the last bit what pycocotools says of the quantised ground truth."""

from pathlib import Path

import numpy as np
import pytest

from coordexp.data.images.image_folder import ImageFolder
from coordexp.data.sources.coco import build_table
from coordexp.data.sources.coco_file import read_coco_file
from coordexp.detection import ceiling
from coordexp.detection.ceiling import average_precision, ceiling_of_table, match_quantised, quantised_px
from coordexp.detection.coco_eval import codec_ceiling, evaluate_boxes
from coordexp.detection.coco_files import Detection, GroundTruth, GtBox


def scene(seed, *, num_images=25, num_categories=2, max_boxes=40, crowd_fraction=0.05):
    """Boxes of all sizes in images of all sizes, half of them close to the one before."""
    rng = np.random.default_rng(seed)
    rows, sizes = [], {}
    for image_id in rng.permutation(10**6)[:num_images].tolist():
        side = sizes[image_id] = tuple(rng.integers(20, 700, 2).tolist())
        last = None
        for _ in range(int(rng.integers(0, max_boxes))):
            low = rng.uniform(0, 0.9, 2) * side
            high = low + rng.uniform(0.3, rng.choice([8, 300]), 2)
            if last is not None and rng.random() < 0.5:
                low, high = (corner + rng.normal(0, 2, 2) for corner in last)
            low, high = np.clip(low, 0, side), np.clip(high, 0, side)
            if (high - low < 0.2).any():
                continue
            last = low, high
            category = int(rng.integers(1, num_categories + 1))
            rows.append((image_id, category, (*low, *(high - low)), rng.random() < crowd_fraction))
    return rows, sizes


def both(rows, sizes):
    """AP of pycocotools and ours."""
    image_ids = np.array([row[0] for row in rows], np.int64)
    boxes = np.array([row[2] for row in rows], float).reshape(-1, 4)
    sides = np.array([sizes[image_id] for image_id in image_ids.tolist()], float).reshape(-1, 2)
    norm = np.concatenate([boxes[:, :2] / sides, (boxes[:, :2] + boxes[:, 2:]).clip(max=sides) / sides], axis=1)
    quantised = quantised_px(norm, sides)
    categories = {key: str(key) for key in {row[1] for row in rows}}
    truth = GroundTruth(
        Path("a.json"), dict(sizes), categories,
        [GtBox(i, c, tuple(map(float, box)), float(box[2] * box[3]), bool(crowd)) for i, c, box, crowd in rows],
    )  # fmt: skip
    found = [
        Detection(row[0], row[1], tuple(box), 1.0)
        for row, box in zip(rows, quantised.tolist(), strict=True)
        if not row[3]
    ]
    matches = match_quantised(
        image_ids=image_ids,
        category_ids=np.array([row[1] for row in rows], np.int64),
        boxes_px_xywh=boxes,
        quantised_px_xywh=quantised,
        is_crowd=np.array([row[3] for row in rows], bool),
    )
    return evaluate_boxes(truth, found).AP, average_precision(matches)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"crowd_fraction": 0.4},
        {"num_categories": 1, "num_images": 3, "max_boxes": 260},  # more than the 100 detections COCO looks at
        {"crowd_fraction": 0.0, "num_categories": 5},
    ],
    ids=["plain", "crowds", "over-100", "five-categories"],
)
def test_equal_to_pycocotools(options):
    for seed in range(2):
        wanted, found = both(*scene(seed, **options))
        assert wanted is not None
        assert found == wanted


def test_matching_each_box_with_itself_only_would_be_wrong(monkeypatch):
    """Negative control: neighbours take each other's truth, and the greedy part is what sees it."""
    rows, sizes = scene(3, num_images=20, crowd_fraction=0.3)
    wanted, _ = both(rows, sizes)
    monkeypatch.setattr(ceiling, "_match_contested", lambda *_: None)
    assert both(rows, sizes)[1] != wanted


def test_by_hand():
    """A 100 px image: one bin is 0.1 px.

    The first box has its corners on bins and comes back whole: a hit at all ten thresholds. The
    second reaches from x = 50 to 50.14; its right edge becomes bin 501, so it comes back 0.10 of
    0.14 px wide: IoU .714, a hit at .5, .55, .6, .65 and .7. Image 1 comes before image 2, so
    precision is 1 at those; at the other five recall ends at 0.5 with precision 1, which is 51 of
    the 101 recall points.
    """
    rows = [(1, 7, (10.0, 10.0, 20.0, 20.0), False), (2, 7, (50.0, 10.0, 0.14, 10.0), False)]
    wanted, found = both(rows, {1: (100, 100), 2: (100, 100)})
    assert found == wanted == pytest.approx((5 + 5 * 51 / 101) / 10)


def test_no_truth_no_number():
    empty = np.zeros(0, np.int64)
    none = match_quantised(
        image_ids=empty, category_ids=empty, boxes_px_xywh=np.zeros((0, 4)),
        quantised_px_xywh=np.zeros((0, 4)), is_crowd=np.zeros(0, bool),
    )  # fmt: skip
    assert average_precision(none) is None
    assert both([(1, 1, (1.0, 1.0, 5.0, 5.0), True)], {1: (10, 10)}) == (None, None)


@pytest.mark.parametrize("split", ["train2017", "val2017"])
def test_real_coco_has_the_ceiling_that_evaluation_reports(coco_tiny, split):
    path = coco_tiny / "annotations" / f"instances_{split}.json"
    images = coco_tiny / "images" / split
    table = build_table(read_coco_file(path), ImageFolder(images), max_bad_fraction=0.0)
    assert ceiling_of_table(table) == pytest.approx(codec_ceiling(path), abs=1e-12)

"""The codec ceiling: by hand, and to the last bit what pycocotools says of the quantised ground truth."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest

from coordexp.coord_tokens.bins import decode_array, quantise_boxes
from coordexp.data.sources.coco.source import CocoSource
from coordexp.detection.boxes import to_boxes_norm_xyxy, to_boxes_px_xywh
from coordexp.detection.ceiling import ceiling_of, ceiling_of_arrays, codec_ceiling
from coordexp.errors import DataError
from tests.support.detections import DtRow, GtRow, Scene, pycocotools_numbers


def random_boxes(seed, *, num_images=25, num_categories=2, max_boxes=40, crowd_fraction=0.05) -> Scene:
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
            w, h = high - low
            rows.append(GtRow(image_id, category, (*low, w, h), w * h, rng.random() < crowd_fraction))
    return Scene(sizes, {key: str(key) for key in {row.category_id for row in rows}}, rows)


def both(given: Scene) -> tuple[float | None, float | None]:
    """AP of pycocotools and ours."""
    truth = given.truth
    sizes_px = truth.sizes_of(truth.image_ids)
    norm = np.clip(to_boxes_norm_xyxy(truth.boxes_px_xywh, sizes_px), 0, 1)
    quantised = to_boxes_px_xywh(decode_array(quantise_boxes(norm)), sizes_px)
    found = [
        DtRow(row.image_id, row.category_id, tuple(box), 1.0)
        for row, box in zip(given.boxes, quantised.tolist(), strict=True)
        if not row.is_crowd
    ]
    return pycocotools_numbers(given, found)[0], ceiling_of(truth, norm, sizes_px)


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
    wanted, found = both(random_boxes(0, **options))
    assert wanted is not None
    assert found == wanted


def test_by_hand():
    """A 100 px image: one bin is 0.1 px.

    The first box has its corners on bins and comes back whole: a hit at all ten thresholds. The
    second reaches from x = 50 to 50.14; its right edge becomes bin 501, so it comes back 0.10 of
    0.14 px wide: IoU .714, a hit at .5, .55, .6, .65 and .7. Image 1 comes before image 2, so
    precision is 1 at those; at the other five recall ends at 0.5 with precision 1, which is 51 of
    the 101 recall points.
    """
    rows = [GtRow(1, 7, (10.0, 10.0, 20.0, 20.0), 400.0), GtRow(2, 7, (50.0, 10.0, 0.14, 10.0), 1.4)]
    wanted, found = both(Scene({1: (100, 100), 2: (100, 100)}, {7: "cat"}, rows))
    assert found == wanted == pytest.approx((5 + 5 * 51 / 101) / 10)


@pytest.mark.parametrize("split", ["train2017", "val2017"])
def test_real_coco_has_the_ceiling_that_evaluation_reports(coco_tiny, split):
    path = coco_tiny / "annotations" / f"instances_{split}.json"
    images = coco_tiny / "images" / split
    read = CocoSource(path, images).read_split(max_bad_fraction=0.0)
    ceiling = codec_ceiling(path)
    assert ceiling_of_arrays(read.arrays, read.categories) == pytest.approx(ceiling, abs=1e-12)
    assert 0.8 < ceiling < 1.0


def document() -> dict:
    """Three boxes of category 1 and one of category 2 in images of 200 x 100; all but one survive exactly."""
    boxes = [(1, 1, [10.5, 10, 2.5, 40]), (1, 2, [100, 20, 50, 60]), (2, 1, [5, 5, 20, 20]), (2, 1, [60, 30, 100, 60])]
    return {
        "images": [{"id": i, "width": 200, "height": 100} for i in (1, 2)],
        "categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}],
        "annotations": [
            {"id": n, "image_id": i, "category_id": c, "bbox": b, "area": b[2] * b[3], "iscrowd": 0}
            for n, (i, c, b) in enumerate(boxes)
        ],
    }


def ceiling_of_document(folder: Path, given: dict) -> float | None:
    path = folder / "gt.json"
    path.write_text(json.dumps(given))
    return codec_ceiling(path)


def test_a_thin_box_costs(tmp_path):
    # The first box becomes 2.5 px wide on thousandths of 200 px: [10.5, 13.0] -> [10.4, 13.0] (52.5 halves to even),
    # IoU 2.5 / 2.6 = .96: found at all thresholds; a box of 0.5 px at [10.5, 11.0] -> [10.4, 11.0] has IoU .83.
    given = document()
    assert ceiling_of_document(tmp_path, given) == pytest.approx(1.0)
    given["annotations"][0]["bbox"] = [10.5, 10, 0.5, 40]
    assert 0.8 < ceiling_of_document(tmp_path, given) < 1.0


def test_crowds_are_no_objects_and_sizes_are_needed(tmp_path):
    given = document()
    crowd = copy.deepcopy(given["annotations"][0]) | {"id": 9, "iscrowd": 1, "bbox": [0, 0, 3.3, 3.3]}
    given["annotations"].append(crowd)
    assert ceiling_of_document(tmp_path, given) == pytest.approx(1.0)
    del given["images"][0]["width"]
    with pytest.raises(DataError, match=r"gt\.json: image 1\b"):
        ceiling_of_document(tmp_path, given)
    given["annotations"] = []
    assert ceiling_of_document(tmp_path, given) is None

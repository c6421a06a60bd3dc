import base64
import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from coordexp.detection.overlap_score import iou, overlap_score
from coordexp.report.study.gallery import MAX_SIDE_PX, make_gallery
from tests.unit.report.report_support import SIZE_PX, write_data


@dataclass(frozen=True)
class Box:
    category_id: int
    box_px_xywh: tuple[float, float, float, float]


def test_iou_by_hand() -> None:
    # 10 x 10 shifted by 5: 50 shared of 150.
    assert iou((0, 0, 10, 10), (5, 0, 10, 10)) == pytest.approx(1 / 3)
    assert iou((0, 0, 10, 10), (10, 0, 10, 10)) == 0
    assert iou((0, 0, 10, 10), (0, 0, 10, 10)) == 1


def test_overlap_score_matches_each_box_once_and_within_its_category() -> None:
    whole, shifted = (0.0, 0.0, 10.0, 10.0), (5.0, 0.0, 10.0, 10.0)
    assert overlap_score([], []) == 1
    assert overlap_score([Box(1, whole)], []) == 0
    assert overlap_score([Box(1, whole)], [Box(2, whole)]) == 0
    assert overlap_score([Box(1, whole)], [Box(1, whole)]) == 1
    # One object, two detections: only the better one counts, the other is one too many.
    assert overlap_score([Box(1, whole)], [Box(1, shifted), Box(1, whole)]) == pytest.approx(2 / 3)


def write(path: Path, found: list[dict]) -> Path:
    path.write_text(json.dumps(found))
    return path


def test_the_image_with_the_largest_change_comes_first(tmp_path: Path) -> None:
    annotations = write_data(tmp_path)
    boxes = json.loads(annotations.read_text())["annotations"]
    perfect = [{key: box[key] for key in ("image_id", "category_id", "bbox")} | {"score": 0.5} for box in boxes]
    missing_4 = [box for box in perfect if box["image_id"] != 4]
    detections = {"A": write(tmp_path / "a.json", perfect), "B": write(tmp_path / "b.json", missing_4)}
    images = {image_id: tmp_path / "val" / f"{image_id:03d}.jpg" for image_id in range(1, 15)}
    first, second, third = make_gallery(annotations, detections, images, count=3)
    assert (first.image_id, first.change, dict(first.overlap)) == (4, 1.0, {"A": 1.0, "B": 0.0})
    assert (second.image_id, third.image_id) == (1, 2)  # ties by id
    assert (first.width, first.height) == SIZE_PX
    assert first.boxes["B"] == ()
    assert len(first.boxes["A"]) == len(first.truth) > 0
    head, _, body = first.picture.partition(",")
    assert head == "data:image/jpeg;base64"
    with Image.open(io.BytesIO(base64.b64decode(body))) as picture:
        assert picture.size == SIZE_PX


def test_large_pictures_shrink_and_missing_ones_leave_the_boxes(tmp_path: Path) -> None:
    annotations = write_data(tmp_path, num_images=2)
    Image.new("RGB", (900, 600)).save(tmp_path / "large.jpg")
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    empty = write(tmp_path / "e.json", [])
    found = make_gallery(annotations, {"A": empty}, {1: tmp_path / "large.jpg", 2: tmp_path / "broken.jpg"})
    with Image.open(io.BytesIO(base64.b64decode(found[0].picture.partition(",")[2]))) as picture:
        assert max(picture.size) == MAX_SIDE_PX
    assert found[1].picture == ""
    assert (found[1].width, found[1].height) == SIZE_PX
    assert make_gallery(annotations, {}, {}) == ()

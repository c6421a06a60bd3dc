import base64
import io
import json
from pathlib import Path

from PIL import Image

from coordexp.report.study.gallery import MAX_SIDE_PX, make_gallery
from tests.unit.report.report_support import SIZE_PX, write_data


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

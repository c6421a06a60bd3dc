"""The pictures and the edges that a report shows: where groups differ most."""

import base64
import io
import json
from pathlib import Path

import pytest
from PIL import Image

from coordexp.report.study.examples import MAX_SIDE_PX, BinProbabilities, EdgeDistributions, choose_curves, make_gallery
from tests.support.report import CATEGORIES, SIZE_PX, write_data


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
    assert (first.image_id, dict(first.overlap)) == (4, {"A": 1.0, "B": 0.0})
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


def curve(at: int, units: tuple[int, ...] = (20_000, 60_000, 20_000)) -> dict:
    return {"start": at - 1, "units": list(units)}


def write_distributions(path: Path, annotations: Path, *, off_bins: int, ids: range) -> Path:
    """Every ground-truth object of some images, each edge's distribution ``off_bins`` beside the truth."""
    data = json.loads(annotations.read_text())
    images = []
    for image_id in ids:
        objects = []
        for box in data["annotations"]:
            if box["image_id"] == image_id:
                x, y, w, h = box["bbox"]
                edges = (x / SIZE_PX[0], y / SIZE_PX[1], (x + w) / SIZE_PX[0], (y + h) / SIZE_PX[1])
                bins = [min(max(round(1000 * edge) + off_bins, 1), 998) for edge in edges]
                objects.append(
                    {"desc": CATEGORIES[box["category_id"]], "bins": bins, "expected": [k / 1000 for k in bins],
                     "width": [0.6] * 4, "curves": [curve(k) for k in bins]}
                )  # fmt: skip
        images.append({"image_id": image_id, "objects": objects[:4]})
    path.write_text(json.dumps({"num_bins": 1000, "unit": 1e-5, "images": images}))
    return path


def test_distance_is_total_variation() -> None:
    a, b = BinProbabilities((10, 11), (0.5, 0.5), 10.5), BinProbabilities((11, 12), (0.5, 0.5), 11.5)
    assert EdgeDistributions(1, "x", "x1", 10, {"A": a, "B": b}).distance == pytest.approx(0.5)
    assert EdgeDistributions(1, "x", "x1", 10, {"A": a}).distance == 0
    assert BinProbabilities((10, 11), (0.4, 0.6), 10.6).mode == 11


def test_edges_of_objects_that_all_groups_found(tmp_path: Path) -> None:
    annotations = write_data(tmp_path)
    files = {
        "A": write_distributions(tmp_path / "a.json", annotations, off_bins=0, ids=range(1, 9)),
        "B": write_distributions(tmp_path / "b.json", annotations, off_bins=2, ids=range(3, 14)),
    }
    found = choose_curves(annotations, files, aliases={}, count=4)
    assert len({edge.image_id for edge in found}) == 4
    assert {edge.image_id for edge in found} <= set(range(3, 9))  # where both have curves
    distances = [edge.distance for edge in found]
    assert distances == sorted(distances, reverse=True)
    first = found[0]
    # Units 20, 60, 20 at k-1..k+1 against the same two bins on: 20 of 100 shared.
    assert first.distance == pytest.approx(0.8)
    assert first.by_group["A"].mode == first.true_bin
    assert first.by_group["A"].probabilities == pytest.approx((0.2, 0.6, 0.2))
    assert first.by_group["B"].expected == pytest.approx(first.true_bin + 2)
    assert choose_curves(annotations, {}, aliases={}) == ()

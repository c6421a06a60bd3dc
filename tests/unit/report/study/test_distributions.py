import json
from pathlib import Path

import pytest

from coordexp.report.study.distributions import BinProbabilities, EdgeDistributions, choose_curves
from tests.unit.report.report_support import CATEGORIES, SIZE_PX, write_data


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


def test_an_object_that_one_group_missed_is_not_shown(tmp_path: Path) -> None:
    annotations = write_data(tmp_path)
    files = {
        "A": write_distributions(tmp_path / "a.json", annotations, off_bins=0, ids=range(1, 9)),
        "far": write_distributions(tmp_path / "b.json", annotations, off_bins=450, ids=range(1, 9)),
    }
    assert choose_curves(annotations, files, aliases={}) == ()

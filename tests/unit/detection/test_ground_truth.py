"""What a ground truth that AP is measured on repairs, counts and says."""

import json
from pathlib import Path

import pytest

from coordexp.detection import evaluate_detections
from coordexp.detection.ground_truth import read_ground_truth


def write_truth(folder: Path, annotations: list[object]) -> Path:
    document = {
        "images": [{"id": 1, "file_name": "a.jpg", "width": 200, "height": 200}],
        "categories": [{"id": 1, "name": "car"}],
        "annotations": annotations,
    }
    path = folder / "gt.json"
    path.write_text(json.dumps(document))
    return path


def box(place: int, **others: object) -> dict[str, object]:
    return {"id": place, "image_id": 1, "category_id": 1, "bbox": [10 * place, 10, 8, 40], **others}


@pytest.mark.parametrize("area", ["abc", True, [3], 1e308])
def test_an_area_that_cannot_be_read_costs_no_object_and_is_said_with_its_place(tmp_path: Path, area: object) -> None:
    truth = read_ground_truth(write_truth(tmp_path, ["nothing", box(1, area=area), box(2, area=9.5)]))
    assert truth.areas_px2.tolist() == [8 * 40, 9.5]
    left_out, unreadable = sorted(truth.remarks, key=lambda remark: "area" in remark)
    assert "1 of 3" in left_out
    assert "[0]" in left_out
    assert "1 of 2" in unreadable
    assert "annotations[1]" in unreadable


def test_areas_that_are_all_0_are_said(tmp_path: Path) -> None:
    truth = read_ground_truth(write_truth(tmp_path, [box(1, area=0), box(2, area=0)]))
    (remark,) = truth.remarks
    assert "area 0" in remark
    assert truth.size_remarks == [remark]
    assert truth.areas_px2.tolist() == [0, 0], "AP stays pycocotools' own"
    (tmp_path / "dt.json").write_text(
        json.dumps([{"image_id": 1, "category_id": 1, "bbox": [10, 10, 8, 40], "score": 1}])
    )
    with pytest.warns(UserWarning, match="area 0"):
        assert evaluate_detections(tmp_path / "gt.json", tmp_path / "dt.json").AP_medium is None
    some = read_ground_truth(write_truth(tmp_path, [box(1, area=0), box(2, area=1)]))
    assert some.remarks == ()
    assert read_ground_truth(write_truth(tmp_path, [box(1), box(2)])).remarks == ()

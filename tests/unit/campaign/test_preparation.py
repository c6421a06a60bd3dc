"""What is checked once for a whole experiment."""

import json

import pytest

from coordexp.campaign.preparation import checked_ceiling
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import DataError


def test_a_codec_ceiling_far_from_one_is_an_error(tmp_path):
    """Boxes of three pixels in images of 5,000: a bin is five."""
    boxes = [
        {"id": n, "image_id": 1, "category_id": 1, "bbox": [101 * n, 77 * n, 3, 3], "area": 9} for n in range(1, 40)
    ]
    document = {
        "images": [{"id": 1, "width": 5000, "height": 5000, "file_name": "1.jpg"}],
        "categories": [{"id": 1, "name": "a"}],
        "annotations": [{**box, "iscrowd": 0} for box in boxes],
    }
    path = tmp_path / "val.json"
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match=r"val\.json.* AP of 0\.\d+.* 1,000 bins.*data\.max_bad_fraction"):
        checked_ceiling(ExperimentConfig(), path)
    ceiling = checked_ceiling(ExperimentConfig.model_validate({"data": {"max_bad_fraction": 1.0}}), path)
    assert ceiling is not None
    assert ceiling < 0.9


def _crowded(path, *, num_objects: int, side: float, size: int):
    """Write annotations of one square image with a grid of boxes of one category, and return their path."""
    columns = 40
    step = size / columns
    boxes = [
        {"id": n + 1, "image_id": 1, "category_id": 1, "iscrowd": 0, "area": side**2,
         "bbox": [n % columns * step + 1, n // columns * step + 1, side, side]}
        for n in range(num_objects)
    ]  # fmt: skip
    images = [{"id": 1, "width": size, "height": size, "file_name": "1.jpg"}]
    path.write_text(json.dumps({"images": images, "categories": [{"id": 1, "name": "wheat"}], "annotations": boxes}))
    return path


def test_a_ceiling_of_crowded_images_blames_the_limit_of_detections_and_not_the_boxes(tmp_path):
    crowded = _crowded(tmp_path / "val.json", num_objects=150, side=20, size=1000)
    with pytest.raises(DataError) as raised:
        checked_ceiling(ExperimentConfig(), crowded)
    for fact in (str(crowded), "100 detections", "50 of 150 objects", "data.max_bad_fraction"):
        assert fact in str(raised.value)
    assert "1,000 bins" not in str(raised.value)
    at_the_limit = _crowded(tmp_path / "few.json", num_objects=100, side=20, size=1000)
    assert checked_ceiling(ExperimentConfig(), at_the_limit) > 0.9


def test_small_boxes_are_blamed_where_crowds_are_not_the_reason(tmp_path):
    small = _crowded(tmp_path / "val.json", num_objects=105, side=3, size=5000)  # five objects too many cost little
    with pytest.raises(DataError, match="1,000 bins"):
        checked_ceiling(ExperimentConfig(), small)

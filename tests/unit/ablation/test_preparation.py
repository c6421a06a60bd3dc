"""What is checked once for a whole experiment."""

import json

import pytest

from coordexp.ablation.preparation import checked_ceiling
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
    with pytest.raises(DataError, match=r"val.json: the ground truth itself scores an AP of 0\.\d+ after 1,000 bins"):
        checked_ceiling(ExperimentConfig(), path)
    found = checked_ceiling(ExperimentConfig.model_validate({"data": {"max_bad_fraction": 1.0}}), path)
    assert found is not None
    assert found < 0.9

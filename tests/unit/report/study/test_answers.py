"""What models write, image by image, is read quickly where it is as it should be, and named where it is not."""

from pathlib import Path

import pytest

from coordexp.detection.ground_truth import GroundTruth, read_ground_truth
from coordexp.errors import DataError
from coordexp.files import write_json
from coordexp.report.study.answers import CUT_OFF, answer_shares

GOOD = '{"image_id": 1, "objects": [], "truncated": true}\n'


@pytest.fixture
def truth(tmp_path: Path) -> GroundTruth:
    images = [{"id": n, "width": 10, "height": 10, "file_name": f"{n}.png"} for n in (1, 2)]
    categories = [{"id": 1, "name": "cat"}]
    write_json(tmp_path / "truth.json", {"images": images, "annotations": [], "categories": categories})
    return read_ground_truth(tmp_path / "truth.json")


def shares(truth: GroundTruth, path: Path, text: str) -> dict[str, list[float]]:
    path.write_text(text)
    found = answer_shares(truth, path)
    return {name: part.tolist() for name, (part, _) in found.items()}


def test_each_answer_counts_for_its_image(truth: GroundTruth, tmp_path: Path) -> None:
    text = GOOD + '{"image_id": 2, "objects": [{"score": 1}], "truncated": false}'
    found = shares(truth, tmp_path / "objects.jsonl", text)
    assert found[CUT_OFF.name] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GOOD + "\n" + GOOD, ":2: "),
        (GOOD.replace('"image_id": 1', '"image_id": 9223372036854775808'), ":1: '9223372036854775808' is no"),
        (GOOD + GOOD.replace("true", "1.5"), ":2: truncated"),
        (GOOD + GOOD[:40], ":2: "),
        ('{"truncated": true}\n', ":1: image_id"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(truth: GroundTruth, tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(DataError, match=r"^[^\n]*$") as refused:
        shares(truth, tmp_path / "objects.jsonl", text)
    assert f"objects.jsonl{reason}" in str(refused.value)

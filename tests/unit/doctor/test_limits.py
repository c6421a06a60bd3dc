"""Doctor counts the boxes that limits take away, of tokens and of digits."""

import json
from pathlib import Path

import pytest

from coordexp.doctor.examine import examine
from tests.support.doctor import coco_overrides, of

ROOT = Path(__file__).parents[3]
NUM_BOXES = 12  # of each image; each takes 2 + 3 + 4 tokens, in digits 11 more


@pytest.fixture
def crowded(tmp_path, monkeypatch):
    """Three images of a dozen boxes in each split."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    overrides = coco_overrides(tmp_path)
    for split in ("train", "val"):
        path = tmp_path / f"{split}.json"
        data = json.loads(path.read_text())
        data["annotations"] = [
            {"id": 100 * image["id"] + at, "image_id": image["id"], "category_id": 1, "iscrowd": 0,
             "bbox": [4 + at, 4, 20, 20 - at]}
            for image in data["images"] for at in range(NUM_BOXES)
        ]  # fmt: skip
        path.write_text(json.dumps(data))

    def verdicts(*more: str) -> dict[str, tuple[str, str]]:
        fixed = [f"experiment.runs_dir={tmp_path}/runs", "data.max_pixels=9216"]
        found = examine(ROOT / "experiments" / "tiny.yaml", [*fixed, *overrides, *more])
        checks = [f"{split} boxes{arm}" for split in ("train", "val") for arm in ("", " in digits")]
        return {name: (one.verdict, one.sentence) for name in checks for one in of(found, name)}

    return verdicts


def test_nothing_is_cut_under_limits_that_hold_everything(crowded):
    found = crowded("data.max_length=512", "data.max_objects=12", "evaluation.max_new_tokens=109")
    assert {check: verdict for check, (verdict, _) in found.items()} == {"train boxes": "ok", "val boxes": "ok"}
    assert "all 36" in found["train boxes"][1]
    assert "all 36" in found["val boxes"][1]


def test_boxes_that_are_cut_are_a_warning_with_the_key_to_raise(crowded):
    # 34 tokens of prompt and image; ten tokens of room hold one box, and the end is cut.
    found = crowded("data.max_length=44", "data.max_objects=10", "evaluation.max_new_tokens=20")
    verdict, sentence = found["train boxes"]
    assert verdict == "warning"
    assert "33 of 36 boxes (91.7 %)" in sentence
    assert "27 for data.max_length 44" in sentence
    assert "6 for data.max_objects 10" in sentence
    assert f"{34 + 10 * 9 + 1}" in sentence  # needed, with ten objects at most
    verdict, sentence = found["val boxes"]
    assert verdict == "warning"
    assert "30 of 36 boxes" in sentence
    assert "evaluation.max_new_tokens" in sentence
    assert "109" in sentence


def test_one_box_of_many_is_said_without_a_warning(crowded, tmp_path):
    path = tmp_path / "train.json"
    data = json.loads(path.read_text())
    data["annotations"].append({**data["annotations"][0], "id": 999, "bbox": [30, 30, 10, 10]})
    path.write_text(json.dumps(data))
    limits = ("data.max_length=512", "data.max_objects=12", "evaluation.max_new_tokens=109")
    verdict, sentence = crowded(*limits)["train boxes"]
    assert verdict == "ok"
    assert "1 of 37 boxes (2.7 %)" in sentence


def test_digits_need_more_room(crowded):
    limits = ("data.max_length=512", "data.max_objects=12", "evaluation.max_new_tokens=109")
    found = crowded(*limits, "ablation.groups=[A,T]", "ablation.factor=[objective,custom]")
    assert found["val boxes"][0] == "ok"
    verdict, sentence = found["val boxes in digits"]
    assert verdict == "warning"
    assert f"{NUM_BOXES * (2 + 3 + 15) + 1}" in sentence
    assert found["train boxes in digits"][0] == "ok"


def test_a_structure_of_two_markers_needs_less(crowded):
    limits = ("data.max_length=512", "data.max_objects=12", "data.structure=spec")
    needed = NUM_BOXES * (2 + 2 + 4) + 1
    assert crowded(*limits, f"evaluation.max_new_tokens={needed}")["val boxes"][0] == "ok"
    verdict, sentence = crowded(*limits, f"evaluation.max_new_tokens={needed - 10}")["val boxes"]
    assert (verdict, f"{needed}" in sentence) == ("warning", True)

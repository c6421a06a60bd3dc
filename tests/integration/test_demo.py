"""``make demo``: a committed checkpoint finds what a committed picture shows, and the committed page is there."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from coordexp.cli.main import main
from coordexp.data.images.patches import ImageSpec
from coordexp.detection.boxes import iou_table
from coordexp.evaluate.predict import predict
from coordexp.model.checkpoint.trained_with import TrainedWith, read_trained_with
from coordexp.model.tiny.parts import build_image_processor

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "results" / "demo"


def test_the_picture_s_objects_are_found() -> None:
    (found,) = predict(DEMO / "model", [DEMO / "picture.jpg"])
    truth = json.loads((DEMO / "truth.json").read_text(encoding="utf-8"))
    assert sorted(item.desc for item in found.objects) == sorted(item["desc"] for item in truth)
    boxes = np.array([item.expected_px for item in found.objects])
    boxes[:, 2:] -= boxes[:, :2]
    overlaps = iou_table(np.array([item["bbox"] for item in truth]), boxes)
    assert overlaps.max(axis=1).min() > 0.5
    assert all(len(item.distributions) == 4 for item in found.objects)


@pytest.mark.ci
def test_the_checkpoint_says_what_it_was_trained_with_and_warns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = (DEMO / "model" / "README.md").read_text(encoding="utf-8")
    data = yaml.safe_load(card.partition("```yaml\n")[2].partition("```")[0])["data"]
    spec = ImageSpec.from_processor(
        build_image_processor(), min_pixels=data["min_pixels"], max_pixels=data["max_pixels"]
    )
    expected = TrainedWith(data["prompt"], spec.min_pixels, spec.max_pixels)
    assert read_trained_with(DEMO / "model") == expected
    ask = ["predict", "--model", str(DEMO / "model"), str(DEMO / "picture.jpg"), "--output", str(tmp_path)]
    assert main([*ask, "--max-pixels", "4096"]) == 0
    assert re.search(r"\b9,216\b.*\b4,096\b", capsys.readouterr().err)
    assert main(ask) == 0
    assert "warning" not in capsys.readouterr().err


def test_plain_transformers_reads_the_same_boxes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(import torch\n.*?)```", page, re.DOTALL)
    _, lines = block.strip().split("\n\n")
    assert len(lines.splitlines()) == 10
    exec(compile(block, "README.md", "exec"), {})  # what the page tells people to run
    printed = capsys.readouterr().out
    (found,) = predict(DEMO / "model", [DEMO / "picture.jpg"], decoding="free")
    numbers = [float(number) for number in re.findall(r"\b0\.\d{4}\b", printed)]
    sides = np.array([found.width, found.height] * 2)
    assert numbers == pytest.approx(np.concatenate([item.expected_px / sides for item in found.objects]), abs=6e-5)
    assert all(f"<|object_ref_start|>{item.desc}<|box_start|>" in printed for item in found.objects)

"""Every frame in which a file may stand is found again on made data, with noise, misses and boxes of nothing."""

import json
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from coordexp.cli.main import main
from coordexp.detection.detections import detections_of
from coordexp.detection.forms.frames import Frame, smart_sizes
from coordexp.detection.forms.results import read_results
from coordexp.detection.ground_truth import GroundTruth
from coordexp.doctor.boxes import diagnose

SIZES = np.array(
    [(640, 480), (480, 640), (500, 375), (640, 427), (1280, 720), (333, 500), (612, 612), (427, 640)], float
)
IDS = np.array([number for number in range(1, 91) if number not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)])
"""COCO's ids: 80, with gaps."""


def made_truth(num_images: int = 240, seed: int = 0) -> GroundTruth:
    rng = np.random.default_rng(seed)
    image = np.repeat(np.arange(1, num_images + 1), rng.integers(1, 11, num_images))
    sizes = SIZES[image % len(SIZES)]
    sides = np.exp(rng.uniform(np.log(0.05), np.log(0.6), (len(image), 2))) * sizes
    boxes = np.round(np.hstack([rng.uniform(0, 1, (len(image), 2)) * (sizes - sides), sides]), 2)
    return GroundTruth(
        path=Path("gt.json"),
        sizes_px={number: tuple(map(int, SIZES[number % len(SIZES)])) for number in range(1, num_images + 1)},
        categories={int(key): f"thing {key}" for key in IDS},
        image_ids=image,
        category_ids=rng.choice(IDS[:60], len(image)),
        boxes_px_xywh=boxes,
        areas_px2=boxes[:, 2] * boxes[:, 3],
        is_crowd=np.zeros(len(image), bool),
    )


def detected(truth: GroundTruth, *, noise: float = 0.04, missed: float = 0.3, seed: int = 1) -> tuple:
    """Return images, categories, corners in pixels and scores of a detector: a quarter of its boxes is no object."""
    rng = np.random.default_rng(seed)
    kept = np.flatnonzero(rng.random(len(truth.image_ids)) >= missed)
    boxes = truth.boxes_px_xywh[kept]
    spread = np.tile(boxes[:, 2:], 2) * noise
    corners = np.hstack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]]) + rng.normal(0, 1, boxes.shape) * spread
    category = np.where(rng.random(len(kept)) < 0.15, rng.choice(IDS, len(kept)), truth.category_ids[kept])
    image = truth.image_ids[kept]
    false = rng.choice(len(kept), len(kept) // 3)
    moved = corners[false] + np.tile(rng.uniform(-0.4, 0.4, (len(false), 2)) * SIZES[image[false] % len(SIZES)], 2)
    return (
        np.append(image, image[false]),
        np.append(category, rng.choice(IDS, len(false))),
        np.vstack([corners, moved]),
        np.append(rng.uniform(0.3, 1, len(kept)), rng.uniform(0, 0.6, len(false))),
    )


@pytest.mark.parametrize(("unit", "limits"), [
    ("smart28", {"min_pixels": 56 * 56, "max_pixels": 12_845_056}),
    ("smart28-1003520", {"min_pixels": 56 * 56, "max_pixels": 1_003_520}),
    ("smart32", {"min_pixels": 65_536, "max_pixels": 16_777_216}),
])  # fmt: skip
def test_sizes_after_resizing_are_the_processors_own(unit: str, limits: dict[str, int]) -> None:
    sizes = [(905, 1130), (640, 480), (3000, 40), (30, 30), (9000, 4000)]  # the first rounds to 1003520 just
    found = smart_sizes(unit, np.array(sizes, float)).tolist()
    factor = int(unit[5:7])
    assert found == [list(smart_resize(height, width, factor=factor, **limits))[::-1] for width, height in sizes]


def write(path: Path, frame: Frame, found: tuple) -> Path:
    """Write corners in pixels so that ``frame`` reads them, an image at a time by the processor's own rule."""
    image, category, corners, scores = found
    out = corners.copy()
    for row, (width, height) in enumerate(SIZES[image % len(SIZES)].astype(int).tolist()):
        new_height, new_width = height, width
        if frame.unit.startswith("norm"):
            new_height = new_width = int(frame.unit.removeprefix("norm"))
        elif frame.unit != "px":
            factor, *given = map(int, frame.unit.removeprefix("smart").split("-"))
            limits = {"min_pixels": {28: 56 * 56, 32: 256 * 256}[factor], "max_pixels": given[0] if given else 12845056}
            new_height, new_width = smart_resize(height, width, factor=factor, **limits)
        out[row] *= np.tile([new_width / width, new_height / height], 2)
    x1, y1, x2, y2 = out.T
    layouts = {
        "xywh": (x1, y1, x2 - x1, y2 - y1),
        "xyxy": (x1, y1, x2, y2),
        "cxcywh": ((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1),
    }
    place = np.searchsorted(IDS, category)
    kinds = {"ids": category, "index0": place, "index1": place + 1}
    digits = {"norm1": 4, "norm1000": 0}.get(frame.unit, 2)
    boxes = np.round(np.stack(layouts[frame.layout], axis=1), digits)
    rows = zip(image.tolist(), kinds[frame.categories].tolist(), boxes.tolist(), scores.tolist(), strict=True)
    path.write_text(json.dumps([{"image_id": i, "category_id": c, "bbox": b, "score": s} for i, c, b, s in rows]))
    return path


FRAMES = [
    "px:xywh", "px:xyxy", "norm1:cxcywh", "norm1000:xywh", "smart28:xyxy", "smart32:cxcywh", "norm1000:xyxy:index0",
    "px:xywh:index1",
]  # fmt: skip


@pytest.mark.parametrize("text", FRAMES)
def test_every_frame_is_found_again_and_reads_the_boxes_right(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = Frame.parse(text)
    if text.startswith("smart"):  # resized sizes are apart from small pictures' own only
        monkeypatch.setattr(sys.modules[__name__], "SIZES", np.round(SIZES / 5))
    truth = made_truth()
    assert str(frame) == text
    assert Frame.parse(":".join(reversed(text.split(":")))) == frame
    boxes = detected(truth)
    _, category_ids, corners, _ = boxes
    results = read_results(write(tmp_path / "dt.json", frame, boxes), truth)
    diagnosis = diagnose(results, truth)
    assert diagnosis is not None
    assert (diagnosis.outcome == "good") == (frame == Frame())
    assert diagnosis.best.frame == frame
    detections = detections_of(results, truth, diagnosis.best.frame)
    expected_px_xywh = np.hstack([corners[:, :2], corners[:, 2:] - corners[:, :2]])
    step_px = {"norm1": 0.2, "norm1000": 2.0}.get(frame.unit, 0.1)  # what the written digits round away
    assert np.abs(detections.boxes_px_xywh - expected_px_xywh).max() < step_px
    assert np.array_equal(detections.category_ids, category_ids)


def _bent(truth: GroundTruth, *, shift: float = 0.0, grow: float = 1.0, scale: float = 1.0, **kind: float) -> tuple:
    """Boxes shifted and grown by parts of their sides."""
    image, category, corners, scores = detected(truth, **kind)
    corners = scale * corners
    middle, half = (corners[:, :2] + corners[:, 2:]) / 2, (corners[:, 2:] - corners[:, :2]) / 2
    middle = middle + shift * half
    return image, category, np.hstack([middle - grow * half, middle + grow * half]), scores


BAD: dict[str, tuple[dict[str, float], set[str]]] = {
    "loose": ({"noise": 0.25}, {"good"}),
    "too large": ({"grow": 1.4}, {"good"}),
    "too small": ({"grow": 0.6}, {"good"}),
    "shifted by a quarter": ({"shift": 0.5}, {"good"}),
    "a little too large for its place": ({"scale": 1.02}, {"good"}),
    "missing nearly all": ({"missed": 0.95}, {"good", "unclear"}),
    "nowhere near": ({"shift": 40.0}, {"unclear"}),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_detector_in_pixels_is_not_taken_for_another_frame(name: str, tmp_path: Path) -> None:
    how, outcomes = BAD[name]
    truth = made_truth()
    diagnosis = diagnose(read_results(write(tmp_path / "dt.json", Frame(), _bent(truth, **how)), truth), truth)
    assert diagnosis is not None
    assert diagnosis.outcome in outcomes, diagnosis.best


def coco_files(folder: Path, frame: Frame) -> tuple[Path, Path]:
    """Write ground truth in COCO's format, and detections in a frame, under a name with a space."""
    truth = made_truth(60)
    rows = zip(truth.image_ids.tolist(), truth.category_ids.tolist(), truth.boxes_px_xywh.tolist(), strict=True)
    document = {
        "images": [{"id": key, "width": size[0], "height": size[1]} for key, size in truth.sizes_px.items()],
        "categories": [{"id": key, "name": name} for key, name in truth.categories.items()],
        "annotations": [{"id": n, "image_id": i, "category_id": c, "bbox": b} for n, (i, c, b) in enumerate(rows)],
    }
    (folder / "gt.json").write_text(json.dumps(document))
    return folder / "gt.json", write(folder / "my dets.json", frame, detected(truth))


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("text", ["norm1000:xyxy:index0"])
def test_the_command_that_is_printed_reads_the_file_right(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    annotations, wrong = coco_files(tmp_path, Frame.parse(text))
    assert main(["doctor", "boxes", "--annotations", str(annotations), str(wrong)]) == 2
    outcome, sentence, command = capsys.readouterr().out.strip().splitlines()
    assert outcome == f"{wrong}: far better"
    assert f" {text}, " in sentence
    program, *argv = shlex.split(command)
    assert program == "coordexp"
    quick = ["--resamples", "20", "--format", "json"]
    assert main([*argv, *quick]) == 0
    ap = json.loads(capsys.readouterr().out)["groups"]["my dets"]["AP"]

    plain = ["compare", "--annotations", str(annotations), f"a={wrong}"]
    assert main([*plain, *quick]) == 2
    refusal = capsys.readouterr().err
    assert refusal.startswith(f"error: {wrong}: ")
    assert f" {text}, " in refusal
    program, *argv = shlex.split(refusal.strip().splitlines()[-1])
    assert main([*argv, *quick]) == 0
    assert json.loads(capsys.readouterr().out)["groups"]["a"]["AP"] == ap
    shutil.rmtree(tmp_path / "comparison")
    _, right = coco_files(tmp_path, Frame())
    assert main(["doctor", "boxes", "--annotations", str(annotations), str(right), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "good"
    assert main([*plain, *quick]) == 0
    assert json.loads(capsys.readouterr().out)["groups"]["a"]["AP"] == pytest.approx(ap, abs=0.02)


@pytest.mark.parametrize(
    ("argv", "facts"),
    [
        (["doctor", "boxes", "x.json"], ["doctor boxes --annotations GT.json FILE"]),
        (["doctor", "--annotations", "x.json"], ["--annotations", "doctor boxes"]),
        (["compare", "--annotations", "x", "a=b", "--frame", "a=px:xyxyz"], ["'px:xyxyz'", "'xyxyz'"]),
        (["compare", "--annotations", "x", "a=b", "--frame", "c=px"], ["--frame c=px", "'c'", "expected a"]),
    ],
)
def test_what_no_frame_can_be_is_one_sentence(
    argv: list[str], facts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for fact in facts:
        assert fact in error

"""Answers of other models, as supervision reads them; where it is not installed, what to do is said."""

import json
import re
import sys
from pathlib import Path

import pytest
from PIL import Image

from coordexp.cli.main import main
from coordexp.evaluate.checkpoint import open_data
from coordexp.evaluate.settings import EvaluationSettings

TRUTH = {
    "images": [{"id": n, "file_name": f"p{n}.jpg", "width": 200, "height": 100} for n in (1, 2, 3)],
    "categories": [{"id": 4, "name": "red box"}],
    "annotations": [{"id": n, "image_id": n, "category_id": 4, "bbox": [40, 10, 40, 20]} for n in (1, 2, 3)],
}
GEMINI = (
    '```json\n[{"box_2d": [100, 200, 300, 400], "label": "Red box"}, {"box_2d": [1, 2, 30, 40], "label": "cow"}]\n```'
)
RED = {"label": "red box"}
CUT = '```json\n[{"box_2d": [100, 200, 300, 400], "label": "red box"}, {"box_2d": [100,'


def evaluate(
    folder: Path, answer: str, lines: list[dict], capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, str]:
    (folder / "gt.json").write_text(json.dumps(TRUTH))
    (folder / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    files = ["--annotations", str(folder / "gt.json"), "--images", str(folder), "--output", str(folder / "out")]
    code = main(["evaluate", "--answer", answer, "--generations", str(folder / "texts.jsonl"), *files, *more])
    printed = capsys.readouterr()
    return code, " ".join((printed.out + printed.err).split())


def test_texts_become_detections_and_what_is_lost_is_counted(tmp_path: Path, capsys) -> None:
    pytest.importorskip("supervision", reason='needs pip install "coordexp[vlm]"')
    lines = [
        {"image_id": 1, "text": GEMINI},
        {"file_name": "p2.jpg", "text": CUT},
        {"image_id": 3, "text": "I see none."},
    ]
    code, printed = evaluate(tmp_path, "gemini_2_5", lines, capsys)
    assert code == 0
    counts = r"2 boxes from 3 answers.*without a box: 1\b.*not be read: 1\b.*no category: 1\b.*'cow' 1\b"
    assert re.search(counts, printed)
    detections = json.loads((tmp_path / "out" / "detections.json").read_text())
    assert detections == [{"image_id": n, "category_id": 4, "bbox": [40, 10, 40, 20], "score": 1} for n in (1, 2)]


@pytest.mark.parametrize(
    ("images", "facts"),
    [((1, 2), ("1 of 3 images", "3")), ((1, 1), ("texts.jsonl:2", "image 1"))],
)
def test_an_answer_for_each_image_is_expected(images, facts, tmp_path: Path, capsys) -> None:
    pytest.importorskip("supervision", reason='needs pip install "coordexp[vlm]"')
    code, printed = evaluate(tmp_path, "gemini_2_5", [{"image_id": n, "text": GEMINI} for n in images], capsys)
    assert code == 2
    assert [fact for fact in facts if fact not in printed] == []


@pytest.mark.parametrize(
    "option",
    [
        ["--score", "coord"], ["--decoding", "free"], ["--batch-size", "16"], ["--prompt", "x"], ["--adapter", "x"],
        ["--max-pixels", "9"], ["--boxes-in", "auto"], ["--merge-categories"], ["--threads", "1"],
        ["--num-workers", "2"], ["--check-engine", "x"], ["--max-new-tokens", "9"], ["--model", "embedded"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_option_without_effect_is_refused(option: list[str], tmp_path: Path, capsys) -> None:
    code, printed = evaluate(tmp_path, "gemini_2_5", [], capsys, *option)
    assert code == 2
    assert option[0] in printed


def test_a_number_of_images_is_honoured_and_they_are_those_of_every_evaluation(tmp_path: Path, capsys) -> None:
    pytest.importorskip("supervision", reason='needs pip install "coordexp[vlm]"')
    for image in TRUTH["images"]:
        Image.new("RGB", (200, 100)).save(tmp_path / str(image["file_name"]))
    (tmp_path / "gt.json").write_text(json.dumps(TRUTH))
    settings = EvaluationSettings(annotations=tmp_path / "gt.json", images=tmp_path, num_images=2)
    chosen = [sample.image_id for sample in open_data(settings).samples]
    assert len(chosen) == 2
    answers_of_chosen = [{"image_id": n, "text": GEMINI} for n in chosen]
    code, printed = evaluate(tmp_path, "gemini_2_5", answers_of_chosen, capsys, "--num-images", "2")
    assert code == 0, printed
    assert "2 boxes from 2 answers" in printed
    detections = json.loads((tmp_path / "out" / "detections.json").read_text())
    assert [row["image_id"] for row in detections] == chosen
    answers_of_all = [{"image_id": n, "text": GEMINI} for n in (1, 2, 3)]
    code, printed = evaluate(tmp_path, "gemini_2_5", answers_of_all, capsys, "--num-images", "2")
    assert code == 0, printed
    assert "2 boxes from 2 answers" in printed
    code, printed = evaluate(tmp_path, "gemini_2_5", answers_of_all[:1], capsys, "--num-images", "2")
    assert code == 2
    assert "of 2 images" in printed


def test_texts_of_another_form_are_not_pictures_without_objects(tmp_path: Path, capsys) -> None:
    for image in TRUTH["images"]:
        Image.new("RGB", (200, 100)).save(tmp_path / str(image["file_name"]))
    lines = [{"file_name": f"p{n}.jpg", "text": GEMINI} for n in (1, 2, 3)]
    code, printed = evaluate(tmp_path, "qwen-json", lines, capsys, "--model", "embedded")
    assert code == 0
    (warning,) = re.findall(r"warning: free: .*?\(--answer\)", printed)
    assert re.search(r"qwen-json.*\b6 pieces.*malformed_box", warning)
    right = [{**line, "text": '[{"bbox_2d": [200, 100, 400, 300], "label": "red box"}]'} for line in lines]
    code, printed = evaluate(tmp_path, "qwen-json", right, capsys, "--model", "embedded")
    assert code == 0
    assert "warning: free:" not in printed


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("paligemma", {"text": "<loc0102><loc0205><loc0307><loc0410> red box"}),
        ("florence_2", {"text": {"<OD>": {"bboxes": [[40, 10, 80, 30]], "labels": ["red box"]}}}),
        ("moondream", {"text": {"objects": [{"x_min": 0.2, "y_min": 0.1, "x_max": 0.4, "y_max": 0.3}]}, **RED}),
    ],
)  # fmt: skip
def test_each_form_finds_the_boxes(answer: str, line: dict, tmp_path: Path, capsys) -> None:
    pytest.importorskip("supervision", reason='needs pip install "coordexp[vlm]"')
    code, printed = evaluate(tmp_path, answer, [{"image_id": n, **line} for n in (1, 2, 3)], capsys)
    assert code == 0
    assert re.search(r"3 boxes from 3 answers.*without a box: 0\b.*not be read: 0\b", printed)
    detections = json.loads((tmp_path / "out" / "detections.json").read_text())
    assert len(detections) == 3
    for row in detections:
        assert row["bbox"] == pytest.approx([40, 10, 40, 20], abs=0.2)


def test_what_is_missing_is_one_sentence(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "supervision", None)
    code, printed = evaluate(tmp_path, "gemini_2_5", [], capsys)
    assert code == 2
    assert 'pip install "coordexp[vlm]"' in printed
    assert main(["evaluate", "--answer", "paligemma", "--annotations", "x", "--images", "y"]) == 2
    assert "--generations" in capsys.readouterr().err

"""``coordexp compare``: the same detections as published tables measure them."""

import csv
import json
from pathlib import Path

import pytest

from coordexp.cli.main import main as coordexp
from coordexp.detection import evaluate_detections
from tests.support.detection_simulator import write_experiment

QUICK = ["--resamples", "60", "--pictures", "0", "--all"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    annotations, files = write_experiment(tmp_path, number=6, num_images=40, effects={"A": 0.0, "B": 0.5})
    annotations.rename("truth.json")
    for group, seeds in files.items():
        seeds[0].rename(f"{group}.json")
    return tmp_path


def row(report: str, head: str) -> list[str]:
    line = next(line for line in report.splitlines() if line.startswith(f"| {head}"))
    return [cell.strip() for cell in line.split("|")[2:-1]]


@pytest.mark.usefixtures("undrawn")
def test_one_table_has_all_protocols_with_their_rankings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert coordexp(["compare", "--annotations", "truth.json", "A=A.json", "B=B.json", *QUICK]) == 0
    said = capsys.readouterr().out
    assert "Under another protocol" not in said
    report = Path("comparison/report.md").read_text()
    assert "The same detections under other protocols" in report
    assert "The same detections under other protocols" in Path("comparison/report.html").read_text()
    values = row(report, "AP, as scored")
    official = evaluate_detections("truth.json", "A.json").AP
    assert values == [f"{official:.3f}", values[1], "A, B"]
    assert row(report, "AP, answers cut at a repeat") == ["-", "-", "-"], "files have no answers"
    for head in ("AP, every score equal", "F1, all detections", "F1, positive-only", "AP without category"):
        assert row(report, head)[2] in ("A, B", "B, A")
    found = json.loads(Path("comparison/report.json").read_text())["protocols"]
    assert found["AP_cut"] == {"groups": {"A": None, "B": None}, "ranking": [], "turned": []}
    with Path("comparison/report.csv").open() as file:
        kinds = {(line["kind"], line["metric"]) for line in csv.DictReader(file)}
    assert ("protocol", "AP_without_category") in kinds


@pytest.mark.usefixtures("undrawn")
def test_boxes_without_scores_count_in_the_order_of_their_file(folder: Path) -> None:
    """The comparison puts such boxes into an order of its own, which is not what a published table has."""
    for name in "AB":
        entries = json.loads(Path(f"{name}.json").read_text())
        entries.sort(key=lambda entry: -entry["score"])  # the best first, as a model writes it
        Path(f"{name}.json").write_text(json.dumps([{k: entry[k] for k in entry if k != "score"} for entry in entries]))
        Path(f"ones-{name}.json").write_text(json.dumps([{**entry, "score": 1.0} for entry in entries]))
    assert coordexp(["compare", "--annotations", "truth.json", "A=A.json", "B=B.json", *QUICK]) == 0
    report = Path("comparison/report.md").read_text()
    official = [f"{evaluate_detections('truth.json', f'ones-{name}.json').AP:.3f}" for name in "AB"]
    assert row(report, "AP, every score 1")[:2] == official
    assert row(report, "AP, as scored")[:2] != official


@pytest.mark.usefixtures("undrawn")
def test_the_verdict_names_a_protocol_that_turns_a_difference_round(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    boxes = json.loads(Path("truth.json").read_text())["annotations"]
    right = [
        {"image_id": box["image_id"], "category_id": box["category_id"], "bbox": box["bbox"], "score": 0.5 + n * 1e-5}
        for n, box in enumerate(boxes)
    ]
    false = [
        {"image_id": image_id, "category_id": category, "bbox": [x, 390.0, 8.0, 8.0], "score": 0.1 + x * 1e-4}
        for image_id in range(1, 41)
        for category in (1, 2, 3)
        for x in (10.0, 30.0, 50.0, 70.0)
    ]
    Path("A.json").write_text(json.dumps(false + right))
    Path("B.json").write_text(json.dumps(right[::2]))
    assert coordexp(["compare", "--annotations", "truth.json", "A=A.json", "B=B.json", *QUICK]) == 0
    said = " ".join(capsys.readouterr().out.split())
    before, turned, after = said.partition("Under another protocol")
    assert turned
    assert "A has the highest AP" in before
    assert "by AP, every score 1, in written order, B is" in after

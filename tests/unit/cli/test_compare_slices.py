"""``coordexp compare --slices``: parts of the images in every form of the report."""

import csv
import json
from pathlib import Path

import pytest

from coordexp.cli.main import main as coordexp
from tests.support.detection_simulator import write_unit_experiment

QUICK = ["--resamples", "60", "--pictures", "0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 clips of five frames, two of three dark."""
    folder = tmp_path_factory.mktemp("slices")
    write_unit_experiment(folder, number=2, num_frames=[5] * 24)
    path = folder / "instances.json"
    truth = json.loads(path.read_text())
    for image in truth["images"]:
        image["light"] = "bright" if image["clip"] % 2 == 0 else "dark"
        image["weather"] = "wet" if image["clip"] < 5 else "dry"
    path.write_text(json.dumps(truth))
    return folder


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def compare(folder: Path, *argv: str) -> int:
    files = [f"A={folder}/A.json", f"B={folder}/B.json"]
    return coordexp(["compare", "--annotations", str(folder / "instances.json"), *files, *QUICK, *argv])


def test_slices_are_in_every_form_of_the_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(folder, "--unit-by", "clip", "--slices", "light,weather", "--output", "out", "--all") == 0
    said = capsys.readouterr().out
    page, text = Path("out/report.html").read_text(), Path("out/report.md").read_text()
    for shown in (said, page, text):
        for name in ("light = bright", "light = dark", "weather = wet", "size = medium", "category = 0"):
            assert name in shown
        assert "xploratory" in shown
    row = next(line for line in text.splitlines() if line.startswith("| light = dark"))
    assert [cell.strip() for cell in row.split("|")[2:4]] == ["60", "12"], "images and units"
    wet = next(line for line in text.splitlines() if line.startswith("| weather = wet"))
    assert "[" not in wet, "five units have values alone"
    assert ">Slices</h2>" in page
    assert "light = dark" in Path("out/slices.svg").read_text()
    whole = json.loads(Path("out/report.json").read_text())
    dark = next(one for one in whole["slices"] if (one["tag"], one["value"]) == ("light", "dark"))
    assert (dark["num_images"], dark["num_units"]) == (60, 12)
    with Path("out/report.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["slice"] == "light = dark"]
    assert {(line["kind"], line["metric"]) for line in lines} >= {("slice", "AP50"), ("slice pair", "AP")}


@pytest.mark.usefixtures("undrawn")
def test_slices_are_read_from_a_table_and_one_screen_says_where_they_are(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [image["file_name"] for image in json.loads((folder / "instances.json").read_text())["images"]]
    rows = [f"{name};{'a' if at < 60 else 'b'}" for at, name in enumerate(names)]
    Path("sites.csv").write_text("\n".join(["file;site", *rows]))
    assert compare(folder, "--slices", "sites.csv") == 0
    assert "slices: " in capsys.readouterr().out
    assert compare(folder, "--slices", "sites.csv", "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)["slices"]
    assert [one["value"] for one in found if one["tag"] == "site"] == ["a", "b"]
    assert "site = a" in Path("comparison/report.md").read_text()


@pytest.mark.parametrize(
    ("slices", "facts"),
    [
        ("ligth", ["120 images", "light (2)", "light?"]),
        ("file_name", ["120 values", " 50"]),
        ("width", ["'400'"]),
        ("others.csv", ["others.csv", " 2 rows"]),
        ("nowhere.csv", ["nowhere.csv"]),
    ],
)
def test_what_makes_no_slices_is_one_sentence(
    folder: Path, slices: str, facts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("others.csv").write_text("file,site\nx.jpg,a\ny.jpg,b\n")
    assert compare(folder, "--slices", slices) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for fact in facts:
        assert fact in error

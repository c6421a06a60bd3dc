"""``coordexp compare --unit-by``: images that are not independent, drawn and swapped as a whole."""

import csv
import json
from pathlib import Path

import pytest

from coordexp.cli.main import main as coordexp
from coordexp.data.units import UnitRule, read_unit_names
from coordexp.statistics import paired_bootstrap
from tests.support.detection_simulator import write_unit_experiment

QUICK = ["--resamples", "60", "--pictures", "0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ground truth of 24 clips of five frames, and the files of two methods."""
    folder = tmp_path_factory.mktemp("clips")
    write_unit_experiment(folder, number=2, num_frames=[5] * 24)
    return folder


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def compare(folder: Path, *argv: str, annotations: str = "instances.json") -> int:
    files = [f"A={folder}/A.json", f"B={folder}/B.json"]
    return coordexp(["compare", "--annotations", str(folder / annotations), *files, *QUICK, *argv])


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("rule", ["clip", r"^(clip\d+)_"])
def test_a_field_and_a_pattern_draw_the_same_units(folder: Path, rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(folder, "--unit-by", rule, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sample"] == {"images": 120, "units": 24}
    names = read_unit_names(folder / "instances.json", UnitRule.parse("clip"))
    files = {name: folder / f"{name}.json" for name in "AB"}
    expected = paired_bootstrap(folder / "instances.json", files, resamples=60, units=names)
    difference = expected.difference["A", "B"]
    assert found["pairs"]["A - B"]["interval"] == [difference.low, difference.high]
    assert found["pairs"]["A - B"]["p_bootstrap"] == pytest.approx(difference.p)


@pytest.mark.usefixtures("undrawn")
def test_units_of_one_image_give_every_number_as_it_was(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(folder, "--format", "json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert compare(folder, "--unit-by", "file_name", "--format", "json") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found.pop("sample") == {"images": 120, "units": 120}
    assert found == plain


def test_units_stand_beside_images_wherever_these_are_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(folder, "--unit-by", "clip", "--output", "out", "--all") == 0
    said = capsys.readouterr().out
    for text in (said, Path("out/report.md").read_text(), Path("out/report.html").read_text()):
        assert "120 images in 24 units" in text
    assert "120 images in 24 units" in Path("out/groups.svg").read_text()
    assert "units with detections" in Path("out/report.md").read_text()
    with Path("out/report.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["kind"] == "pair"]
    assert [(line["num_images"], line["num_units"]) for line in lines] == [("120", "24")]
    assert "images that are not independent" in Path("out/report.html").read_text(), "the word is explained"


@pytest.mark.usefixtures("undrawn")
def test_five_units_have_no_interval(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(folder, "--unit-by", r"clip0(.)") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "From 120 images in 3 units" in said


@pytest.mark.usefixtures("undrawn")
def test_below_twenty_units_the_reader_is_warned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(folder, "--unit-by", r"clip\d\d(\d)") == 0
    assert "! 120 images in 10 units" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("undrawn")
def test_images_without_a_value_are_counted(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth = json.loads((folder / "instances.json").read_text())
    for image in truth["images"][:7]:
        image["clip"] = None
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    files = [f"A={folder}/A.json", f"B={folder}/B.json"]
    command = ["compare", "--annotations", "truth.json", *files, *QUICK, "--unit-by", "clip"]
    assert coordexp([*command, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["sample"] == {"images": 120, "units": 30}, "7 alone, and 23 clips"
    assert coordexp(command) == 0
    assert "7 of 120 images" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("rule", "facts"),
    [
        ("clipp", ["instances.json", "120 images", "clip (24)", "clip?"]),
        ("(frame)", ["120 file names", "clip000_00001.jpg", "clip (24)"]),
        (r"\.(jpg)", ["120 images", "one unit", "'jpg'"]),
        ("width", ["120 images", "one unit", "'400'"]),
        ("(", ["--unit-by", "regular expression"]),
        ("(?:clip)", ["--unit-by", "group"]),
        ("", ["--unit-by"]),
    ],
)
def test_a_rule_that_finds_no_units_is_one_sentence_with_the_way_on(
    folder: Path, rule: str, facts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(folder, "--unit-by", rule) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for fact in facts:
        assert fact in error


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("rule", "more"), [(["--unit-by", "clip"], "twice the units"), ([], "twice the images")])
def test_what_more_would_detect_is_a_row_and_a_sentence(
    folder: Path, rule: list[str], more: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(folder, *rule, "--all", "--output", "out") == 0
    said = " ".join(capsys.readouterr().out.split())
    report = Path("out/report.md").read_text()
    assert "How much more is needed" in report
    assert f"| {more} |" in report
    (pair,) = json.loads(Path("out/report.json").read_text())["further"]
    assert pair["more_seeds"] is None, "one file each"
    assert 0 < pair["more_sample"] < pair["detectable"]
    assert f"{pair['detectable']:.3f}" in said
    assert f"with {more} {pair['more_sample']:.3f}" in said or "is better" in said or "is higher" in said

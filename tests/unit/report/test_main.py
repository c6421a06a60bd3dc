import json
from pathlib import Path

import pytest

from coordexp.cli.main import main as coordexp
from coordexp.detection import evaluate_detections
from coordexp.report.study.study import Study
from tests.support.report import SIZE_PX


def main(argv: list[str]) -> int:
    return coordexp(["report", *argv])


@pytest.fixture(autouse=True)
def _no_uri_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.mark.usefixtures("undrawn")
def test_the_database_of_the_runs_directory_is_the_default(
    database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--runs-dir", str(database.parent), "--output", str(tmp_path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["experiment"] == "tiny"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    assert main(["single", "--runs-dir", str(tmp_path / "elsewhere"), "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("experiment,kind,group")
    assert (tmp_path / "elsewhere" / "single" / "report" / "report.html").is_file()


@pytest.mark.usefixtures("undrawn")
def test_user_errors_are_one_sentence_and_exit_code_2(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--runs-dir", str(tmp_path)]) == 2
    assert f"{tmp_path}/mlflow.db" in capsys.readouterr().err
    assert main(["tinny", "--tracking-uri", uri]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "tiny" in captured.err.replace("tinny", ""), "the nearest name"
    (tmp_path / "file").write_text("")
    assert main(["tiny", "--tracking-uri", uri, "--output", str(tmp_path / "file" / "x"), "--format", "csv"]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_chosen_runs_get_a_title_and_a_folder_of_their_own(
    paired_dir: Path, paired: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = [run.run_id for run in paired.data.runs if run.seed == 0][:2]
    where = ["--runs-dir", str(paired_dir), "--resamples", "20", "--pictures", "1"]
    assert main(["A/vs B", *where, "--format", "json", "--runs", *ids]) == 0
    assert list(json.loads(capsys.readouterr().out)["groups"]) == ["A", "B<i>"]
    assert (paired_dir / "A%2Fvs_B" / "report" / "report.html").is_file()
    assert main(["x", *where, "--runs", paired.data.parent_id]) == 2
    assert paired.data.parent_id in capsys.readouterr().err
    assert main([*where, "--runs", *ids]) == 2
    assert "--runs" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_another_detectors_file_is_a_row_of_the_report(
    paired_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--runs-dir", str(paired_dir), "--output", str(tmp_path), "--resamples", "60", "--pictures", "3"]
    other_file = paired_dir / "paired" / "C-s0" / "eval" / "final" / "free" / "detections.argmax.json"
    assert main(["paired", *quick, "--all", "--with", f"zero-shot={other_file}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for fact in ("6 runs", "6 finished", "1 file", "Foreign: zero-shot", "C \u2212 zero-shot"):
        assert fact in printed, fact
    found = json.loads((tmp_path / "report.json").read_text())
    ap = {line["group"]: line["value"] for line in found["statistics"] if line["kind"] == "group"}
    pairs = {(line["group"], line["against"]): line["value"] for line in found["statistics"] if line["kind"] == "pair"}
    annotations = paired_dir / "paired" / "data" / "instances_val.json"
    assert ap["zero-shot"] == pytest.approx(evaluate_detections(annotations, other_file).AP, abs=1e-12)
    assert pairs["A", "zero-shot"] == pytest.approx(ap["A"] - ap["zero-shot"], abs=1e-12)  # over both seeds of A
    lines = {name: len(reading["statistics"]) for name, reading in found["readings"].items()}
    assert lines == dict.fromkeys(("own", "expected", "argmax", "free"), 17)
    rows = json.loads(other_file.read_text())
    scaled = [row | {"bbox": [v / side for v, side in zip(row["bbox"], SIZE_PX * 2, strict=True)]} for row in rows]
    (tmp_path / "scaled.json").write_text(json.dumps(scaled))
    odd = ["--with", f"odd={tmp_path / 'scaled.json'}"]
    assert main(["paired", *quick, *odd]) == 2
    refusal = capsys.readouterr().err
    assert f"coordexp report paired --with odd={tmp_path / 'scaled.json'} --frame odd=norm1:xywh" in refusal
    assert main(["paired", *quick, *odd, "--all", "--frame", "odd=norm1:xywh"]) == 0
    assert "its file" in capsys.readouterr().out
    assert main(["paired", *quick, "--with", f"A={other_file}"]) == 2
    assert "'A'" in capsys.readouterr().err
    assert main(["paired", *quick, "--with", f"x={other_file}", "--watch"]) == 2


@pytest.mark.usefixtures("undrawn")
def test_units_and_slices_of_a_finished_experiment(
    paired_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "sites.csv"
    table.write_text("file,site\n" + "".join(f"{n:03d}.jpg,{'north' if n < 8 else 'south'}\n" for n in range(1, 15)))
    quick = ["--runs-dir", str(paired_dir), "--resamples", "30", "--pictures", "0", "--output", str(tmp_path)]
    assert main(["paired", *quick, "--unit-by", r"(\d)\.jpg", "--slices", str(table)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert r"14 images in 10 units ((\d)\.jpg)" in printed
    report = (tmp_path / "report.md").read_text()
    assert "site = north" in report
    assert "AP, answers cut at a repeat" in report
    assert "twice the units" in report
    whole = json.loads((tmp_path / "report.json").read_text())
    assert {line["num_units"] for line in whole["statistics"] if "num_units" in line} == {10}
    for options in (["--unit-by", "clip"], ["--slices", "light"], ["--unit-by", "("]):
        assert main(["paired", *quick, *options]) == 2
        assert capsys.readouterr().err.count("\n") == 1

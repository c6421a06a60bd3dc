import csv
import dataclasses
import io
import json
import shlex
from pathlib import Path

from PIL import Image
from rich.console import Console

from coordexp.report import render_report, report_experiment
from coordexp.report.commands import next_commands
from coordexp.report.load import ExperimentData, RunData, load_experiment
from coordexp.report.plots import write_plots
from coordexp.report.render import to_csv, to_json, to_markdown


def printed(data: ExperimentData, width: int) -> list[str]:
    out = io.StringIO()
    render_report(data, Console(file=out, width=width))
    return out.getvalue().splitlines()


def test_the_tables_fit_100_columns(tiny: ExperimentData) -> None:
    lines = printed(tiny, 100)
    table_lines = [line for line in lines if line.strip() and not line.startswith(("MLFLOW", "python", "•"))]
    assert max(len(line.rstrip()) for line in table_lines) <= 100
    text = "\n".join(lines)
    assert "…" not in text  # nothing was cut off
    assert "[term box_l1]" in text  # not taken for markup
    assert "AP_medium" in text


def test_markdown_has_as_many_cells_in_every_line(tiny: ExperimentData) -> None:
    lines = to_markdown(tiny).splitlines()
    widths = [line.count(" | ") for line in lines if line.startswith("| ")]
    head_and_rule = 2
    assert widths[: head_and_rule + 18] == [8] * 20  # 3 groups x 2 boxes x (mean + 2 seeds), 9 columns
    assert set(widths[20 : 20 + head_and_rule + 9]) == {9}
    assert "| **A** | **expected** | **mean of 2** | **0.310**" in "\n".join(lines)


def test_csv_has_one_line_a_run_and_empty_cells_for_undefined_values(tiny: ExperimentData) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(tiny))))
    assert [row["group"] + row["seed"] for row in rows] == ["A0", "A1", "B0", "B1", "C0", "C1"]
    assert float(rows[0]["constrained/expected/AP"]) == 0.30
    assert rows[3]["constrained/expected/AP"] == ""


def test_json_holds_means_and_runs(tiny: ExperimentData) -> None:
    whole = json.loads(to_json(tiny))
    assert abs(whole["groups"]["A"]["mean"]["constrained/expected/AP"] - 0.31) < 1e-12
    assert whole["groups"]["B"]["runs"][1]["state"] == "failed"
    assert whole["codec_ceiling"] == 0.987


def test_the_next_commands_name_the_run_and_the_annotations(tiny: ExperimentData) -> None:
    (_, ui), (_, again) = next_commands(tiny)
    assert f"--backend-store-uri {tiny.uri}" in ui
    download, evaluate = again.splitlines()
    assert f"--run-id {tiny.runs[0].run_id}" in download
    program = shlex.split(evaluate)[2]
    compile(program, "command", "exec")
    assert "'/r/tiny/data/instances_val.json'" in program


def test_a_password_in_the_uri_stays_out_of_the_report(tiny: ExperimentData) -> None:
    server = dataclasses.replace(tiny, uri="https://me:secret@mlflow.example:5000")
    everything = to_markdown(server) + to_json(server) + "".join(printed(server, 120))
    assert "https://me:***@mlflow.example:5000" in everything
    assert "secret" not in everything


def test_plots_are_pictures_and_differ_from_empty_ones(tiny: ExperimentData, tmp_path: Path) -> None:
    losses, ap = write_plots(tiny, tmp_path)
    assert (losses.name, ap.name) == ("losses.png", "ap.png")
    with Image.open(losses) as picture:
        assert picture.size == (1440, 960)
    nothing = ExperimentData(name="tiny", uri="", runs=(RunData("r", "A", 0, "waiting"),))
    (tmp_path / "empty").mkdir()
    empty_losses, _ = write_plots(nothing, tmp_path / "empty")
    assert empty_losses.read_bytes() != losses.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ap.png", "empty", "losses.png"]


def test_an_ablation_ends_with_the_report_and_its_files(uri: str, tmp_path: Path) -> None:
    out = io.StringIO()
    output = tmp_path / "deep" / "report"
    report_experiment(uri, "single", output=output, console=Console(file=out, width=120))
    assert sorted(path.name for path in output.iterdir()) == ["ap.png", "losses.png", "report.md"]
    assert str(output / "ap.png") in out.getvalue()
    assert (output / "report.md").read_text() == to_markdown(load_experiment(uri, "single"))

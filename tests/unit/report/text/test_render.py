import csv
import dataclasses
import io
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from coordexp.report.page.page import render_page
from coordexp.report.records.data import ExperimentData
from coordexp.report.study.study import Study
from coordexp.report.text.notes import next_commands
from coordexp.report.text.records import to_csv, to_json
from coordexp.report.text.render import render_report, to_latex, to_markdown
from coordexp.report.write import report_experiment
from coordexp.shipped import python_command


def printed(study: Study, width: int) -> list[str]:
    out = io.StringIO()
    render_report(study, Console(file=out, width=width))
    return out.getvalue().splitlines()


def test_every_table_is_printed_whole_and_its_columns_stand_below_their_heads(bare: Study) -> None:
    lines = printed(bare, 40)
    assert "[term box_l1]" in "\n".join(lines)  # not taken for markup
    at = next(at for at, line in enumerate(lines) if line.startswith("Average precision, constrained"))
    head, rule, mean, *_ = lines[at + 1 :]
    assert head.split() == ["group", "boxes", "seed", "AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large"]
    assert rule == "\u2500" * len(head)
    assert mean.split()[:3] == ["A", "argmax", "mean"]
    assert len(mean) == len(head)
    folded = next(at for at, line in enumerate(lines) if line.startswith("Runs: steps")) + 1
    assert (lines[folded].split(), lines[folded + 1].split()[-1]) == (["coord", "ce"], "loss")


def test_the_next_commands_name_the_run_and_the_annotations(tiny: ExperimentData) -> None:
    (_, ui), (_, again) = next_commands(tiny)
    assert f" ui {tiny.name} --tracking-uri {tiny.uri}" in ui
    download, evaluate = again.splitlines()
    assert f"--run-id {tiny.runs[0].run_id}" in download
    program = shlex.split(evaluate)[2]
    compile(program, "command", "exec")
    assert '"/r/tiny/data/instances_val.json"' in program
    packed = {"data.format": "coco", "data.val_annotations": "/d/val data.json.gz", "data.val_images": "/d/val"}
    runs = tuple(dataclasses.replace(run, params=run.params | packed) for run in tiny.runs)
    _, (_, again) = next_commands(dataclasses.replace(tiny, runs=runs))
    assert "gzip -dc '/d/val data.json.gz' > A-s0/annotations.json" in again.splitlines()
    assert '"A-s0/annotations.json"' in again.splitlines()[-1]


@pytest.mark.usefixtures("undrawn")
def test_a_password_in_the_uri_stays_out_of_the_report(tiny: ExperimentData) -> None:
    server = Study(dataclasses.replace(tiny, uri="https://me:secret@mlflow.example:5000"))
    everything = to_markdown(server) + to_json(server) + render_page(server) + "".join(printed(server, 120))
    assert "https://***@mlflow.example:5000" in everything
    assert "secret" not in everything


def test_an_ablation_ends_with_the_report_and_its_files(uri: str, tmp_path: Path) -> None:
    out = io.StringIO()
    output = tmp_path / "deep" / "report"
    report_experiment(uri, "single", output=output, console=Console(file=out, width=120))
    names = {path.name for path in output.iterdir()}
    assert {"report.html", "report.md", "report.json", "report.csv", "report.tex", "ap.png", "ap.svg"} <= names
    assert str(output / "report.html") in out.getvalue()
    assert "not in MLflow" not in out.getvalue()


def lines(study: Study) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(study))))


def test_csv_has_every_number_of_the_statistics(paired: Study) -> None:
    assert paired.comparison is not None
    found = [row for row in lines(paired) if row["kind"] != "run"]
    pair = paired.comparison.pairs[1]
    (row,) = [row for row in found if (row["kind"], row["group"], row["against"]) == ("pair", pair.a, pair.b)]
    written = [
        row[name] for name in ("value", "low", "high", "p_swap", "p_bootstrap", "p_holm", "seed_std", "detectable")
    ]
    difference = pair.difference
    assert list(map(float, written)) == [
        difference.value, difference.low, difference.high, pair.p_swap, pair.p_bootstrap, pair.p_holm, pair.seed_std,
        pair.detectable,
    ]  # fmt: skip
    own = {"group", "seed", "pair"}
    assert {row["kind"] for row in found if not row["reading"]} == {*own, "convergence", "decomposition", "protocol"}
    assert {row["kind"] for row in found if row["reading"]} == {f"{kind} reading" for kind in own}
    assert {row["reading"] for row in found} == {"", "expected", "argmax", "free"}
    assert sum(row["kind"] == "seed" for row in found) == 6


def test_json_holds_means_runs_statistics_and_fairness(paired: Study, bare: Study) -> None:
    whole = json.loads(to_json(bare))
    assert abs(whole["groups"]["A"]["mean"]["constrained/expected/AP"] - 0.31) < 1e-12
    assert whole["groups"]["B"]["runs"][1]["state"] == "failed"
    assert (whole["codec_ceiling"], whole["statistics"], whole["missing"][-1]) == (0.987, [], "nothing is here")
    whole = json.loads(to_json(paired))
    assert whole["verdict"] == paired.verdict
    assert whole["fairness"]["comparable"]
    assert {line["kind"] for line in whole["statistics"]} == {"group", "seed", "pair", "convergence", "decomposition"}
    assert list(whole["readings"]) == ["own", "expected", "argmax", "free"]
    own, free = whole["readings"]["own"], whole["readings"]["free"]
    others = ("convergence", "decomposition")
    assert own["statistics"] == [line for line in whole["statistics"] if line["kind"] not in others]
    assert (own["decoding"], free["decoding"]) == ("constrained", "free")
    assert own["boxes"] == free["boxes"] == {"A": "argmax", "B<i>": "expected", "C": "expected"}
    assert set(whole["readings"]["argmax"]["boxes"].values()) == {"argmax"}


def test_latex_is_escaped_and_every_row_has_all_cells(paired: Study) -> None:
    text = to_latex(paired)
    assert r"B\ensuremath{<}i\ensuremath{>}" in text
    assert "\u2212" not in text
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 6
    for table in text.split(r"\begin{tabular}{")[1:]:
        columns = len(table.partition("}")[0])
        rows = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert rows
        assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in rows} == {columns}
    assert not re.search(r"(?<!\\)%", "\n".join(text.splitlines()[3:]))


def test_a_command_to_paste_runs_nothing_that_a_server_gave(tiny: ExperimentData, tmp_path: Path) -> None:
    evil = f"x; touch {tmp_path}/pwned; '$(touch {tmp_path}/pwned)' `touch {tmp_path}/pwned`\ntouch {tmp_path}/pwned #"
    runs = tuple(dataclasses.replace(run, run_id=evil, group=evil) for run in tiny.runs)
    data = dataclasses.replace(tiny, runs=runs, experiment_id=evil, uri=f"sqlite:////{evil}")
    (_, ui), (_, again) = next_commands(data)
    for command in (ui, again):
        harmless = command.replace(python_command(), "true")
        assert harmless != command
        subprocess.run(["bash", "-c", harmless], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    assert list(tmp_path.iterdir()) == []

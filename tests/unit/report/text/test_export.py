import csv
import io
import json
import re

from coordexp.report.study.study import Study
from coordexp.report.text.export import COLUMNS, latex_escape, to_csv, to_json, to_latex


def lines(study: Study) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(study))))


def test_csv_has_every_metric_of_every_run_and_a_line_for_a_run_without_any(bare: Study) -> None:
    found = lines(bare)
    assert tuple(found[0]) == COLUMNS
    by_run = {(row["group"], row["seed"], row["metric"]): row for row in found}
    assert float(by_run["A", "0", "constrained/expected/AP"]["value"]) == 0.30
    assert by_run["C", "1", ""]["state"] == "waiting"
    assert ("B", "1", "constrained/expected/AP") not in by_run
    total = sum(max(len(run.metrics), 1) for run in bare.data.runs)
    assert len(found) == total


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
    kinds = {row["kind"] for row in found}
    assert kinds == {"group", "seed", "pair", "convergence"}
    assert sum(row["kind"] == "seed" for row in found) == 6


def test_json_holds_means_runs_statistics_and_fairness(paired: Study, bare: Study) -> None:
    whole = json.loads(to_json(bare))
    assert abs(whole["groups"]["A"]["mean"]["constrained/expected/AP"] - 0.31) < 1e-12
    assert whole["groups"]["B"]["runs"][1]["state"] == "failed"
    assert (whole["codec_ceiling"], whole["statistics"], whole["missing"][-1]) == (0.987, [], "nothing is here")
    whole = json.loads(to_json(paired))
    assert whole["verdict"] == paired.verdict
    assert whole["fairness"]["comparable"]
    assert {line["kind"] for line in whole["statistics"]} == {"group", "seed", "pair", "convergence"}


def test_latex_is_escaped_and_every_row_has_all_cells(paired: Study) -> None:
    assert latex_escape("50 % & a_b \\ {x} B<i> \u2212 1 #") == (
        r"50 \% \& a\_b \textbackslash{} \{x\} B$<$i$>$ $-$ 1 \#"
    )
    text = to_latex(paired)
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 4
    for table in text.split(r"\begin{tabular}{")[1:]:
        columns = len(table.partition("}")[0])
        rows = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert rows
        assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in rows} == {columns}
    assert not re.search(r"(?<!\\)%", "\n".join(text.splitlines()[3:]))


def test_without_statistics_latex_falls_back_to_the_table_of_seeds(bare: Study) -> None:
    assert r"\caption{Average precision, constrained decoding}" in to_latex(bare)

"""A study -> CSV, JSON or LaTeX, with every number."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from statistics import fmean

from coordexp.files import JsonValue
from coordexp.report.study.data import RunData
from coordexp.report.study.study import Study
from coordexp.report.text.comparison_tables import MINUS, study_tables
from coordexp.report.text.notes import codec_ceiling, notes
from coordexp.report.text.tables import Table, tables
from coordexp.statistics.results import Comparison, Convergence, Estimate
from coordexp.tracking.connection import without_secrets

COLUMNS = (
    "experiment", "kind", "group", "against", "seed", "state", "step", "run_id", "metric", "value", "low", "high",
    "p_swap", "p_bootstrap", "p_holm", "image_std", "seed_std", "detectable", "num_images", "resamples", "message",
)  # fmt: skip
_Cell = str | int | float | None


def to_csv(study: Study) -> str:
    """Return one number a line; what is undefined is empty.

    ``kind`` is ``run`` (the last value of a metric of a run), ``group`` and ``seed`` (with intervals), ``pair``
    (a difference, ``group`` minus ``against``) or ``convergence``.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line in _lines(study):
        cells = {name: "" if value is None else value for name, value in line.items()}
        writer.writerow([study.data.name, *(cells.get(name, "") for name in COLUMNS[1:])])
    return out.getvalue()


def to_json(study: Study) -> str:
    """Return the runs by group with means over seeds, the statistics and the fairness table, as JSON."""
    data = study.data
    groups = {
        group: {"mean": _means(runs), "runs": [_run_json(run) for run in runs]} for group, runs in data.groups.items()
    }
    whole = {
        "experiment": data.name,
        "uri": without_secrets(data.uri),
        "verdict": study.verdict,
        "codec_ceiling": codec_ceiling(data),
        "groups": groups,
        "statistics": [line for line in _lines(study) if line["kind"] != "run"],
        "fairness": None if study.fairness is None else _fairness_json(study),
        "missing": list(study.missing),
        "notes": notes(data),
    }
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_latex(study: Study) -> str:
    """Return the tables for a paper that uses the package booktabs, each with its caption above."""
    found = study_tables(study) or tables(study.data)[:1]
    head = f"% {study.data.name}: {study.verdict or 'nothing to compare yet'}".replace("\n", " ")
    return "\n\n".join([head, "% \\usepackage{booktabs}", *(_latex_table(table) for table in found)]) + "\n"


def latex_escape(text: str) -> str:
    """Return text with LaTeX's special characters escaped, a minus sign in math mode."""
    special = {
        "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", MINUS: "$-$",
    }  # fmt: skip
    return "".join(special.get(letter, letter) for letter in text)


def _latex_table(table: Table) -> str:
    columns = "".join("l" if table.is_text(head) else "r" for head in table.columns)
    lines = [" & ".join(map(latex_escape, table.columns))]
    body = [" & ".join(map(latex_escape, row.cells)) for row in table.rows]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex_escape(table.title)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            *(line + r" \\" for line in lines),
            r"\midrule",
            *(line + r" \\" for line in body),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _lines(study: Study) -> Iterator[dict[str, _Cell]]:
    for run in study.data.runs:
        lead: dict[str, _Cell] = {
            "kind": "run",
            "group": run.group,
            "seed": run.seed,
            "state": run.state,
            "step": run.step,
            "run_id": run.run_id,
            "message": run.message or None,
        }
        # A run without numbers is still a line: it says where it stands.
        for name, value in sorted(run.metrics.items()) or [(None, None)]:
            yield lead | {"metric": name, "value": value}
    if study.comparison is not None:
        yield from _comparison_lines(study.comparison)
    if study.convergence is not None:
        yield from _convergence_lines(study.convergence)


def _comparison_lines(comparison: Comparison) -> Iterator[dict[str, _Cell]]:
    common: dict[str, _Cell] = {
        "metric": comparison.metric,
        "num_images": comparison.num_images,
        "resamples": comparison.resamples,
    }
    for group in comparison.groups:
        yield common | {"kind": "group", "group": group} | _estimate(comparison.value[group])
        for seed, estimate in comparison.value_by_seed[group].items():
            yield common | {"kind": "seed", "group": group, "seed": seed} | _estimate(estimate)
    for pair in comparison.pairs:
        tests: dict[str, _Cell] = {
            "p_swap": pair.p_swap,
            "p_bootstrap": pair.p_bootstrap,
            "p_holm": pair.p_holm,
            "image_std": pair.image_std,
            "seed_std": pair.seed_std,
            "detectable": pair.detectable,
        }
        yield common | {"kind": "pair", "group": pair.a, "against": pair.b} | _estimate(pair.difference) | tests


def _convergence_lines(convergence: Convergence) -> Iterator[dict[str, _Cell]]:
    def line(group: str, metric: str, estimate: Estimate | None, against: str | None = None) -> dict[str, _Cell]:
        found = _estimate(estimate) if estimate is not None else {}
        return {"kind": "convergence", "group": group, "against": against, "metric": metric} | found

    for group, points in convergence.curves.items():
        for point in points:
            yield line(group, "AP_subset", point.metric) | {"step": point.step}
    for group, estimate in convergence.area.items():
        yield line(group, "area", estimate)
    for (a, b), estimate in convergence.area_difference.items():
        yield line(a, "area", estimate, b)
    for fraction, groups in convergence.steps_to.items():
        for group, found in groups.items():
            yield line(group, f"steps_to_{fraction:g}", found)
    for fraction, pairs in convergence.steps_to_difference.items():
        for (a, b), estimate in pairs.items():
            yield line(a, f"steps_to_{fraction:g}", estimate, b)


def _estimate(estimate: Estimate) -> dict[str, _Cell]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def _means(runs: Sequence[RunData]) -> dict[str, float]:
    names = sorted({name for run in runs for name in run.metrics})
    return {name: fmean(run.metrics[name] for run in runs if name in run.metrics) for name in names}


def _run_json(run: RunData) -> dict[str, JsonValue]:
    metrics: dict[str, JsonValue] = dict(run.metrics)
    return {
        "seed": run.seed,
        "state": run.state,
        "step": run.step,
        "message": run.message,
        "run_id": run.run_id,
        "metrics": metrics,
    }


def _fairness_json(study: Study) -> dict[str, object]:
    assert study.fairness is not None
    return {
        "comparable": study.fairness.comparable,
        "factor": list(study.fairness.factor),
        "differences": [
            {"key": row.key, "declared": row.declared, "values": dict(row.values)} for row in study.fairness.rows
        ],
        "without_fingerprint": list(study.fairness.unchecked),
    }

"""Writes the two tables of ``README.md`` from the code and the alerts: ``python dashboards/tables.py``."""

import re
from pathlib import Path

import yaml

from coordexp.cluster.gauges import EXPORTED, RUN_LABELS

FOLDER = Path(__file__).parent
README = FOLDER / "README.md"
ALERTS = FOLDER / "prometheus" / "alerts.yml"


def with_tables(text: str) -> str:
    """Return the README with its tables as they should be."""
    return _between(_between(text, "metrics", metric_table()), "alerts", alert_table())


def metric_table() -> str:
    """Return a row for each exported metric."""
    lines = ["| metric in Prometheus | further labels | what |", "|---|---|---|"]
    for metric in EXPORTED.values():
        is_of_run = set(RUN_LABELS) <= set(metric.labels)
        further = [f"`{label}`" for label in metric.labels if label not in RUN_LABELS]
        labels = ", ".join(further) if is_of_run else ", ".join(["`experiment` alone", *further])
        lines.append(f"| `ray_{metric.name}` | {labels} | {metric.description} |")
    return "\n".join(lines)


def alert_table() -> str:
    """Return a row for each alert."""
    lines = ["| alert | severity | what it means | runbook |", "|---|---|---|---|"]
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    for rule in (rule for group in groups for rule in group["rules"] if "alert" in rule):
        notes = rule["annotations"]
        severity, anchor = rule["labels"]["severity"], notes["runbook"].partition("#")[2]
        lines.append(f"| `{rule['alert']}` | {severity} | {notes['description']} | `{anchor}` |")
    return "\n".join(lines)


def _between(text: str, name: str, table: str) -> str:
    marks = f"<!-- {name}: python dashboards/tables.py -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(marks[0])}.*?{re.escape(marks[1])}", re.DOTALL)
    new, found = pattern.subn(lambda _: f"{marks[0]}\n{table}\n{marks[1]}", text)
    if found != 1:
        raise ValueError(f"{README}: found {found} tables between {marks[0]} and {marks[1]}, expected one")
    return new


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text(encoding="utf-8")), encoding="utf-8")

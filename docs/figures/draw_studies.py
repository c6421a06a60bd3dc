"""Draws ``studies.svg``: AP of each group on drawn shapes, from few to many, and on photographs, from ``results/``.

``python docs/figures/draw_studies.py`` writes it beside this file.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coordexp.files import write_text
from coordexp.report.charts.panels import Row, row_chart
from coordexp.report.figures import LOOKS, write_charts
from coordexp.statistics.results import Estimate

FOLDER = Path(__file__).parent
FIGURE = FOLDER / "studies.svg"
_RESULTS = FOLDER.parents[1] / "results"
# Folder -> name in the legend.
_STUDIES = {
    "shapes": "shapes, 300 steps, 5 seeds",
    "amount_4": "more shapes, 1,200 steps, 3 seeds",
    "amount_16": "more shapes, 4,800 steps, 3 seeds",
    "photographs": "photographs, 1,200 steps, 3 seeds",
}
_GROUPS = ("A", "B", "C", "D", "C_D", "B_gate")


def figure() -> str:
    """Return the figure as SVG."""
    looks = dict(zip(_STUDIES.values(), LOOKS, strict=False))
    groups_by_study = {name: _groups_of(study) for study, name in _STUDIES.items()}
    rows: list[Row] = []
    for group in _GROUPS:
        estimates = {name: _estimate(groups.get(group)) for name, groups in groups_by_study.items()}
        values = [f"{estimate.value:.3f}" if estimate else "not run" for estimate in estimates.values()]
        marks = [(name, looks[name], estimate) for name, estimate in estimates.items()]
        rows.append(Row(group, ", ".join(values), marks))
    chart = row_chart("AP of each group, 95 % intervals", rows, x="AP", xlim=(0.0, None))
    with TemporaryDirectory() as scratch:
        _, svg_path = write_charts([chart], Path(scratch) / FIGURE.stem, title="Four studies", looks=looks)
        return svg_path.read_text(encoding="utf-8")


def _groups_of(study: str) -> dict[str, dict[str, Any]]:
    return json.loads((_RESULTS / study / "numbers.json").read_bytes())["groups"]


def _estimate(group: dict[str, Any] | None) -> Estimate | None:
    if group is None:
        return None
    low, high = group["interval"]
    return Estimate(group["AP"], low, high)


if __name__ == "__main__":
    write_text(FIGURE, figure())

"""Plots for papers and slides, each as PNG and as SVG: losses, AP, differences, IoU, calibration."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from coordexp.metrics import HEADLINE, SUBSET_HEADLINE, loss_head
from coordexp.report.charts.figures import group_styles
from coordexp.report.study.data import ExperimentData, RunData
from coordexp.report.study.study import Study
from coordexp.report.text.comparison_tables import pair_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart with any colour vision.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_SEED_STYLES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D")
_TITLES = {
    "total_loss": "total loss (its terms differ between groups)",
    "text_loss": "text cross-entropy",
    "coord_loss": "geometric loss of expected boxes",
    "coord_ce_loss": "cross-entropy of coord tokens",
}


def write_plots(study: Study, output: Path) -> list[Path]:
    """Write the plots there is data for, and return their paths.

    Args:
        study: what was found out.
        output: an existing directory.
    """
    drawn: dict[str, Callable[[Study], Figure]] = {"losses": _losses, "ap": _average_precision}
    if study.comparison is not None and study.comparison.pairs:
        drawn["differences"] = _differences
    if any(part.iou is not None for part in study.breakdowns.values()):
        drawn["iou"] = _ious
    if any(part.calibration for part in study.breakdowns.values()):
        drawn["calibration"] = _calibration
    return [path for name, draw in drawn.items() for path in save_figure(draw(study), output / name)]


def _losses(study: Study) -> "Figure":
    from matplotlib.figure import Figure

    data = study.data
    num_rows = -(-len(data.loss_names) // 2)
    figure = Figure(figsize=(12, 4 * num_rows), layout="constrained")
    figure.suptitle(_plain(f"{data.name}: losses in training (lines) and on validation images (points)"))
    for place, name in enumerate(data.loss_names, start=1):
        axes = figure.add_subplot(num_rows, 2, place)
        for index, runs in enumerate(data.groups.values()):
            for run in runs:
                _line(axes, run, f"train_{name}", color=_color(index), style=_style(data, run), label=_plain(run.name))
                _dots(axes, run, f"eval_{name}", color=_color(index))
        axes.set_title(_TITLES.get(name, f"loss term {loss_head(name)}"), fontsize=10)
        axes.set_xlabel("optimizer step")
        _finish(axes)
    return figure


def _average_precision(study: Study) -> "Figure":
    data = study.data
    figure, axes = _single(
        f"{data.name}: AP of expected boxes, constrained decoding\n"
        "lines: a subset during training; stars: the whole validation split at the end"
    )
    for index, (group, runs) in enumerate(data.groups.items()):
        _bands(axes, study, group, _color(index))
        for run in runs:
            label = _plain(run.name)
            _line(axes, run, SUBSET_HEADLINE, color=_color(index), style=_style(data, run), label=label, marker="o")
            if HEADLINE in run.metrics:
                label = None if SUBSET_HEADLINE in run.curves else label
                value = run.metrics[HEADLINE]
                color = _color(index)
                axes.plot([run.step], [value], "*", markersize=14, color=color, label=label, markeredgecolor="w")
    axes.set_ylabel("AP")
    axes.set_xlabel("optimizer step")
    _finish(axes)
    axes.set_xlim(left=0)
    axes.set_ylim(0, max(0.1, *_tops(data)) * 1.08)
    return figure


def _bands(axes: "Axes", study: Study, group: str, color: str) -> None:
    """Shade the 95 % intervals of the subset's AP."""
    points = study.convergence.curves.get(group, ()) if study.convergence is not None else ()
    known = [
        (point.step, point.metric.low, point.metric.high)
        for point in points
        if point.metric.low is not None and point.metric.high is not None
    ]
    if known:
        steps, lows, highs = zip(*known, strict=True)
        axes.fill_between(steps, lows, highs, color=color, alpha=0.15, linewidth=0)


def _differences(study: Study) -> "Figure":
    assert study.comparison is not None
    figure, axes = _single(f"{study.data.name}: differences of {study.comparison.metric}, 95 % intervals")
    names: list[str] = []
    for row, pair in enumerate(study.comparison.pairs):
        names.append(_plain(pair_name(pair)))
        low, high = pair.difference.low, pair.difference.high
        if low is not None and high is not None:
            axes.plot([low, high], [row, row], color="black", linewidth=1.6)
        axes.plot([pair.difference.value], [row], "o", color="black", markersize=7)
    axes.axvline(0, color="gray", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(f"difference of {study.comparison.metric}")
    axes.grid(visible=True, axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _ious(study: Study) -> "Figure":
    figure, axes = _single(f"{study.data.name}: IoU of matched pairs")
    numbers = group_styles(study)
    for group, part in study.breakdowns.items():
        if part.iou is not None:
            color, label = _color(numbers[group]), _plain(group)
            axes.stairs(part.iou.fractions, part.iou.edges, color=color, label=label, linewidth=1.6)
    axes.set_xlabel("IoU")
    axes.set_ylabel("fraction of pairs")
    _finish(axes)
    return figure


def _calibration(study: Study) -> "Figure":
    figure, axes = _single(f"{study.data.name}: calibration of the score")
    axes.plot([0, 1], [0, 1], color="gray", linestyle="--", linewidth=1)
    numbers = group_styles(study)
    for group, part in study.breakdowns.items():
        if part.calibration:
            index = numbers[group]
            scores, shares = zip(*part.calibration, strict=True)
            marker = _MARKERS[index % len(_MARKERS)]
            axes.plot(scores, shares, marker=marker, color=_color(index), label=_plain(group), linewidth=1.3)
    axes.set_xlabel("mean score")
    axes.set_ylabel("share correct at IoU .50")
    _finish(axes)
    return figure


def _single(title: str) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(_plain(title), fontsize=11)
    return figure, axes


def _tops(data: ExperimentData) -> Iterable[float]:
    finals = [run.metrics.get(HEADLINE, 0.0) for run in data.runs]
    return finals + [point.value for run in data.runs for point in run.curves.get(SUBSET_HEADLINE, ())]


def _line(
    axes: "Axes", run: RunData, name: str, *, color: str, style: str, label: str, marker: str | None = None
) -> None:
    points = run.curves.get(name, ())
    if points:
        # A single point draws no line.
        marker = "o" if len(points) == 1 else marker
        steps, values = [point.step for point in points], [point.value for point in points]
        axes.plot(steps, values, style, color=color, label=label, linewidth=1.3, marker=marker, markersize=4)


def _dots(axes: "Axes", run: RunData, name: str, *, color: str) -> None:
    points = run.curves.get(name, ())
    axes.plot([point.step for point in points], [point.value for point in points], "o", color=color, markersize=5)


def _finish(axes: "Axes") -> None:
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False)
    else:
        axes.text(0.5, 0.5, "nothing logged yet", ha="center", va="center", transform=axes.transAxes, color="gray")


def _plain(text: str) -> str:
    """Keep dollar signs from being taken for mathematics."""
    return text.replace("$", r"\$")


def _color(index: int) -> str:
    return _COLORS[index % len(_COLORS)]


def _style(data: ExperimentData, run: RunData) -> str:
    seeds = sorted({item.seed for item in data.runs})
    return _SEED_STYLES[seeds.index(run.seed) % len(_SEED_STYLES)]


def save_figure(figure: "Figure", stem: Path) -> list[Path]:
    """Write ``stem.png`` and ``stem.svg``, each under another name first: a reader sees a whole picture."""
    import matplotlib

    paths: list[Path] = []
    for form in ("png", "svg"):
        path = stem.with_name(f"{stem.name}.{form}")
        building = path.with_name(f".{path.name}.tmp")
        # Without a date and random ids the same numbers give the same file.
        with matplotlib.rc_context({"svg.hashsalt": "coordexp"}):
            figure.savefig(building, dpi=120, format=form, metadata={"Date": None} if form == "svg" else None)
        # The layout of the first serves the second.
        figure.set_layout_engine("none")
        building.replace(path)
        paths.append(path)
    return paths

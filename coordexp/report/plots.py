"""Loss curves and AP over steps as PNG files."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from coordexp.metrics import LOSS_NAMES, detection_metric
from coordexp.report.load import ExperimentData, RunData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart with any colour vision.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_SEED_STYLES = ("-", "--", ":", "-.")
_TITLES = {
    "total_loss": "total loss (its terms differ between groups)",
    "text_loss": "text cross-entropy",
    "coord_loss": "geometric loss of expected boxes",
    "coord_ce_loss": "cross-entropy of coord tokens",
}
_SUBSET_AP = detection_metric("constrained", "expected", "AP", subset=True)
_FINAL_AP = detection_metric("constrained", "expected", "AP")


def write_plots(data: ExperimentData, output: Path) -> list[Path]:
    """Write ``losses.png`` and ``ap.png`` and return their paths.

    Args:
        data: the experiment.
        output: an existing directory.
    """
    return [_save(_losses(data), output / "losses.png"), _save(_average_precision(data), output / "ap.png")]


def _losses(data: ExperimentData) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    figure.suptitle(f"{data.name}: losses in training (lines) and on validation images (points)")
    for axes, name in zip(figure.subplots(2, 2).flat, LOSS_NAMES, strict=True):
        for index, runs in enumerate(data.groups.values()):
            for run in runs:
                _line(axes, run, f"train_{name}", color=_color(index), style=_style(data, run), label=run.name)
                _dots(axes, run, f"eval_{name}", color=_color(index))
        axes.set_title(_TITLES[name], fontsize=10)
        _finish(axes)
    return figure


def _average_precision(data: ExperimentData) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(
        f"{data.name}: AP of expected boxes, constrained decoding\n"
        "lines: a subset during training; stars: the whole validation split at the end",
        fontsize=11,
    )
    for index, runs in enumerate(data.groups.values()):
        for run in runs:
            _line(axes, run, _SUBSET_AP, color=_color(index), style=_style(data, run), label=run.name, marker="o")
            if _FINAL_AP in run.metrics:
                final = run.metrics[_FINAL_AP]
                label = None if _SUBSET_AP in run.curves else run.name
                axes.plot(
                    [run.step], [final], "*", markersize=14, color=_color(index), label=label, markeredgecolor="w"
                )
    axes.set_ylabel("AP")
    _finish(axes)
    axes.set_xlim(left=0)
    axes.set_ylim(0, max(0.1, *_tops(data)) * 1.08)
    return figure


def _tops(data: ExperimentData) -> Iterable[float]:
    finals = [run.metrics.get(_FINAL_AP, 0.0) for run in data.runs]
    return finals + [point.value for run in data.runs for point in run.curves.get(_SUBSET_AP, ())]


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
    axes.set_xlabel("optimizer step")
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False)
    else:
        axes.text(0.5, 0.5, "nothing logged yet", ha="center", va="center", transform=axes.transAxes, color="gray")


def _color(index: int) -> str:
    return _COLORS[index % len(_COLORS)]


def _style(data: ExperimentData, run: RunData) -> str:
    seeds = sorted({item.seed for item in data.runs})
    return _SEED_STYLES[seeds.index(run.seed) % len(_SEED_STYLES)]


def _save(figure: "Figure", path: Path) -> Path:
    """Write under another name first: a reader sees a whole picture."""
    building = path.with_name(f".{path.name}.tmp")
    figure.savefig(building, dpi=120, format="png")
    building.replace(path)
    return path

"""The response of AP to the searched weights: a panel for each of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coordexp.report.figures import INK, PALETTE, SOFT, figure_style, inline_svg, new_figure, save_figure
from coordexp.sweep.results import TrialResult, Winner
from coordexp.sweep.schema import Parameter

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_FINISHED, _CHOSEN = PALETTE["c0"], PALETTE["c1"]


def write_response(
    name: str,
    space: Mapping[str, Parameter],
    trials: Sequence[TrialResult],
    ranked: Sequence[Winner],
    output: Path,
) -> tuple[list[Path], str]:
    """Draw the response as PNG and SVG; return their paths, and the same as an ``<svg>`` for the page.

    Args:
        name: of the sweep.
        space: the searched keys.
        trials: all trials; those without an AP are left out.
        ranked: winners, the chosen one first.
        output: an existing directory.
    """
    seen = [trial for trial in trials if trial.ap is not None]
    with figure_style():
        figure = new_figure(300 * len(space) + 230, 360)
        figure.suptitle(f"{name}: AP on the tuning split", fontsize=12, color=INK)
        panels = figure.subplots(1, len(space), squeeze=False)[0]
        for axes, (key, parameter) in zip(panels, space.items(), strict=True):
            _curve(axes, key, seen, ranked, joined=len(space) == 1)
            axes.set_xscale(parameter.scale)
            _name(axes.xaxis, key, parameter)
        panels[0].set_ylabel("AP, constrained decoding")
        panels[0].legend(fontsize=9)
        for axes in panels if not seen else ():
            axes.text(0.5, 0.5, "no AP yet", ha="center", va="center", transform=axes.transAxes, color=SOFT)
        paths = save_figure(figure, output / "response")
        return paths, inline_svg(figure, label="AP against the searched weights; the same numbers are in the tables")


def _curve(axes: "Axes", key: str, seen: Sequence[TrialResult], ranked: Sequence[Winner], *, joined: bool) -> None:
    done = sorted((trial.point[key], trial.ap or 0.0) for trial in seen if trial.state == "finished")
    others = [(trial.point[key], trial.ap or 0.0) for trial in seen if trial.state != "finished"]
    form = "o-" if joined else "o"
    axes.plot([x for x, _ in done], [y for _, y in done], form, color=_FINISHED, label="every step done", linewidth=1.3)
    if others:
        label = "stopped early: the last AP, on a subset"
        axes.plot([x for x, _ in others], [y for _, y in others], "x", color=SOFT, label=label)
    for winner in ranked:
        if winner.aps and winner.mean is not None:
            label = "further seeds: mean and standard deviation" if winner is ranked[0] else None
            at = [winner.point[key]], [winner.mean]
            axes.errorbar(*at, yerr=winner.spread, fmt="D", color=_CHOSEN, capsize=4, label=label)
    axes.grid(visible=True)


def _name(axis: "Axis", key: str, parameter: Parameter) -> None:
    """Name an axis, and write 0.1 on it and not a power of ten, and listed values where they are."""
    from matplotlib.ticker import NullFormatter, NullLocator

    if parameter.values is not None:
        axis.set_ticks([float(value) for value in parameter.values])
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, position: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())
    axis.set_label_text(short(key) + (", log scale" if parameter.scale == "log" else ""))


def short(key: str) -> str:
    """Return ``lambda_coord`` of ``objective.lambda_coord``."""
    return key.rpartition(".")[2]

"""The response of AP to the searched weights: a curve of one, a surface of two, a panel each for more."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coordexp.report.charts.drawing import PALETTE
from coordexp.report.charts.output import figure_style, inline_svg, save_figure
from coordexp.sweep.results import TrialResult, Winner
from coordexp.sweep.schema import Parameter

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

_FINISHED, _OTHER, _CHOSEN, _INK, _PAPER = (PALETTE[name] for name in ("c0", "soft", "c1", "ink", "paper"))
_CELLS = 60


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
    from matplotlib.figure import Figure

    seen = [trial for trial in trials if trial.ap is not None]
    with figure_style():
        figure = Figure(figsize=(4.2 * max(1, len(space) if len(space) > 2 else 1) + 3.2, 5), layout="constrained")
        figure.suptitle(f"{name}: AP on the tuning split", fontsize=12, color=_INK)
        if len(space) == 2:
            _surface(figure, space, seen, ranked)
        else:
            panels = figure.subplots(1, len(space), squeeze=False, sharey=True)
            for axes, (key, parameter) in zip(panels[0], space.items(), strict=True):
                _curve(axes, key, parameter, seen, ranked, joined=len(space) == 1)
            panels[0][0].set_ylabel("AP, constrained decoding")
            panels[0][0].legend(fontsize=9)
        figure.patch.set_facecolor(_PAPER)
        paths = save_figure(figure, output / "response")
        return paths, inline_svg(figure, label="AP against the searched weights; the same numbers are in the tables")


def _curve(
    axes: "Axes",
    key: str,
    parameter: Parameter,
    seen: Sequence[TrialResult],
    ranked: Sequence[Winner],
    *,
    joined: bool,
) -> None:
    done = sorted(_points(key, seen, finished=True))
    others = _points(key, seen, finished=False)
    axes.plot(*_columns(done), "o-" if joined else "o", color=_FINISHED, label="every step done", linewidth=1.3)
    if others:
        axes.plot(*_columns(others), "x", color=_OTHER, label="stopped early: the last AP, on a subset")
    for index, winner in enumerate(ranked):
        if not winner.aps or winner.mean is None:
            continue
        label = "further seeds: mean and standard deviation" if index == 0 else None
        at = winner.point[key]
        axes.errorbar([at], [winner.mean], yerr=winner.spread, fmt="D", color=_CHOSEN, capsize=4, label=label)
    if parameter.scale == "log":
        axes.set_xscale("log")
        _plain_ticks(axes.xaxis, parameter)
    axes.set_xlabel(short(key) + (", log scale" if parameter.scale == "log" else ""))
    axes.grid(visible=True)
    if not seen:
        axes.text(0.5, 0.5, "no AP yet", ha="center", va="center", transform=axes.transAxes, color=_OTHER)


def _surface(
    figure: "Figure", space: Mapping[str, Parameter], seen: Sequence[TrialResult], ranked: Sequence[Winner]
) -> None:
    """Draw a heat map of the finished trials' AP, smoothed between the points, and the points themselves."""
    axes = figure.subplots()
    (x, x_parameter), (y, y_parameter) = space.items()
    log = x_parameter.scale == "log" or _is_spread(x_parameter), y_parameter.scale == "log" or _is_spread(y_parameter)
    done = [trial for trial in seen if trial.state == "finished"]
    if done:
        image = _heat(axes, (x, y), log, done)
        figure.colorbar(image, ax=axes, label="AP, every step done; between points an estimate")
    for trial in seen:
        finished = trial.state == "finished"
        axes.plot(
            [trial.point[x]], [trial.point[y]], "o" if finished else "x", markersize=6, markeredgecolor=_INK,
            markerfacecolor=_PAPER if finished else "none",
        )  # fmt: skip
    if ranked:
        point = ranked[0].point
        axes.plot(
            [point[x]], [point[y]], "D", markersize=12, markerfacecolor="none", markeredgecolor=_CHOSEN,
            markeredgewidth=2, label="chosen",
        )  # fmt: skip
    axes.plot([], [], "o", markerfacecolor=_PAPER, markeredgecolor=_INK, label="every step done")
    axes.plot([], [], "x", color=_INK, label="stopped early")
    if seen:
        axes.set_xscale("log" if log[0] else "linear")
        axes.set_yscale("log" if log[1] else "linear")
        for axis, parameter, is_log in zip((axes.xaxis, axes.yaxis), space.values(), log, strict=True):
            if is_log:
                _plain_ticks(axis, parameter)
    else:
        axes.text(0.5, 0.5, "no AP yet", ha="center", va="center", transform=axes.transAxes, color=_OTHER)
    axes.set_xlabel(short(x) + (", log scale" if log[0] else ""))
    axes.set_ylabel(short(y) + (", log scale" if log[1] else ""))
    axes.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)


def _heat(axes: "Axes", keys: tuple[str, str], log: tuple[bool, bool], done: Sequence[TrialResult]) -> "AxesImage":
    """Weigh the points by inverse squared distance, which invents no value beyond those seen."""
    points = np.array([[float(trial.point[key]) for key in keys] for trial in done])
    values = np.array([trial.ap for trial in done], dtype=float)
    scaled = np.where(log, np.log(np.where(log, points, 1.0)), points)
    low, high = scaled.min(axis=0), scaled.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    low, high = low - 0.06 * span, high + 0.06 * span
    grid_x, grid_y = np.linspace(low[0], high[0], _CELLS), np.linspace(low[1], high[1], _CELLS)
    mesh = np.stack(np.meshgrid(grid_x, grid_y), axis=-1)
    distance = (((mesh[:, :, None, :] - scaled) / span) ** 2).sum(axis=-1)
    weight = 1.0 / (distance + 1e-4)
    surface = (weight * values).sum(axis=-1) / weight.sum(axis=-1)
    ends = [np.exp(grid) if is_log else grid for grid, is_log in zip((grid_x, grid_y), log, strict=True)]
    return axes.pcolormesh(ends[0], ends[1], surface, shading="nearest", cmap="viridis", rasterized=True)  # pyright: ignore[reportReturnType]


def _plain_ticks(axis: "Axis", parameter: Parameter) -> None:
    """Write 0.1 and not a power of ten, and listed values where they are."""
    from matplotlib.ticker import NullFormatter, NullLocator

    if parameter.values is not None:
        axis.set_ticks([float(value) for value in parameter.values])
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, position: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def _is_spread(parameter: Parameter) -> bool:
    """Return whether listed values are spread over a decade or so: then they read better on a log axis."""
    values = parameter.values or ()
    return len(values) > 2 and min(values) > 0 and max(values) / min(values) >= 8


def _points(key: str, seen: Sequence[TrialResult], *, finished: bool) -> list[tuple[float, float]]:
    return [
        (trial.point[key], trial.ap)
        for trial in seen
        if trial.ap is not None and (trial.state == "finished") == finished
    ]


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def short(key: str) -> str:
    """Return ``lambda_coord`` of ``objective.lambda_coord``."""
    return key.rpartition(".")[2]

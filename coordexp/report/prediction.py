"""A picture with the boxes of a prediction, and beside it the distributions of their coordinates."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordexp.coord_tokens.bins import NUM_BINS
from coordexp.data.image_file import read_image
from coordexp.errors import plain
from coordexp.evaluate.distributions import UNITS, BinCurve
from coordexp.evaluate.predict import PredictedObject, Prediction
from coordexp.report.figures import INK, LOOKS, PAPER, SOFT, figure_style, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_SHOWN = 8
_COORDINATES = ("x1", "y1", "x2", "y2")
_UNIT = "bin (thousandths\nof the side)"
_PICTURE_PX, _ROW_PX, _MAX_ROW_PX, _CURVE_PX = 420, 110, 240, 130
_HEADROOM = 1.25
_MIN_SPAN = 40  # bins
_LEAST = 0.01  # of the likeliest bin: what is below need not be drawn


def draw_prediction(prediction: Prediction, stem: Path) -> list[Path]:
    """Write ``stem.png`` and ``stem.svg``, and return both.

    Boxes of the means are drawn in full, those of the most likely bins dashed. Each of the first eight objects has a
    row of four distributions, with both marked in the same way.
    """
    shown = [item for item in prediction.objects if item.distributions][:_MAX_SHOWN]
    width = _PICTURE_PX + (4 * _CURVE_PX + 30 if shown else 0)
    height = max(_PICTURE_PX * prediction.height / prediction.width, _ROW_PX * len(shown)) + 60
    with figure_style():
        figure = new_figure(width, height)
        left, right = figure.add_gridspec(1, 2, width_ratios=(_PICTURE_PX, width - _PICTURE_PX or 1))
        _draw_boxes(figure.add_subplot(left), prediction)
        if shown:
            row_px = min(height / len(shown), _MAX_ROW_PX)  # rows share the height of the picture
            rest = max(height - row_px * len(shown), 1)
            cells = right.subgridspec(len(shown) + 1, 4, height_ratios=[row_px] * len(shown) + [rest])
            for row, item in enumerate(shown):
                for column, curve in enumerate(item.distributions):
                    axes = figure.add_subplot(cells[row, column])
                    _draw_curve(axes, item, curve, at=column, color=LOOKS[row % len(LOOKS)].color)
                    if row == 0:
                        axes.set_title(_COORDINATES[column], loc="center")
                    if row == len(shown) - 1:
                        axes.set_xlabel(_UNIT, fontsize=8)
                    if column == 0:
                        name = f"{row + 1}  {plain(item.desc)}\nscore {item.score:.2f}"
                        axes.set_ylabel(name, rotation=0, ha="right", color=INK)
        return save_figure(figure, stem)


def _draw_boxes(axes: "Axes", prediction: Prediction) -> None:
    from matplotlib.patches import Rectangle

    axes.imshow(read_image(prediction.picture), extent=(0, prediction.width, prediction.height, 0))
    axes.set_axis_off()
    for number, item in enumerate(prediction.objects):
        color = LOOKS[number % len(LOOKS)].color
        for box, line in ((item.expected_px, "-"), (item.argmax_px, (0, (3, 2)))):
            x1, y1, x2, y2 = box
            style: dict[str, Any] = {"fill": False, "edgecolor": color, "linestyle": line, "linewidth": 1.6}
            axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, **style))
        paper = {"boxstyle": "square,pad=0.15", "facecolor": color, "edgecolor": "none"}
        axes.annotate(str(number + 1), item.expected_px[:2], color=PAPER, fontsize=10, va="top", bbox=paper)
    num = len(prediction.objects)
    count = f"{num or 'no'} object{'s' * (num > 1)}"
    axes.set_title(f"{count}; full: the mean, dashed: the most likely bin" if num else count, loc="left", fontsize=11)


def _draw_curve(axes: "Axes", item: PredictedObject, curve: BinCurve, *, at: int, color: str) -> None:
    bins = range(curve.start, curve.start + len(curve.units))
    probs = [unit / UNITS for unit in curve.units]
    mean = sum(k * p for k, p in zip(bins, probs, strict=True)) / (sum(probs) or 1.0)
    axes.fill_between(bins, probs, step="mid", color=color, alpha=0.35, linewidth=0)
    axes.step(bins, probs, where="mid", color=color, linewidth=1.2)
    axes.axvline(mean, color=INK, linewidth=1.2)
    axes.axvline(item.bins[at], color=INK, linewidth=1.2, linestyle=(0, (3, 2)))
    drawn = [k for k, p in zip(bins, probs, strict=True) if p > _LEAST * max(probs)]
    low, high = min(*drawn, item.bins[at]), max(*drawn, item.bins[at])
    room = max(0.08 * (high - low), (_MIN_SPAN - (high - low)) / 2)
    axes.set_xlim(max(-1.0, low - room), min(float(NUM_BINS), high + room))
    axes.set_ylim(0, max(probs, default=1.0) * _HEADROOM)
    axes.set_yticks([])
    axes.tick_params(labelsize=8, color=SOFT)
    axes.locator_params(axis="x", nbins=3)

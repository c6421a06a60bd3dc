"""Draws ``coordinate-distribution.svg``: one box of ``results/shapes`` as four distributions over bins.

``python docs/figures/draw.py`` writes it beside this file; light and dark follow the reader's own setting.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from coordexp.coord_tokens.bins import NUM_BINS, encode_array
from coordexp.detection.boxes import to_boxes_norm_xyxy
from coordexp.detection.ground_truth import GroundTruth, read_ground_truth
from coordexp.evaluate.distributions import UNITS, BinCurve, Distributions, ObjectCurves

FOLDER = Path(__file__).parent
FIGURE = FOLDER / "coordinate-distribution.svg"
RESULTS = FOLDER.parents[1] / "results" / "shapes"
GROUP, IMAGE = "C", 22  # an object whose two readings can be told apart by eye

_SIZE, _LEFT, _TOP = 264, 8, 34  # of the picture
_PLOT, _PLOT_LEFT, _ROW, _BAR = 400, 318, 66, 10  # of the distributions; a bar is ten bins
_STYLE = """
text { font: 12px 'DejaVu Sans', Verdana, Arial, sans-serif; fill: var(--ink) }
.soft { fill: var(--soft) } .bar { fill: var(--bar) } .paper { fill: var(--paper) }
.axis { stroke: var(--soft); stroke-width: 1 } .true { fill: var(--ink) }
.mean { stroke: var(--mean); stroke-width: 2; fill: none } .argmax { stroke: var(--argmax); stroke-width: 2;
  stroke-dasharray: 5 3; fill: none }
text.mean { fill: var(--mean); stroke: none } text.argmax { fill: var(--argmax); stroke: none }
svg { --ink: #16191d; --soft: #565d66; --bar: #aab3bd; --paper: #ffffff; --mean: #0072b2; --argmax: #c74e00 }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e6e9ed; --soft: #a2abb5; --bar: #5c6672; --paper: #0d1117; --mean: #56b4e9; --argmax: #ff9a4d }
}
"""


def figure() -> str:
    """Return the figure as SVG."""
    truth = read_ground_truth(RESULTS / "annotations.json.gz")
    written = Distributions.read(RESULTS / "distributions" / f"{GROUP}-s0.json.gz")
    found = next(image for image in written.images if image.image_id == IMAGE).objects[0]
    width, height = _PLOT_LEFT + _PLOT + 12, _TOP + 4 * _ROW + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<title>A {found.desc} of group {GROUP} as four distributions over {NUM_BINS} bins</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        *_picture(found, truth),
        *_distributions(found, _true_bins(truth, found.desc)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _picture(found: ObjectCurves, truth: GroundTruth) -> Iterator[str]:
    yield f'<text x="{_LEFT}" y="20">{found.desc}: the box it wrote</text>'
    yield f'<rect x="{_LEFT}" y="{_TOP}" width="{_SIZE}" height="{_SIZE}" fill="#d9dde2"/>'
    rows = np.flatnonzero(truth.image_ids == IMAGE)
    boxes = to_boxes_norm_xyxy(truth.boxes_px_xywh[rows], truth.sizes_of(truth.image_ids[rows]))
    for row, (x1, y1, x2, y2) in zip(rows.tolist(), boxes.tolist(), strict=True):
        colour, shape = truth.categories[int(truth.category_ids[row])].split()
        fill = {"yellow": "#e9c33c", "blue": "#4a78c8"}[colour]
        centre = f'cx="{_x((x1 + x2) / 2)}" cy="{_y((y1 + y2) / 2)}"'
        radii = f'rx="{(x2 - x1) / 2 * _SIZE:.1f}" ry="{(y2 - y1) / 2 * _SIZE:.1f}"'
        yield f'<ellipse {centre} {radii} fill="{fill}"/>' if shape == "circle" else _box((x1, y1, x2, y2), fill=fill)
    yield _box(tuple(k / NUM_BINS for k in found.bins), kind="argmax")
    yield _box(found.expected, kind="mean")


def _distributions(found: ObjectCurves, true_bins: list[int]) -> Iterator[str]:
    legend = _PLOT_LEFT
    for kind, words, wide in (("argmax", "argmax: the likeliest bin", 172), ("mean", "mean: the expected box", 160)):
        yield f'<path class="{kind}" d="M {legend} 16 h 22"/><text x="{legend + 28}" y="20">{words}</text>'
        legend += wide + 28
    for row, name in enumerate(("x1", "y1", "x2", "y2")):
        base = _TOP + (row + 1) * _ROW - 16
        bars = _in_bars(found.curves[row])
        for place in np.flatnonzero(bars).tolist():
            tall = bars[place] / bars.max() * (_ROW - 30)
            left, wide = _PLOT_LEFT + place * _BAR / NUM_BINS * _PLOT, _BAR / NUM_BINS * _PLOT
            yield f'<rect class="bar" x="{left:.1f}" y="{base - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}"/>'
        yield f'<path class="axis" d="M {_PLOT_LEFT} {base} h {_PLOT}"/>'
        yield f'<text x="{_PLOT_LEFT - 24}" y="{base}">{name}</text>'
        mean, argmax, true = found.expected[row] * NUM_BINS, found.bins[row], true_bins[row]
        for kind, k in (("argmax", argmax), ("mean", mean)):
            yield f'<path class="{kind}" d="M {_PLOT_LEFT + k / NUM_BINS * _PLOT:.1f} {base} v {30 - _ROW}"/>'
        at = _PLOT_LEFT + true / NUM_BINS * _PLOT
        yield f'<path class="true" d="M {at:.1f} {base} l -4 7 h 8 z"/>'
        end, anchor = (_PLOT_LEFT + _PLOT, "end") if mean < NUM_BINS / 2 else (_PLOT_LEFT, "start")
        yield (
            f'<text x="{end}" y="{base - _ROW + 25}" text-anchor="{anchor}"><tspan class="soft">true {true},</tspan> '
            f"argmax {argmax}, mean {mean:.0f}</text>"
        )
    base = _TOP + 4 * _ROW + 12
    yield f'<text class="soft" x="{_PLOT_LEFT}" y="{base}">bin 0</text>'
    yield f'<text class="soft" x="{_PLOT_LEFT + _PLOT}" y="{base}" text-anchor="end">bin 999</text>'
    middle = _PLOT_LEFT + _PLOT / 2
    yield f'<text class="soft" x="{middle:.0f}" y="{base}" text-anchor="middle">&#9650; the true edge</text>'


def _in_bars(curve: BinCurve) -> np.ndarray:
    """Return the probability of each bar."""
    bins_K = np.zeros(NUM_BINS)
    bins_K[curve.start : curve.start + len(curve.units)] = np.array(curve.units) / UNITS
    return bins_K.reshape(-1, _BAR).sum(axis=1)


def _true_bins(truth: GroundTruth, desc: str) -> list[int]:
    names = [truth.categories[int(k)] for k in truth.category_ids]
    row = next(row for row, name in enumerate(names) if name == desc and truth.image_ids[row] == IMAGE)
    rows = slice(row, row + 1)
    corners = to_boxes_norm_xyxy(truth.boxes_px_xywh[rows], truth.sizes_of(truth.image_ids[rows]))[0]
    return encode_array(corners).tolist()


def _box(box: tuple[float, ...], *, kind: str = "", fill: str = "") -> str:
    x1, y1, x2, y2 = box
    look = f'fill="{fill}"' if fill else f'class="{kind}"'
    return f'<rect {look} x="{_x(x1)}" y="{_y(y1)}" width="{(x2 - x1) * _SIZE:.1f}" height="{(y2 - y1) * _SIZE:.1f}"/>'


def _x(fraction: float) -> str:
    return f"{_LEFT + fraction * _SIZE:.1f}"


def _y(fraction: float) -> str:
    return f"{_TOP + fraction * _SIZE:.1f}"


if __name__ == "__main__":
    FIGURE.write_text(figure(), encoding="utf-8")

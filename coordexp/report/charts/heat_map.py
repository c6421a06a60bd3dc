"""A map of counts as SVG text: the darker a cell, the more there is in it."""

import math
from collections.abc import Sequence
from html import escape

from coordexp.report.charts.svg import WIDTH, style_class

_LEFT, _TOP, _SIDE = 60, 6, 250


def heat_map(counts: Sequence[Sequence[int]], style: int | None, *, title: str, x: str, y: str) -> str:
    """Return a square map of counts over two fractions of the image side, both axes from 0 to 1.

    Args:
        counts: rows from the top of the vertical axis' low end, columns along ``x``; square.
        style: number of the group.
        title: what it shows.
        x: name of the horizontal axis.
        y: name of the vertical axis; 0 is at the bottom.
    """
    most = max((value for row in counts for value in row), default=0)
    side = _SIDE / max(len(counts), 1)
    cells: list[str] = []
    for i, row in enumerate(counts):
        top = _TOP + _SIDE - (i + 1) * side
        for j, value in enumerate(row):
            if value:
                # By the logarithm, or all but the diagonal would vanish.
                shade = 0.12 + 0.88 * math.log1p(value) / math.log1p(most)
                cells.append(
                    f'<rect class="cell" x="{_LEFT + j * side:.1f}" y="{top:.1f}" width="{side:.2f}" '
                    f'height="{side:.2f}" opacity="{shade:.2f}"/>'
                )
    bottom = _TOP + _SIDE
    frame = f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}"/>'
    diagonal = f'<line class="mark" x1="{_LEFT}" y1="{bottom}" x2="{_LEFT + _SIDE}" y2="{_TOP}"/>'
    labels = [
        f'<text class="tick mid" x="{_LEFT}" y="{bottom + 14}">0</text>',
        f'<text class="tick mid" x="{_LEFT + _SIDE}" y="{bottom + 14}">1</text>',
        f'<text class="tick mid" x="{_LEFT + _SIDE / 2}" y="{bottom + 16}">{escape(x)}</text>',
        f'<text class="tick end" x="{_LEFT - 6}" y="{bottom}">0</text>',
        f'<text class="tick end" x="{_LEFT - 6}" y="{_TOP + 10}">1</text>',
        f'<text class="tick end" x="{_LEFT - 6}" y="{_TOP + _SIDE / 2}">{escape(y)}</text>',
    ]
    body = f'<g class="{style_class(style)}">{"".join(cells)}</g>'
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {bottom + 22}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{frame}{body}{diagonal}{''.join(labels)}</svg>"
    )

"""Coord distributions as rows of small charts: one row for an edge of an object, one chart for each group."""

from collections.abc import Sequence
from dataclasses import dataclass

from coordexp.coord_tokens.bins import NUM_BINS
from coordexp.report.charts.figures import Figure, group_styles
from coordexp.report.charts.svg import Axis, Series, line_chart
from coordexp.report.study.distributions import CoordCurve, CoordCurves
from coordexp.report.study.study import Study

_HEIGHT = 170
_MARGIN_BINS = 20


@dataclass(frozen=True)
class CurveRow:
    """One edge of one object."""

    title: str
    figures: Sequence[Figure]


def curve_rows(study: Study) -> list[CurveRow]:
    """Return a row of charts for every chosen edge; the charts of a row share their axes."""
    styles = group_styles(study)
    return [_row(edge, styles) for edge in study.coord_curves]


def _row(edge: CoordCurves, styles: dict[str, int]) -> CurveRow:
    top = max(max(curve.probabilities) for curve in edge.by_group.values())
    low, high = _span(edge)
    truth = ((float(edge.true_bin), f"true bin {edge.true_bin}"),)
    x = Axis("coord bin", low, high, truth)
    y = Axis("probability", 0.0, top * 1.05)
    shown = [
        Figure(
            title=group,
            svg=line_chart(
                [_series(group, styles[group], curve, low, high)],
                title=f"{edge.coordinate} of {edge.desc} in image {edge.image_id}, group {group}",
                x=x,
                y=y,
                height=_HEIGHT,
            ),
            note=_note(curve, edge.true_bin),
        )
        for group, curve in edge.by_group.items()
    ]
    return CurveRow(f"{edge.coordinate} of {edge.desc}, image {edge.image_id}", shown)


def _series(group: str, style: int, curve: CoordCurve, low: float, high: float) -> Series:
    """Fill the bins that were left out with zero, and shade below the line."""
    kept = dict(zip(curve.bins, curve.probabilities, strict=True))
    points = [(float(k), kept.get(k, 0.0)) for k in range(int(low), int(high) + 1)]
    return Series(group, style, points, band=[(x, 0.0, y) for x, y in points])


def _span(edge: CoordCurves) -> tuple[float, float]:
    """Return the bins in which any group has mass worth seeing."""
    top = max(max(curve.probabilities) for curve in edge.by_group.values())
    seen = [
        k
        for curve in edge.by_group.values()
        for k, p in zip(curve.bins, curve.probabilities, strict=True)
        if p > top * 0.01
    ]
    seen.append(edge.true_bin)
    return float(max(min(seen) - _MARGIN_BINS, 0)), float(min(max(seen) + _MARGIN_BINS, NUM_BINS - 1))


def _note(curve: CoordCurve, true_bin: int) -> str:
    return f"mean {curve.expected:.0f}, mode {curve.mode}, true {true_bin}"

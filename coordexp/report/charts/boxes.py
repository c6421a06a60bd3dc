"""Charts of boxes: how well they fit, how sure a group is of them, where they are off, and AP of parts."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from coordexp.coord_tokens.bins import NUM_BINS
from coordexp.metrics import PLACES, SLOTS
from coordexp.report.charts.panels import DASHED, Line, Point, Row, line_chart, looks_of, row_chart
from coordexp.report.figures import INK, NEUTRAL, Chart, Look
from coordexp.report.study.boxes import ByLabel
from coordexp.report.study.examples import BinProbabilities, EdgeDistributions
from coordexp.report.study.study import Study
from coordexp.report.text.place_tables import place_name, place_value
from coordexp.report.text.tables import num_objects
from coordexp.statistics.results import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_ROWS, _MOST_MARKS = 24, 96
"""Of a chart by label: a row is as high as it has groups."""
_ROWS_OF_ONE_CHART, _ROWS_OF_SEVERAL = 6, 4
_PROBABLE = 0.01
"""Of the likeliest bin of any group: bins that are less likely do not widen a chart."""
_MARGIN_BINS = 20


def iou_charts(study: Study) -> list[Chart]:
    """Return how the IoU of matched pairs is distributed in each group."""
    looks = looks_of(study.data)
    lines: list[Line] = []
    counts: list[str] = []
    for group, breakdown in study.breakdowns.items():
        total = sum(breakdown.iou.counts)
        if not total:
            continue
        points: list[Point] = []
        for (low, high), count in zip(pairwise(breakdown.iou.edges), breakdown.iou.counts, strict=True):
            points += [Point(low, count / total), Point(high, count / total)]
        lines.append(Line(group, looks[group], points))
        counts.append(f"{group} {total:,}")
    if not lines:
        return []
    note = f"Only boxes that found an object, at IoU .1 or more: {', '.join(counts)} pairs."
    title = "IoU of matched pairs"
    return [line_chart(title, lines, x=title, y="fraction of pairs", xlim=(0.0, 1.0), note=note)]


def calibration_charts(study: Study) -> list[Chart]:
    """Return the share of right boxes by their score."""
    lines = _marked_lines(study, {group: breakdown.calibration for group, breakdown in study.breakdowns.items()})
    if not lines:
        return []
    diagonal = Line("score is precision", NEUTRAL, [Point(0.0, 0.0), Point(1.0, 1.0)])
    chart = line_chart(
        "Calibration",
        [diagonal, *lines],
        x="mean score",
        y="precision at IoU .50",
        xlim=(0.0, 1.0),
        top=1.0,
        note="On the diagonal, a score is the chance that the box is right.",
    )
    return [chart]


def box_charts(study: Study) -> list[Chart]:
    """Return what each group's boxes look like: IoU, calibration, width by error, and maps of coordinates."""
    charts = [*iou_charts(study), *calibration_charts(study)]
    widths = _marked_lines(study, {group: breakdown.width_by_error for group, breakdown in study.breakdowns.items()})
    if widths:
        title = "Width of the coordinate distribution by error"
        note = (
            "A group that knows where it is wrong rises to the right. "
            "Each point is at the middle of its range of errors; the last range is 200 to 1000."
        )
        x, y = "error of the coordinate, bins", "mean standard deviation, bins"
        charts.append(line_chart(title, widths, x=x, y=y, note=note))
    map_note = "All four coordinates of matched pairs; stronger is more, by the logarithm."
    looks = looks_of(study.data)
    for group, breakdown in study.breakdowns.items():
        if breakdown.maps:
            has_pairs = any(map(any, breakdown.maps))
            draw = _map_drawer(breakdown.maps, looks[group].color) if has_pairs else None
            charts.append(Chart(f"{group}: true and predicted coordinates", draw, map_note, height=300))
    return charts


def slot_charts(study: Study) -> list[Chart]:
    """Return how far each group's coordinates are off by slot and by rank, as its own reading takes them."""
    measures = {"argmax": "argmax_bin_mae", "expected": "expected_bin_mae"}
    looks = looks_of(study.data)
    lines: list[Line] = []
    for group, runs in study.data.groups.items():
        by_slot: list[Point] = []
        by_rank: list[Point] = []
        for number_of_place, place in enumerate(PLACES, start=1):
            error = place_value(runs, measures[runs[0].reading], place)
            if error is not None:
                (by_slot if place in SLOTS else by_rank).append(Point(number_of_place, error))
        # Two lines: slots and ranks are two ways to part the same coordinates.
        lines += [Line(group, looks[group], points, marked=True) for points in (by_slot, by_rank) if points]
    if not lines:
        return []
    note = (
        "Distance from the true bin, of the mean or of the likeliest bin as each group is read. On the left by slot of "
        "the box, on the right by rank of the object in its answer."
    )
    chart = line_chart(
        "Where coordinates are off",
        lines,
        x="slot of the box; rank of the object",
        y="bins off, mean",
        xlim=(0.6, 9.4),
        note=note,
        names=[place_name(place).removeprefix("rank ").replace(" and up", "+") for place in PLACES],
    )
    return [chart]


def breakdown_charts(study: Study) -> list[Chart]:
    """Return AP by number of objects in the image, by size, and by category."""
    looks = looks_of(study.data)
    by_count = {group: breakdown.by_count for group, breakdown in study.breakdowns.items()}
    by_size = {group: breakdown.by_size for group, breakdown in study.breakdowns.items()}
    by_category = {group: breakdown.by_category for group, breakdown in study.breakdowns.items()}
    return [
        *_charts_by_label("AP by number of objects in the image", by_count, looks),
        *_charts_by_label("AP by size of the object", by_size, looks),
        *_charts_by_label("AP by category", by_category, looks),
    ]


def edge_charts(edge: EdgeDistributions, looks: Mapping[str, Look]) -> list[Chart]:
    """Return the distributions of one coordinate, a chart for each group, each as high as its own likeliest bin."""
    bins = _shown_bins(edge)
    charts: list[Chart] = []
    for group, curve in edge.by_group.items():
        probabilities = dict(zip(curve.bins, curve.probabilities, strict=True))
        # What was left out of a distribution has no probability worth drawing.
        points = [Point(k, probabilities.get(k, 0.0), 0.0, probabilities.get(k, 0.0)) for k in bins]
        top = max(curve.probabilities) * 1.05
        line = Line(group, looks[group]._replace(line="-"), points)
        true_points = [Point(edge.true_bin, 0.0), Point(edge.true_bin, top)]
        truth = Line(f"true bin {edge.true_bin}", Look(INK, DASHED), true_points)
        chart = line_chart(
            group,
            [line, truth],
            x="coord bin",
            y="probability",
            xlim=(bins[0], bins[-1]),
            top=top,
            note=f"mean {curve.expected:.0f}, mode {curve.mode}, true {edge.true_bin}",
        )
        charts.append(chart._replace(height=170))
    return charts


def _shown_bins(edge: EdgeDistributions) -> range:
    """Return the bins that the charts of an edge span: those that are likely in any group, and the true one."""
    curves: Sequence[BinProbabilities] = list(edge.by_group.values())
    least = _PROBABLE * max(max(curve.probabilities) for curve in curves)
    likely = [edge.true_bin]
    for curve in curves:
        likely += [k for k, p in zip(curve.bins, curve.probabilities, strict=True) if p > least]
    return range(max(min(likely) - _MARGIN_BINS, 0), min(max(likely) + _MARGIN_BINS, NUM_BINS - 1) + 1)


def _marked_lines(study: Study, points_by_group: Mapping[str, Sequence[tuple[float, float]]]) -> list[Line]:
    looks = looks_of(study.data)
    lines: list[Line] = []
    for group, points in points_by_group.items():
        if points:
            lines.append(Line(group, looks[group], [Point(x, y) for x, y in points], marked=True))
    return lines


def _charts_by_label(title: str, parts: Mapping[str, ByLabel], looks: Mapping[str, Look]) -> list[Chart]:
    """Return AP of each label as rows of marks; many rows as charts of one scale and about one height, side by side."""
    rows, num_labels = _label_rows(parts, looks)
    note = f"The {len(rows)} of {num_labels} in which groups differ most." if len(rows) < num_labels else ""
    aps = [estimate.value for row in rows for _, _, estimate in row.marks if estimate is not None]
    highest = max(aps, default=0.0)
    xlim = (-0.02 * highest, highest * 1.05 or None)
    if not rows:
        return []
    num_charts = 1 if len(rows) <= _ROWS_OF_ONE_CHART else math.ceil(len(rows) / _ROWS_OF_SEVERAL)
    charts: list[Chart] = []
    for place in range(num_charts):
        first, end = place * len(rows) // num_charts, (place + 1) * len(rows) // num_charts
        name = title if num_charts == 1 else f"{title}, {place + 1} of {num_charts}"
        charts.append(row_chart(name, rows[first:end], x="AP", xlim=xlim, note=note))
    return charts


def _label_rows(parts: Mapping[str, ByLabel], looks: Mapping[str, Look]) -> tuple[list[Row], int]:
    """Return a row for each of the labels in which groups differ most, and how many labels there are with an AP."""
    num_gt: dict[str, int] = {}  # the same in all groups
    for by_label in parts.values():
        num_gt |= by_label.num_gt
    spread: dict[str, float] = {}
    for label in num_gt:
        aps = [by_label.ap.get(label) for by_label in parts.values()]
        defined_aps = [ap for ap in aps if ap is not None]
        if defined_aps:
            spread[label] = max(defined_aps) - min(defined_aps)
    most = min(_MOST_ROWS, max(1, _MOST_MARKS // max(1, len(parts))))
    chosen = set(sorted(spread, key=lambda label: -spread[label])[:most])

    rows: list[Row] = []
    for label in spread:
        if label not in chosen:
            continue
        marks: list[tuple[str, Look, Estimate | None]] = []
        for group, by_label in parts.items():
            ap = by_label.ap.get(label)
            marks.append((group, looks[group], None if ap is None else Estimate(ap)))
        rows.append(Row(label, num_objects(num_gt[label]), marks))
    return rows, len(spread)


def _map_drawer(counts: Sequence[Sequence[int]], color: str) -> "Callable[[Axes], None]":
    """Return what draws counts of true (up) and predicted (right) coordinates in shades of a colour."""

    def draw(axes: "Axes") -> None:
        import numpy as np
        from matplotlib.colors import LinearSegmentedColormap, to_rgba

        shades = LinearSegmentedColormap.from_list("shades", [(0.0, to_rgba(color, 0.0)), (1.0, to_rgba(color, 1.0))])
        shown = np.log1p(np.array(counts))  # else all but the diagonal would vanish
        axes.imshow(shown, origin="lower", extent=(0, 1, 0, 1), cmap=shades, interpolation="none")
        axes.plot([0, 1], [0, 1], color=INK, linewidth=1.2, linestyle=DASHED)
        axes.set(xlabel="predicted", ylabel="true", xticks=[0, 1], yticks=[0, 1])

    return draw

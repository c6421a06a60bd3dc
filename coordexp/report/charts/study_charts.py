"""The charts of a study: what is drawn and how it is called."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Literal

from coordexp.coord_tokens.bins import NUM_BINS
from coordexp.metrics import loss_head, subset_headline
from coordexp.report.charts.drawing import AxisRange, Chart, ChartRow, HeatMap, LineChart, RowChart, RowMark, Series
from coordexp.report.charts.output import write_charts
from coordexp.report.study.better_first import better_first
from coordexp.report.study.data import ExperimentData, RunData
from coordexp.report.study.distributions import BinProbabilities, EdgeDistributions
from coordexp.report.study.study import Study
from coordexp.report.text.tables import interval, num_objects, pair_name, written
from coordexp.statistics.results import Estimate

LOSS_TITLES = {
    "total_loss": "Total loss (other terms in every group)",
    "text_loss": "Text cross-entropy",
    "coord_loss": "Geometric loss of expected boxes",
    "coord_ce_loss": "Cross-entropy of coord tokens",
}
_MAX_ROWS, _MAX_MARKS = 24, 96
_ROWS_OF_ONE_CHART, _ROWS_OF_A_PART = 6, 4
_MANY_PAIRS = 6
_WITH_LABELS = ("groups", "differences")  # whose rows say which group they are of
_BANDS = "Bands: lowest and highest seed."
_STARS = "Stars: all validation images, at the end."
_MARGIN_BINS = 20
_EDGE_HEIGHT = 170


def write_plots(study: Study, output: Path) -> list[Path]:
    """Write the charts of papers and slides that there is data for, each as PNG and SVG, and return their paths.

    Args:
        study: what was found out.
        output: an existing directory.
    """
    study, name, groups = better_first(study), study.data.name, group_numbers(study)
    found: dict[str, tuple[str, Sequence[Chart]]] = {
        "losses": (f"{name}: lines in training, marks on validation images", loss_charts(study)),
        "ap": (f"{name}: each group by its own reading, constrained decoding", ap_charts(study)),
        "groups": (name, group_charts(study)),
        "differences": (name, forest_charts(study)),
        "iou": (name, iou_charts(study)),
        "calibration": (name, calibration_charts(study)),
    }
    return [
        path
        for stem, (title, charts) in found.items()
        if charts
        for path in write_charts(
            charts, output / stem, title=title, groups={} if stem in ("groups", "differences") else groups
        )
    ]


def group_numbers(study: Study) -> dict[str, int]:
    """Return each group's number, which decides how it looks everywhere."""
    return {group: index for index, group in enumerate(study.data.groups)}


def ap_charts(study: Study) -> list[Chart]:
    """Return AP by each group's reading over steps, images and tokens, with bands where there are intervals."""
    if not study.data.trained:
        return []
    title, x, y = "AP on the subset", AxisRange("optimizer step", 0.0), AxisRange("AP", 0.0)
    stars = _final_points(study.data)
    note = f" {_STARS}" if stars else ""
    if study.convergence is None:
        lines = _mean_lines(study.data, lambda run: subset_headline(run.reading), marked=True)
        return [LineChart(title=title, series=[*lines, *stars], x=x, y=y, note=_BANDS + note)]
    numbers = group_numbers(study)
    series = [
        _estimate_line(group, numbers[group], [(float(point.step), point.metric) for point in points])
        for group, points in study.convergence.curves.items()
    ]
    first = LineChart(
        title=title, series=[*series, *stars], x=x, y=y, note=f"Bands: 95 % intervals over images and seeds.{note}"
    )
    others = (_at_equal(study, "num_images", "images"), _at_equal(study, "num_supervised_tokens", "supervised tokens"))
    return [first, *(chart for chart in others if chart is not None)]


def loss_charts(study: Study) -> list[Chart]:
    """Return the losses in training and on validation images."""
    charts: list[Chart] = []
    for name in study.data.loss_names if study.data.trained else ():
        lines = _mean_lines(study.data, lambda _, name=name: f"train_{name}")
        points = [
            replace(item, label=f"{item.label}, validation", band=(), joined=False)
            for item in _mean_lines(study.data, lambda _, name=name: f"eval_{name}", marked=True)
        ]
        title = LOSS_TITLES.get(name, f"Loss term {loss_head(name)}")
        if len(study.data.groups) == 1:
            title = title.partition(" (")[0]
        note = f"Means over seeds. {_BANDS}" if any(item.band for item in lines) else ""
        x, y = AxisRange("optimizer step", 0.0), AxisRange("loss")
        charts.append(LineChart(title=title, series=[*lines, *points], x=x, y=y, note=note))
    return charts


def gradient_charts(study: Study) -> list[Chart]:
    """Return the norms of the gradients before clipping, and the limit where all runs have one."""
    lines = _mean_lines(study.data, lambda _: "grad_norm")
    limits = {run.number("training.max_grad_norm") for run in study.data.runs}
    limit = limits.pop() if len(limits) == 1 else None
    end = max((x for item in lines for x, _ in item.points), default=0.0)
    if limit is not None and lines:
        lines.append(Series("limit", None, [(0.0, limit), (end, limit)]))
    x, y = AxisRange("optimizer step", 0.0), AxisRange("norm", 0.0)
    note = "Above the limit a step is scaled down to it."
    return [LineChart(title="Gradient norm before clipping", series=lines, x=x, y=y, note=note)] if lines else []


def group_charts(study: Study) -> list[Chart]:
    """Return each group's own reading with its interval, the highest first."""
    comparison = study.comparison
    if comparison is None:
        return []
    numbers = group_numbers(study)
    rows = [
        ChartRow(
            group,
            [RowMark(group, numbers[group], found.value, found.low, found.high)],
            note=f"{written(found.value)}  {interval(found)}",
        )
        for group, found in sorted(comparison.value.items(), key=lambda item: -item[1].value)
    ]
    num_seeds = max(map(len, comparison.seeds.values()))
    seeds = f", mean of {num_seeds} seeds" if num_seeds > 1 else ""
    title = f"{comparison.metric} on {comparison.num_images:,} images{seeds}, 95 % intervals"
    return [RowChart(title=title, rows=rows, x=AxisRange(comparison.metric, 0.0))]


def forest_charts(study: Study) -> list[Chart]:
    """Return the pairwise differences."""
    if study.comparison is None or not study.comparison.pairs:
        return []
    rows: list[ChartRow] = []
    for pair in study.comparison.pairs:
        found, name = pair.difference, pair_name(pair)
        mark = RowMark(name, None, found.value, found.low, found.high)
        rows.append(
            ChartRow(name, (mark,), note=f"{written(found.value, signed=True)}  {interval(found, signed=True)}")
        )
    title = f"Difference of {study.comparison.metric}, 95 % intervals"
    x = AxisRange(f"difference of {study.comparison.metric}")
    note = "Right of the line the group named first is higher; an interval across it leaves that open."
    return [RowChart(title=title, rows=rows, x=x, zero=True, note=note)]


def best_charts(study: Study) -> list[Chart]:
    """Return the pairwise differences, or where there are many those of the best group."""
    comparison = study.comparison
    if comparison is None or len(comparison.pairs) <= _MANY_PAIRS:
        return forest_charts(study)
    best = max(comparison.value, key=lambda group: comparison.value[group].value)
    pairs = tuple(pair for pair in comparison.pairs if best in (pair.a, pair.b))
    found = forest_charts(replace(study, comparison=replace(comparison, pairs=pairs)))
    more = f"The other {len(comparison.pairs) - len(pairs)} pairs are in the table."
    return [replace(chart, note=f"{chart.note} {more}") for chart in found]


def iou_charts(study: Study) -> list[Chart]:
    """Return the histogram of IoU."""
    numbers = group_numbers(study)
    ious = [(group, part.iou) for group, part in study.breakdowns.items() if part.iou is not None]
    series = [
        Series(
            group,
            numbers[group],
            [*zip(item.edges, item.fractions, strict=False), (item.edges[-1], item.fractions[-1])],
            steps=True,
        )
        for group, item in ious
    ]
    x, y = AxisRange("IoU of matched pairs", 0.0, 1.0), AxisRange("fraction of pairs", 0.0)
    counts = ", ".join(f"{group} {item.num:,}" for group, item in ious)
    note = f"Only boxes that found an object, at IoU .1 or more: {counts} pairs."
    return [LineChart(title="IoU of matched pairs", series=series, x=x, y=y, note=note)] if series else []


def calibration_charts(study: Study) -> list[Chart]:
    """Return precision by score."""
    numbers = group_numbers(study)
    series = [
        Series(group, numbers[group], part.calibration, marked=True)
        for group, part in study.breakdowns.items()
        if part.calibration
    ]
    diagonal = Series("score is precision", None, [(0.0, 0.0), (1.0, 1.0)])
    x, y = AxisRange("mean score", 0.0, 1.0), AxisRange("precision at IoU .50", 0.0, 1.0)
    note = "On the diagonal, a score is the chance that the box is right."
    return [LineChart(title="Calibration", series=[diagonal, *series], x=x, y=y, note=note)] if series else []


def box_charts(study: Study) -> list[Chart]:
    """Return what single boxes show: IoU, calibration, width of the distributions, true against predicted."""
    numbers = group_numbers(study)
    widths = [
        Series(group, numbers[group], part.width_by_error, marked=True)
        for group, part in study.breakdowns.items()
        if part.width_by_error
    ]
    charts = [*iou_charts(study), *calibration_charts(study)]
    if widths:
        note = (
            "A group that knows where it is wrong rises to the right. "
            "Each point stands in the middle of its range of errors; the last is 200 to 1000."
        )
        x, y = AxisRange("error of the coordinate, bins", 0.0), AxisRange("mean standard deviation, bins", 0.0)
        title = "Width of the coordinate distribution by error"
        charts.append(LineChart(title=title, series=widths, x=x, y=y, note=note))
    for group, part in study.breakdowns.items():
        if part.maps:
            title = f"{group}: true and predicted coordinates"
            note = "All four coordinates of matched pairs; stronger is more, by the logarithm."
            charts.append(
                HeatMap(title=title, counts=part.maps, group=numbers[group], x="predicted", y="true", note=note)
            )
    return charts


def breakdown_charts(study: Study) -> list[Chart]:
    """Return AP by number of objects, by size and by category."""
    parts = study.breakdowns
    if not parts:
        return []
    first, numbers = next(iter(parts.values())), group_numbers(study)
    by_count = {group: part.by_count for group, part in parts.items()}
    by_size = {group: part.by_size for group, part in parts.items()}
    by_category = {group: part.by_category for group, part in parts.items()}
    return [
        *_rows_by_label("AP by number of objects in the image", by_count, numbers, first.num_by_count),
        *_rows_by_label("AP by size of the object", by_size, numbers, first.num_by_size),
        *_rows_by_label("AP by category", by_category, numbers, first.num_by_category),
    ]


def edge_charts(edge: EdgeDistributions, numbers: Mapping[str, int]) -> list[Chart]:
    """Return the distributions of one coordinate, a chart for each group, each as high as its own likeliest bin."""
    top = max(max(curve.probabilities) for curve in edge.by_group.values())
    seen = [
        k
        for curve in edge.by_group.values()
        for k, p in zip(curve.bins, curve.probabilities, strict=True)
        if p > top * 0.01
    ]
    low = max(min(*seen, edge.true_bin) - _MARGIN_BINS, 0)
    high = min(max(*seen, edge.true_bin) + _MARGIN_BINS, NUM_BINS - 1)
    return [
        LineChart(
            title=group,
            series=[Series(group, numbers[group], _outline(curve, low, high), filled=True)],
            x=AxisRange("coord bin", low, high),
            y=AxisRange("probability", 0.0, max(curve.probabilities) * 1.05),
            marks=((edge.true_bin, f"true bin {edge.true_bin}"),),
            height=_EDGE_HEIGHT,
            note=f"mean {curve.expected:.0f}, mode {curve.mode}, true {edge.true_bin}",
        )
        for group, curve in edge.by_group.items()
    ]


def _outline(curve: BinProbabilities, low: int, high: int) -> list[tuple[float, float]]:
    """Return the curve with the bins that were left out at zero, without points on a level line."""
    kept = dict(zip(curve.bins, curve.probabilities, strict=True))
    points = [(float(k), kept.get(k, 0.0)) for k in range(low, high + 1)]
    inner = [
        point
        for before, point, after in zip(points, points[1:], points[2:], strict=False)
        if not before[1] == point[1] == after[1]
    ]
    return [points[0], *inner, points[-1]]


def _rows_by_label(
    title: str,
    parts: Mapping[str, Mapping[str, float | None]],
    numbers: Mapping[str, int],
    objects: Mapping[str, int],
) -> list[RowChart]:
    """Return rows of marks; many rows in charts of one scale and about one height, which stand beside each other."""
    spread: dict[str, float] = {}
    for label in dict.fromkeys(label for part in parts.values() for label in part):
        values = [value for part in parts.values() if (value := part.get(label)) is not None]
        if values:
            spread[label] = max(values) - min(values)
    most = min(_MAX_ROWS, max(1, _MAX_MARKS // max(1, len(parts))))  # a row is as high as it has groups
    chosen = set(sorted(spread, key=lambda label: -spread[label])[:most])
    rows = [
        ChartRow(
            label,
            [RowMark(group, numbers[group], part.get(label)) for group, part in parts.items()],
            note=num_objects(objects[label]),
        )
        for label in spread
        if label in chosen
    ]
    note = f"The {len(rows)} of {len(spread)} in which groups differ most." if len(rows) < len(spread) else ""
    values = [mark.value for row in rows for mark in row.marks if mark.value is not None]
    x = AxisRange("AP", 0.0, max(values, default=0.0) * 1.05 or None)
    num = 1 if len(rows) <= _ROWS_OF_ONE_CHART else math.ceil(len(rows) / _ROWS_OF_A_PART)
    return [
        RowChart(title=title if num == 1 else f"{title}, {at + 1} of {num}", rows=part, x=x, note=note)
        for at in range(num)
        if (part := rows[at * len(rows) // num : (at + 1) * len(rows) // num])
    ]


def _at_equal(study: Study, name: Literal["num_images", "num_supervised_tokens"], words: str) -> LineChart | None:
    """Return AP over what had been consumed, if that is known."""
    if study.convergence is None:
        return None
    numbers = group_numbers(study)
    series: list[Series] = []
    for group, points in study.convergence.curves.items():
        used = [(point.num_images if name == "num_images" else point.num_supervised_tokens, point) for point in points]
        known = [(count, point.metric) for count, point in used if count is not None]
        if known:
            series.append(_estimate_line(group, numbers[group], known))
    x, y = AxisRange(words, 0.0), AxisRange("AP", 0.0)
    return LineChart(title=f"The same over {words}", series=series, x=x, y=y) if series else None


def _estimate_line(group: str, number: int, points: Sequence[tuple[float, Estimate]]) -> Series:
    return Series(
        label=group,
        group=number,
        points=[(x, metric.value) for x, metric in points],
        band=[
            (x, metric.low, metric.high) for x, metric in points if metric.low is not None and metric.high is not None
        ],
        marked=True,
    )


def _mean_lines(data: ExperimentData, name_of: Callable[[RunData], str], *, marked: bool = False) -> list[Series]:
    """Return for each group the mean of a curve over seeds at each step, with the lowest and highest as band."""
    found: list[Series] = []
    for index, (group, runs) in enumerate(data.groups.items()):
        by_step: dict[int, list[float]] = {}
        for run in runs:
            for point in run.curves.get(name_of(run), ()):
                by_step.setdefault(point.step, []).append(point.value)
        points = [(float(step), fmean(values)) for step, values in sorted(by_step.items())]
        band = [(float(step), min(values), max(values)) for step, values in sorted(by_step.items())]
        several = any(len(values) > 1 for values in by_step.values())
        if points:
            found.append(Series(group, index, points, band=band if several else (), marked=marked))
    return found


def _final_points(data: ExperimentData) -> list[Series]:
    """Return AP on all validation images at the end, mean over seeds."""
    found: list[Series] = []
    for index, (group, runs) in enumerate(data.groups.items()):
        there = [run for run in runs if run.headline in run.metrics and run.foreign is None]
        ends = [(run.step, run.metrics[run.headline]) for run in there]
        if ends:
            at = (float(max(step for step, _ in ends)), fmean(ap for _, ap in ends))
            found.append(Series(f"{group}, all images", index, [at], marked=True, joined=False, marker="*"))
    return found

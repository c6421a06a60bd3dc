"""The charts of a study: what is drawn and how it is called."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from coordexp.coord_tokens.bins import NUM_BINS
from coordexp.metrics import loss_head, subset_headline
from coordexp.report.charts.drawing import Chart, Line, Look, Row, line_chart, map_chart, mark_at, row_chart
from coordexp.report.charts.output import write_charts
from coordexp.report.study.data import ExperimentData, RunData
from coordexp.report.study.examples import EdgeDistributions
from coordexp.report.study.study import Study, better_first
from coordexp.report.text.tables import interval, num_objects, pair_name, written
from coordexp.statistics.results import CurvePoint, Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOSS_TITLES = {
    "total_loss": "Total loss (other terms in every group)",
    "text_loss": "Text cross-entropy",
    "coord_loss": "Geometric loss of expected boxes",
    "coord_ce_loss": "Cross-entropy of coord tokens",
}
_MAX_ROWS, _MAX_MARKS = 24, 96
_ROWS_OF_ONE_CHART, _ROWS_OF_A_PART = 6, 4
_MANY_PAIRS = 6
_BANDS = "Bands: lowest and highest seed."
_STARS = "Stars: all validation images, at the end."
_MARGIN_BINS = 20


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
        # The rows of these two say which group they are of.
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
    title, stars = "AP on the subset", _final_points(study.data)
    note = f" {_STARS}" if stars else ""
    if study.convergence is None:
        lines = _mean_lines(study.data, lambda run: subset_headline(run.reading), marked=True)
        return [line_chart(title, [*lines, *stars], x="optimizer step", y="AP", note=_BANDS + note)]
    numbers, curves = group_numbers(study), study.convergence.curves

    def lines_over(used: Callable[[CurvePoint], float | None]) -> list[Line]:
        known = {
            group: [(x, point.metric) for point in points if (x := used(point)) is not None]
            for group, points in curves.items()
        }
        return [
            Line(
                group,
                numbers[group],
                [(x, metric.value) for x, metric in points],
                band=[(x, m.low, m.high) for x, m in points if m.low is not None and m.high is not None],
                marked=True,
            )
            for group, points in known.items()
            if points
        ]

    lines = [*lines_over(lambda point: float(point.step)), *stars]
    note = f"Bands: 95 % intervals over images and seeds.{note}"
    charts = [line_chart(title, lines, x="optimizer step", y="AP", note=note)]
    for words, lines in (
        ("images", lines_over(lambda point: point.num_images)),
        ("supervised tokens", lines_over(lambda point: point.num_supervised_tokens)),
    ):
        if lines:
            charts.append(line_chart(f"The same over {words}", lines, x=words, y="AP"))
    return charts


def loss_charts(study: Study) -> list[Chart]:
    """Return the losses in training and on validation images."""
    charts: list[Chart] = []
    for name in study.data.loss_names if study.data.trained else ():
        lines = _mean_lines(study.data, lambda _, name=name: f"train_{name}")
        points = [
            replace(line, label=f"{line.label}, validation", band=(), style={"linestyle": "none"})
            for line in _mean_lines(study.data, lambda _, name=name: f"eval_{name}", marked=True)
        ]
        title = LOSS_TITLES.get(name, f"Loss term {loss_head(name)}")
        if len(study.data.groups) == 1:
            title = title.partition(" (")[0]
        note = f"Means over seeds. {_BANDS}" if any(line.band for line in lines) else ""
        ylim = (None, None)
        charts.append(line_chart(title, [*lines, *points], x="optimizer step", y="loss", ylim=ylim, note=note))
    return charts


def gradient_charts(study: Study) -> list[Chart]:
    """Return the norms of the gradients before clipping, and the limit where all runs have one."""
    lines = _mean_lines(study.data, lambda _: "grad_norm")
    if not lines:
        return []
    limits = {run.number("training.max_grad_norm") for run in study.data.runs}
    limit = limits.pop() if len(limits) == 1 else None
    if limit is not None:
        lines.append(Line("limit", None, [(0.0, limit), (max(x for line in lines for x, _ in line.points), limit)]))
    note = "Above the limit a step is scaled down to it."
    return [line_chart("Gradient norm before clipping", lines, x="optimizer step", y="norm", note=note)]


def group_charts(study: Study) -> list[Chart]:
    """Return each group's own reading with its interval, the highest first."""
    comparison = study.comparison
    if comparison is None:
        return []
    numbers = group_numbers(study)
    rows = [
        Row(group, [(group, numbers[group], found)], f"{written(found.value)}  {interval(found)}")
        for group, found in sorted(comparison.value.items(), key=lambda item: -item[1].value)
    ]
    num_seeds = max(map(len, comparison.seeds.values()))
    seeds = f", mean of {num_seeds} seeds" if num_seeds > 1 else ""
    title = f"{comparison.metric} on {comparison.num_images:,} images{seeds}, 95 % intervals"
    return [row_chart(title, rows, x=comparison.metric, xlim=(0.0, None))]


def difference_row(label: str, name: str, found: Estimate) -> Row:
    """Return a row with a difference, which is of no group."""
    return Row(label, [(name, None, found)], f"{written(found.value, signed=True)}  {interval(found, signed=True)}")


def forest_charts(study: Study) -> list[Chart]:
    """Return the pairwise differences."""
    if study.comparison is None or not study.comparison.pairs:
        return []
    rows = [difference_row(pair_name(pair), pair_name(pair), pair.difference) for pair in study.comparison.pairs]
    metric = study.comparison.metric
    note = "Right of the line the group named first is higher; an interval across it leaves that open."
    title = f"Difference of {metric}, 95 % intervals"
    return [row_chart(title, rows, x=f"difference of {metric}", zero=True, note=note)]


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
    if not ious:
        return []
    lines = [
        Line(
            group,
            numbers[group],
            [*zip(item.edges, item.fractions, strict=False), (item.edges[-1], item.fractions[-1])],
            style={"drawstyle": "steps-post"},
        )
        for group, item in ious
    ]
    counts = ", ".join(f"{group} {item.num:,}" for group, item in ious)
    note = f"Only boxes that found an object, at IoU .1 or more: {counts} pairs."
    title = "IoU of matched pairs"
    return [line_chart(title, lines, x=title, y="fraction of pairs", xlim=(0.0, 1.0), note=note)]


def calibration_charts(study: Study) -> list[Chart]:
    """Return precision by score."""
    numbers = group_numbers(study)
    lines = [
        Line(group, numbers[group], part.calibration, marked=True)
        for group, part in study.breakdowns.items()
        if part.calibration
    ]
    if not lines:
        return []
    diagonal, one = Line("score is precision", None, [(0.0, 0.0), (1.0, 1.0)]), (0.0, 1.0)
    note, y = "On the diagonal, a score is the chance that the box is right.", "precision at IoU .50"
    return [line_chart("Calibration", [diagonal, *lines], x="mean score", y=y, xlim=one, ylim=one, note=note)]


def box_charts(study: Study) -> list[Chart]:
    """Return what single boxes show: IoU, calibration, width of the distributions, true against predicted."""
    numbers = group_numbers(study)
    widths = [
        Line(group, numbers[group], part.width_by_error, marked=True)
        for group, part in study.breakdowns.items()
        if part.width_by_error
    ]
    charts = [*iou_charts(study), *calibration_charts(study)]
    if widths:
        note = (
            "A group that knows where it is wrong rises to the right. "
            "Each point stands in the middle of its range of errors; the last is 200 to 1000."
        )
        title, x = "Width of the coordinate distribution by error", "error of the coordinate, bins"
        charts.append(line_chart(title, widths, x=x, y="mean standard deviation, bins", note=note))
    note = "All four coordinates of matched pairs; stronger is more, by the logarithm."
    charts += [
        map_chart(f"{group}: true and predicted coordinates", part.maps, numbers[group], note=note)
        for group, part in study.breakdowns.items()
        if part.maps
    ]
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

    def draw(axes: "Axes", group: str) -> None:
        curve, color = edge.by_group[group], Look.of(numbers[group]).color
        kept = dict(zip(curve.bins, curve.probabilities, strict=True))
        heights = [kept.get(k, 0.0) for k in range(low, high + 1)]  # what was left out has none worth drawing
        axes.fill_between(range(low, high + 1), heights, color=color, alpha=0.17, linewidth=0)
        axes.plot(range(low, high + 1), heights, color=color, linewidth=1.9)
        mark_at(axes, edge.true_bin, f"true bin {edge.true_bin}")
        axes.set_xlim(low, high)
        axes.set_ylim(0, max(curve.probabilities) * 1.05)
        axes.set_xlabel("coord bin")
        axes.set_ylabel("probability")
        axes.locator_params(nbins=5)

    return [
        Chart(
            group,
            lambda axes, group=group: draw(axes, group),
            f"mean {curve.expected:.0f}, mode {curve.mode}, true {edge.true_bin}",
            height=170,
        )
        for group, curve in edge.by_group.items()
    ]


def _rows_by_label(
    title: str,
    parts: Mapping[str, Mapping[str, float | None]],
    numbers: Mapping[str, int],
    objects: Mapping[str, int],
) -> list[Chart]:
    """Return rows of marks; many rows in charts of one scale and about one height, which stand beside each other."""
    spread: dict[str, float] = {}
    for label in dict.fromkeys(label for part in parts.values() for label in part):
        values = [value for part in parts.values() if (value := part.get(label)) is not None]
        if values:
            spread[label] = max(values) - min(values)
    most = min(_MAX_ROWS, max(1, _MAX_MARKS // max(1, len(parts))))  # a row is as high as it has groups
    chosen = set(sorted(spread, key=lambda label: -spread[label])[:most])
    found = {
        label: [
            (group, numbers[group], None if (ap := part.get(label)) is None else Estimate(ap))
            for group, part in parts.items()
        ]
        for label in spread
        if label in chosen
    }
    rows = [Row(label, marks, num_objects(objects[label])) for label, marks in found.items()]
    note = f"The {len(rows)} of {len(spread)} in which groups differ most." if len(rows) < len(spread) else ""
    highest = max((ap.value for marks in found.values() for *_, ap in marks if ap is not None), default=0.0)
    num = 1 if len(rows) <= _ROWS_OF_ONE_CHART else math.ceil(len(rows) / _ROWS_OF_A_PART)
    return [
        row_chart(
            title if num == 1 else f"{title}, {at + 1} of {num}",
            rows[at * len(rows) // num : (at + 1) * len(rows) // num],
            x="AP",
            xlim=(-0.02 * highest, highest * 1.05 or None),
            note=note,
        )
        for at in range(num)
        if rows
    ]


def _mean_lines(data: ExperimentData, name_of: Callable[[RunData], str], *, marked: bool = False) -> list[Line]:
    """Return for each group the mean of a curve over seeds at each step, with the lowest and highest as band."""
    found: list[Line] = []
    for index, (group, runs) in enumerate(data.groups.items()):
        by_step: dict[int, list[float]] = {}
        for run in runs:
            for point in run.curves.get(name_of(run), ()):
                by_step.setdefault(point.step, []).append(point.value)
        points = [(float(step), fmean(values)) for step, values in sorted(by_step.items())]
        band = [(float(step), min(values), max(values)) for step, values in sorted(by_step.items())]
        several = any(len(values) > 1 for values in by_step.values())
        if points:
            found.append(Line(group, index, points, band=band if several else (), marked=marked))
    return found


def _final_points(data: ExperimentData) -> list[Line]:
    """Return AP on all validation images at the end, mean over seeds."""
    found: list[Line] = []
    for index, (group, runs) in enumerate(data.groups.items()):
        there = [run for run in runs if run.headline in run.metrics and run.foreign is None]
        if there:
            at = (float(max(run.step for run in there)), fmean(run.metrics[run.headline] for run in there))
            found.append(Line(f"{group}, all images", index, [at], style={"marker": "*", "markersize": 15}))
    return found

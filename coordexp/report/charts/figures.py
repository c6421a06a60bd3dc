"""The charts of the page, from a study: what is drawn and how it is called."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from coordexp.metrics import SUBSET_HEADLINE, loss_head
from coordexp.report.charts.heat_map import heat_map
from coordexp.report.charts.svg import Axis, ChartRow, Mark, Series, line_chart, row_chart
from coordexp.report.study.data import ExperimentData
from coordexp.report.study.study import Study
from coordexp.report.text.comparison_tables import interval, pair_name, written
from coordexp.statistics.results import Estimate

LOSS_TITLES = {
    "total_loss": "Total loss (other terms in every group)",
    "text_loss": "Text cross-entropy",
    "coord_loss": "Geometric loss of expected boxes",
    "coord_ce_loss": "Cross-entropy of coord tokens",
}
_MAX_ROWS = 24
_BANDS = "Bands: lowest and highest seed."


@dataclass(frozen=True)
class Figure:
    """A chart with its caption."""

    title: str
    svg: str
    note: str = ""


def curves(study: Study) -> list[Figure]:
    """Return AP over steps, with bands where there are intervals, and the losses."""
    equal = [_at_equal(study, "num_images", "images"), _at_equal(study, "num_supervised_tokens", "supervised tokens")]
    return [
        _average_precision(study),
        *(figure for figure in equal if figure is not None),
        *(_loss(study.data, name) for name in study.data.loss_names),
    ]


def forest(study: Study) -> list[Figure]:
    """Return the pairwise differences."""
    if study.comparison is None or not study.comparison.pairs:
        return []
    rows = [
        ChartRow(
            label=pair_name(pair),
            marks=(Mark(pair_name(pair), None, pair.difference.value, pair.difference.low, pair.difference.high),),
            note=f"{written(pair.difference.value, signed=True)}  {interval(pair.difference, signed=True)}",
        )
        for pair in study.comparison.pairs
    ]
    title = f"Difference of {study.comparison.metric}, 95 % intervals"
    chart = row_chart(rows, title=title, x=Axis(f"difference of {study.comparison.metric}"), zero=True)
    return [Figure(title, chart, "Left of the line the second group is higher, right of it the first.")]


def boxes(study: Study) -> list[Figure]:
    """Return the IoU histogram and the calibration."""
    found: list[Figure] = []
    styles = group_styles(study)
    ious = [(group, part.iou) for group, part in study.breakdowns.items() if part.iou is not None]
    if ious:
        series = [
            Series(
                group,
                styles[group],
                [*zip(item.edges, item.fractions, strict=False), (item.edges[-1], item.fractions[-1])],
                steps=True,
            )
            for group, item in ious
        ]
        x, y = Axis("IoU of matched pairs", 0.0, 1.0), Axis("fraction of pairs", 0.0)
        note = (
            f"Only boxes that found an object, at IoU .1 or more: {', '.join(f'{g} {h.num:,}' for g, h in ious)} pairs."
        )
        found.append(Figure("IoU of matched pairs", line_chart(series, title="IoU of matched pairs", x=x, y=y), note))
    reliable = [(group, part.calibration) for group, part in study.breakdowns.items() if part.calibration]
    if reliable:
        diagonal = Series("score is precision", None, [(0.0, 0.0), (1.0, 1.0)])
        series = [diagonal, *(Series(group, styles[group], points, dots=True) for group, points in reliable)]
        x, y = Axis("mean score", 0.0, 1.0), Axis("precision at IoU .50", 0.0, 1.0)
        chart = line_chart(series, title="Calibration of the score", x=x, y=y)
        found.append(Figure("Calibration", chart, "On the diagonal, a score is the chance that the box is right."))
    widths = [
        Series(group, styles[group], part.width_by_error, dots=True)
        for group, part in study.breakdowns.items()
        if part.width_by_error
    ]
    if widths:
        title = "Width of the coordinate distribution by error"
        x, y = Axis("error of the coordinate, bins", 0.0), Axis("mean standard deviation, bins", 0.0)
        note = (
            "A group that knows where it is wrong rises to the right. "
            "Each point stands in the middle of its range of errors; the last is 200 to 1000."
        )
        found.append(Figure(title, line_chart(widths, title=title, x=x, y=y), note))
    for group, part in study.breakdowns.items():
        if part.maps:
            title = f"{group}: true and predicted coordinates"
            chart = heat_map(part.maps, styles[group], title=title, x="predicted", y="true")
            found.append(
                Figure(title, chart, "All four coordinates of matched pairs; stronger is more, by the logarithm.")
            )
    return found


def breakdowns(study: Study) -> list[Figure]:
    """Return AP by category, by size and by number of objects."""
    found: list[Figure] = []
    values: dict[str, dict[str, Mapping[str, float | None]]] = {
        "AP by number of objects in the image": {g: part.by_count for g, part in study.breakdowns.items()},
        "AP by size of the object": {g: part.by_size for g, part in study.breakdowns.items()},
        "AP by category": {g: part.by_category for g, part in study.breakdowns.items()},
    }
    for title, parts in values.items():
        known = dict.fromkeys(label for part in parts.values() for label in part)
        labels = [label for label in known if _spread(label, parts) >= 0]
        if labels:
            found.append(_rows_by_label(title, labels, parts, group_styles(study)))
    return found


def group_styles(study: Study) -> dict[str, int]:
    """Return each group's number, which decides its colour everywhere."""
    return {group: index for index, group in enumerate(study.data.groups)}


def _rows_by_label(
    title: str, labels: Sequence[str], parts: Mapping[str, Mapping[str, float | None]], styles: Mapping[str, int]
) -> Figure:
    chosen = sorted(labels, key=lambda label: -_spread(label, parts))[:_MAX_ROWS]
    rows = [
        ChartRow(label, [Mark(group, styles[group], part.get(label)) for group, part in parts.items()])
        for label in labels
        if label in set(chosen)
    ]
    left_out = len(labels) - len(rows)
    note = f"The {len(rows)} of {len(labels)} in which groups differ most." if left_out else ""
    return Figure(title, row_chart(rows, title=title, x=Axis("AP", 0.0)), note)


def _spread(label: str, parts: Mapping[str, Mapping[str, float | None]]) -> float:
    values = [value for part in parts.values() if (value := part.get(label)) is not None]
    return max(values) - min(values) if values else -1.0


def _average_precision(study: Study) -> Figure:
    title = "AP of expected boxes on the subset"
    x, y = Axis("optimizer step", 0.0), Axis("AP", 0.0)
    styles = group_styles(study)
    if study.convergence is None:
        return Figure(
            title, line_chart(_mean_lines(study.data, SUBSET_HEADLINE, dots=True), title=title, x=x, y=y), _BANDS
        )
    series = [
        _metric_line(group, styles[group], [(float(point.step), point.metric) for point in points])
        for group, points in study.convergence.curves.items()
    ]
    return Figure(title, line_chart(series, title=title, x=x, y=y), "Bands: 95 % intervals over images and seeds.")


def _at_equal(study: Study, name: Literal["num_images", "num_supervised_tokens"], words: str) -> Figure | None:
    """Return AP over what had been consumed, if that is known."""
    if study.convergence is None:
        return None
    styles = group_styles(study)
    series: list[Series] = []
    for group, points in study.convergence.curves.items():
        used = [(point.num_images if name == "num_images" else point.num_supervised_tokens, point) for point in points]
        known = [(count, point.metric) for count, point in used if count is not None]
        if known:
            series.append(_metric_line(group, styles[group], known))
    title = f"The same over {words}"
    return Figure(title, line_chart(series, title=title, x=Axis(words, 0.0), y=Axis("AP", 0.0))) if series else None


def _metric_line(group: str, style: int, points: Sequence[tuple[float, Estimate]]) -> Series:
    return Series(
        label=group,
        style=style,
        points=[(x, metric.value) for x, metric in points],
        band=[
            (x, metric.low, metric.high) for x, metric in points if metric.low is not None and metric.high is not None
        ],
        dots=True,
    )


def _loss(data: ExperimentData, name: str) -> Figure:
    lines = _mean_lines(data, f"train_{name}")
    points = [
        replace(item, label=f"{item.label}, validation", band=(), dots_only=True)
        for item in _mean_lines(data, f"eval_{name}", dots=True)
    ]
    series = [*lines, *points]
    title = LOSS_TITLES.get(name, f"Loss term {loss_head(name)}")
    note = f"Means over seeds. {_BANDS}" if any(item.band for item in series) else ""
    return Figure(title, line_chart(series, title=title, x=Axis("optimizer step", 0.0), y=Axis("loss")), note)


def _mean_lines(data: ExperimentData, name: str, *, dots: bool = False) -> list[Series]:
    """Return for each group the mean over seeds at each step, with the lowest and highest as band."""
    found: list[Series] = []
    for index, (group, runs) in enumerate(data.groups.items()):
        by_step: dict[int, list[float]] = {}
        for run in runs:
            for point in run.curves.get(name, ()):
                by_step.setdefault(point.step, []).append(point.value)
        points = [(float(step), fmean(values)) for step, values in sorted(by_step.items())]
        band = [(float(step), min(values), max(values)) for step, values in sorted(by_step.items())]
        several = any(len(values) > 1 for values in by_step.values())
        if points:
            found.append(Series(group, index, points, band=band if several else (), dots=dots))
    return found

"""The charts of a study: each function says what is drawn, how it is called and how to read it."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from coordexp.coord_tokens.bins import NUM_BINS
from coordexp.data.units import counted_images
from coordexp.detection.decomposition import AP50, ERRORS, RECALLS
from coordexp.metrics import PLACES, SLOTS, loss_head, subset_headline
from coordexp.report.figures import INK, LOOKS, NEUTRAL, PAPER, Chart, Look, tips, write_charts
from coordexp.report.study.boxes import ByLabel
from coordexp.report.study.data import ExperimentData, RunRecord
from coordexp.report.study.examples import EdgeDistributions
from coordexp.report.study.study import Study, better_first, rendered_parts
from coordexp.report.text.place_tables import place_name, place_value
from coordexp.report.text.study_tables import shown_pairs
from coordexp.report.text.tables import MINUS, num_objects, pair_name, with_interval, written
from coordexp.statistics.results import CurvePoint, Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

LOSS_TITLES = {
    "total_loss": "Total loss (other terms in every group)",
    "text_loss": "Text cross-entropy",
    "coord_loss": "Geometric loss of expected boxes",
    "coord_ce_loss": "Cross-entropy of coord tokens",
}
_SHORT = {
    "classification": "cls", "localisation": "loc", "both": "both", "duplicate": "dup", "background": "bkg",
    "missed": "miss",
}  # fmt: skip
_STEP = "optimizer step"
_BANDS = "Bands: lowest and highest seed."
_DASHED = (0, (3, 2.5))
_EDGE: dict[str, Any] = {"markeredgecolor": PAPER, "markeredgewidth": 0.8}
_LABEL, _MARK, _GAP, _AXIS = 15, 13, 5, 40  # heights of a row's label and of each mark, between rows, of the axis
_BAR, _NAMES, _BAR_ROW = 16, 12, 51  # heights of a bar, of the names below it, of all with its label


class Point(NamedTuple):
    """A point of a line, and where the band around it lies."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


class Line(NamedTuple):
    """A line of a chart; ``marked``: with a marker and a tip at each point, as a single point always is."""

    label: str
    look: Look
    points: Sequence[Point]
    marked: bool = False


class Row(NamedTuple):
    """A labelled row of marks, ``(name, look, value)`` each; ``note`` stands at its right end."""

    label: str
    note: str
    marks: Sequence[tuple[str, Look, Estimate | None]]


def write_plots(study: Study, output: Path) -> list[Path]:
    """Write the charts of papers and slides that there is data for as PNG and SVG into a folder; return their paths."""
    study, name = better_first(study), study.data.name
    looks, named = looks_of(study.data), dict[str, Look]()  # rows say which group they are of
    of_parts = [(part.name, name, shown.charts, shown.looks) for part, shown in rendered_parts(study)]
    found = (
        ("losses", f"{name}: lines in training, marks on validation images", loss_charts(study), looks),
        ("ap", f"{name}: each group by its own reading, constrained decoding", ap_charts(study), looks),
        ("groups", name, group_charts(study), named),
        ("differences", name, forest_charts(study), named),
        ("slots", f"{name}: coordinates on validation images, mean over seeds", slot_charts(study), looks),
        *of_parts,
        ("iou", name, iou_charts(study), looks),
        ("calibration", name, calibration_charts(study), looks),
    )
    return [
        path
        for stem, title, charts, legend in found
        if charts
        for path in write_charts(charts, output / stem, title=title, looks=legend)
    ]


def looks_of(data: ExperimentData) -> dict[str, Look]:
    return {group: LOOKS[at % len(LOOKS)] for at, group in enumerate(data.groups)}


def ap_charts(study: Study) -> list[Chart]:
    """Return AP by each group's reading over steps, images and tokens, with bands where there are intervals."""
    data, looks = study.data, looks_of(study.data)
    if not data.trained:
        return []
    stars: list[Line] = []
    for group, runs in data.groups.items():
        ended = [run for run in runs if run.headline in run.metrics and run.foreign is None]
        if ended:
            at = Point(max(run.step for run in ended), fmean(run.metrics[run.headline] for run in ended))
            stars.append(Line(f"{group}, all images", looks[group]._replace(marker="*"), [at]))
    title, note = "AP on the subset", " Stars: all validation images, at the end." if stars else ""
    if study.convergence is None:
        means = _mean_lines(data, lambda run: subset_headline(run.reading))
        lines = [line._replace(marked=True) for line in means]
        return [line_chart(title, [*lines, *stars], x=_STEP, y="AP", note=_BANDS + note)]
    curves = study.convergence.curves

    def over(used: Callable[[CurvePoint], float | None]) -> list[Line]:
        return [
            Line(group, looks[group], [Point(x, p.metric.value, p.metric.low, p.metric.high) for p, x in known], True)
            for group, points in curves.items()
            if (known := [(p, x) for p in points if (x := used(p)) is not None])
        ]

    note = f"Bands: 95 % intervals over images and seeds.{note}"
    charts = [line_chart(title, [*over(lambda p: p.step), *stars], x=_STEP, y="AP", note=note)]
    seen, read = over(lambda p: p.num_images), over(lambda p: p.num_supervised_tokens)
    for words, lines in (("images", seen), ("supervised tokens", read)):
        if lines:
            charts.append(line_chart(f"The same over {words}", lines, x=words, y="AP"))
    return charts


def loss_charts(study: Study) -> list[Chart]:
    """Return the losses in training, as lines, and on validation images, as marks."""
    charts: list[Chart] = []
    for name in study.data.loss_names if study.data.trained else ():
        lines = _mean_lines(study.data, lambda _, name=name: f"train_{name}")
        validation = [
            Line(f"{label}, validation", look._replace(line="none"), [Point(p.x, p.y) for p in points], True)
            for label, look, points, _ in _mean_lines(study.data, lambda _, name=name: f"eval_{name}")
        ]
        title = LOSS_TITLES.get(name, f"Loss term {loss_head(name)}")
        if len(study.data.groups) == 1:
            title = title.partition(" (")[0]
        has_bands = any(point.low is not None for line in lines for point in line.points)
        note = f"Means over seeds. {_BANDS}" if has_bands else ""
        charts.append(line_chart(title, [*lines, *validation], x=_STEP, y="loss", bottom=None, note=note))
    return charts


def gradient_charts(study: Study) -> list[Chart]:
    lines = _mean_lines(study.data, lambda _: "grad_norm")
    if not lines:
        return []
    limits = {run.number("training.max_grad_norm") for run in study.data.runs}
    limit = limits.pop() if len(limits) == 1 else None
    if limit is not None:
        end = max(point.x for line in lines for point in line.points)
        lines.append(Line("limit", NEUTRAL, [Point(0.0, limit), Point(end, limit)]))
    note = "Above the limit a step is scaled down to it."
    return [line_chart("Gradient norm before clipping", lines, x=_STEP, y="norm", note=note)]


def group_charts(study: Study) -> list[Chart]:
    comparison, looks = study.comparison, looks_of(study.data)
    if comparison is None:
        return []
    rows = [
        Row(group, "  ".join(with_interval(found)), [(group, looks[group], found)])
        for group, found in sorted(comparison.value.items(), key=lambda item: -item[1].value)
    ]
    num_seeds = max(map(len, comparison.seeds.values()))
    seeds = f", mean of {num_seeds} seeds" if num_seeds > 1 else ""
    drawn = counted_images(comparison.num_images, comparison.num_units)
    title = f"{comparison.metric} on {drawn}{seeds}, 95 % intervals"
    return [row_chart(title, rows, x=comparison.metric, xlim=(0.0, None))]


def forest_charts(study: Study, *, num_pairs: int | None = None) -> list[Chart]:
    """Return the pairwise differences, or of more pairs than ``num_pairs`` those of the best group."""
    comparison = study.comparison
    if comparison is None or not comparison.pairs:
        return []
    note = "Right of the line the group named first is higher; an interval across it leaves that open."
    pairs = comparison.pairs
    if num_pairs is not None and len(pairs) > num_pairs:
        best = max(comparison.value, key=lambda group: comparison.value[group].value)
        pairs = tuple(pair for pair in pairs if best in (pair.a, pair.b))
        note += f" The other {len(comparison.pairs) - len(pairs)} pairs are in the table."
    rows = [_difference_row(pair_name(pair), pair_name(pair), pair.difference) for pair in pairs]
    metric = comparison.metric
    title = f"Difference of {metric}, 95 % intervals"
    return [row_chart(title, rows, x=f"difference of {metric}", zero=True, note=note)]


def why_charts(study: Study) -> list[Chart]:
    """Return where the difference comes from: a bar for each group, rows for each pair, recall by rank."""
    found, looks = study.decomposition, looks_of(study.data)
    if found is None:
        return []
    bars = {
        # An error whose fix costs a little AP50 gets no bar.
        group: [(m.head, max(values[m.name].value, 0.0)) for m in (AP50, *ERRORS) if m.name in values]
        for group, values in found.value.items()
        if AP50.name in values
    }
    most = max((sum(length for _, length in parts) for parts in bars.values()), default=0.0) or 1.0

    def draw_bars(axes: "Axes") -> None:
        for row, (group, parts) in enumerate(bars.items()):
            top, start = row * _BAR_ROW, 0.0
            _label_row(axes, top, group, f"AP50 {written(found.value[group][AP50.name].value)}")
            for at, (name, length) in enumerate(parts):
                shade, place = 1.0 if at == 0 else 0.5 if at % 2 else 0.25, top + _LABEL + _BAR / 2
                style: dict[str, Any] = {"color": looks[group].color, "alpha": shade, "edgecolor": PAPER}
                (patch,) = axes.barh(place, length, _BAR, left=start, linewidth=0.8, **style)
                patch.set_gid(tips(f"{group}, {name}: {number(length)}"))
                if length > 0.055 * most:  # wide enough for its name
                    below = top + _LABEL + _BAR + _NAMES - 2
                    axes.text(start + length / 2, below, _SHORT.get(name, name), ha="center", fontsize=9)
                start += length
        _rows_only(axes, _BAR_ROW * len(bars), "AP50")
        axes.set_xlim(0, most * 1.01)

    note = (
        "In full colour AP50, then what fixing one kind of error alone would add, in this order: classification (cls), "
        "localisation (loc), both at once (both), duplicate (dup), background (bkg), missed (miss). "
        "The parts overlap, so a bar does not end at 1."
    )
    height = _BAR_ROW * len(bars) + _AXIS
    charts = [Chart("AP50 and what each kind of error costs", draw_bars if bars else None, note, height)]
    for pair in shown_pairs(found):
        name = pair_name(pair)
        parts = [m for m in (AP50, *ERRORS) if m.name in pair.difference]
        rows = [_difference_row(m.head, name, pair.difference[m.name]) for m in parts]
        note = f"Errors right of the line cost {pair.a} more, left of it {pair.b}; 95 % intervals."
        title, x = f"{name}: difference of each part", "difference of AP50 points"
        charts.append(row_chart(title, rows, x=x, zero=True, note=note))

    ranks = [m for m in RECALLS if any(m.name in values for values in found.value.values())]
    lines: list[Line] = []
    for group, values in found.value.items():
        there = [(at, values[m.name]) for at, m in enumerate(ranks, start=1) if m.name in values]
        lines.append(Line(group, looks[group], [Point(at, e.value, e.low, e.high) for at, e in there], marked=True))
    note = "Rank: place in the order in which objects are written, from the top of the image. Bands: 95 % intervals."
    names = [m.head.rpartition("rank ")[2] for m in ranks]
    title, x, y = "Recall by rank of the object", "rank of the object", "recall at IoU .50"
    return [*charts, line_chart(title, lines, x=x, y=y, xlim=(0.7, len(ranks) + 0.3), top=1.0, note=note, names=names)]


def iou_charts(study: Study) -> list[Chart]:
    looks = looks_of(study.data)
    lines: list[Line] = []
    pairs: list[str] = []
    for group, part in study.breakdowns.items():
        if total := sum(part.iou.counts):
            steps = zip(pairwise(part.iou.edges), part.iou.counts, strict=True)
            lines.append(Line(group, looks[group], [Point(x, num / total) for ends, num in steps for x in ends]))
            pairs.append(f"{group} {total:,}")
    if not lines:
        return []
    note = f"Only boxes that found an object, at IoU .1 or more: {', '.join(pairs)} pairs."
    title = "IoU of matched pairs"
    return [line_chart(title, lines, x=title, y="fraction of pairs", xlim=(0.0, 1.0), note=note)]


def calibration_charts(study: Study) -> list[Chart]:
    lines = _marked(study, {group: part.calibration for group, part in study.breakdowns.items()})
    if not lines:
        return []
    diagonal = Line("score is precision", NEUTRAL, [Point(0.0, 0.0), Point(1.0, 1.0)])
    note = "On the diagonal, a score is the chance that the box is right."
    y, one = "precision at IoU .50", (0.0, 1.0)
    return [line_chart("Calibration", [diagonal, *lines], x="mean score", y=y, xlim=one, top=1.0, note=note)]


def box_charts(study: Study) -> list[Chart]:
    charts = [*iou_charts(study), *calibration_charts(study)]
    if widths := _marked(study, {group: part.width_by_error for group, part in study.breakdowns.items()}):
        note = (
            "A group that knows where it is wrong rises to the right. "
            "Each point is at the middle of its range of errors; the last range is 200 to 1000."
        )
        title, x = "Width of the coordinate distribution by error", "error of the coordinate, bins"
        charts.append(line_chart(title, widths, x=x, y="mean standard deviation, bins", note=note))
    note = "All four coordinates of matched pairs; stronger is more, by the logarithm."
    looks = looks_of(study.data)
    for group, part in study.breakdowns.items():
        if part.maps:
            draw = _map(part.maps, looks[group].color) if any(map(any, part.maps)) else None
            charts.append(Chart(f"{group}: true and predicted coordinates", draw, note, height=300))
    return charts


def slot_charts(study: Study) -> list[Chart]:
    """Return how far each group's coordinates are off by slot and by rank, as its own reading takes them."""
    measures = {"argmax": "argmax_bin_mae", "expected": "expected_bin_mae"}
    lines: list[Line] = []
    for group, runs in study.data.groups.items():
        look = looks_of(study.data)[group]
        by_slot: list[Point] = []
        by_rank: list[Point] = []
        for number_of_place, place in enumerate(PLACES, start=1):
            error = place_value(runs, measures[runs[0].reading], place)
            if error is not None:
                (by_slot if place in SLOTS else by_rank).append(Point(number_of_place, error))
        # Two lines: slots and ranks are two ways to part the same coordinates.
        lines += [Line(group, look, points, marked=True) for points in (by_slot, by_rank) if points]
    if not lines:
        return []
    names = [place_name(place).removeprefix("rank ").replace(" and up", "+") for place in PLACES]
    note = (
        "Distance from the true bin, of the mean or of the likeliest bin as each group is read. On the left by slot of "
        "the box, on the right by rank of the object in its answer."
    )
    x, y = "slot of the box; rank of the object", "bins off, mean"
    return [line_chart("Where coordinates are off", lines, x=x, y=y, xlim=(0.6, 9.4), note=note, names=names)]


def breakdown_charts(study: Study) -> list[Chart]:
    parts, looks = study.breakdowns, looks_of(study.data)
    by_count = {group: part.by_count for group, part in parts.items()}
    by_size = {group: part.by_size for group, part in parts.items()}
    by_category = {group: part.by_category for group, part in parts.items()}
    return [
        *_rows_by_label("AP by number of objects in the image", by_count, looks),
        *_rows_by_label("AP by size of the object", by_size, looks),
        *_rows_by_label("AP by category", by_category, looks),
    ]


def edge_charts(edge: EdgeDistributions, looks: Mapping[str, Look]) -> list[Chart]:
    """Return the distributions of one coordinate, a chart for each group, each as high as its own likeliest bin."""
    curves, true_bin = edge.by_group, edge.true_bin
    least = 0.01 * max(max(curve.probabilities) for curve in curves.values())
    seen = [k for c in curves.values() for k, p in zip(c.bins, c.probabilities, strict=True) if p > least]
    bins = range(max(min(*seen, true_bin) - 20, 0), min(max(*seen, true_bin) + 20, NUM_BINS - 1) + 1)
    charts: list[Chart] = []
    for group, curve in curves.items():
        kept, top = dict(zip(curve.bins, curve.probabilities, strict=True)), max(curve.probabilities) * 1.05
        heights = [(k, kept.get(k, 0.0)) for k in bins]  # what was left out has no probability worth drawing
        line = Line(group, looks[group]._replace(line="-"), [Point(k, y, 0.0, y) for k, y in heights])
        truth = Line(f"true bin {true_bin}", Look(INK, _DASHED), [Point(true_bin, 0.0), Point(true_bin, top)])
        note, ends = f"mean {curve.expected:.0f}, mode {curve.mode}, true {true_bin}", (bins[0], bins[-1])
        chart = line_chart(group, [line, truth], x="coord bin", y="probability", xlim=ends, top=top, note=note)
        charts.append(chart._replace(height=170))
    return charts


def number(value: float) -> str:
    """Write a number of a chart: four digits, a typographic minus before it, and a plain one in its exponent."""
    text = f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}".replace(",", "\u2009")
    return f"{MINUS}{text[1:]}" if text.startswith("-") else text


def _mean_lines(data: ExperimentData, name_of: Callable[[RunRecord], str]) -> list[Line]:
    """Return for each group the mean of a curve over seeds at each step, with the lowest and highest as band."""
    lines: list[Line] = []
    for (group, runs), look in zip(data.groups.items(), looks_of(data).values(), strict=True):
        by_step: dict[int, list[float]] = {}
        for run in runs:
            for point in run.curves.get(name_of(run), ()):
                by_step.setdefault(point.step, []).append(point.value)
        several = any(len(values) > 1 for values in by_step.values())
        bands = {step: (min(values), max(values)) if several else () for step, values in by_step.items()}
        points = [Point(step, fmean(values), *bands[step]) for step, values in sorted(by_step.items())]
        if points:
            lines.append(Line(group, look, points))
    return lines


def _marked(study: Study, points: Mapping[str, Sequence[tuple[float, float]]]) -> list[Line]:
    looks = looks_of(study.data)
    return [Line(group, looks[group], [Point(*xy) for xy in found], True) for group, found in points.items() if found]


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    x: str,
    y: str,
    xlim: tuple[float, float | None] = (0.0, None),
    bottom: float | None = 0.0,
    top: float | None = None,
    note: str = "",
    names: Sequence[str] = (),
) -> Chart:
    """Return lines over an axis, whose places 1, 2 ... may have names; ends that are None the data decide."""

    def draw(axes: "Axes") -> None:
        for label, look, points, marked in lines:
            if not points:
                continue
            if band := [(p.x, p.low, p.high) for p in points if p.low is not None and p.high is not None]:
                xs, lows, highs = zip(*band, strict=True)
                axes.fill_between(xs, lows, highs, color=look.color, alpha=0.17, linewidth=0)
            has_marks = marked or len(points) == 1
            style: dict[str, Any] = {"color": look.color, "linestyle": look.line, "linewidth": 1.9, **_EDGE}
            marker, size = look.marker if has_marks else "none", 15 if look.marker == "*" else 6.5
            (line,) = axes.plot([p.x for p in points], [p.y for p in points], marker=marker, markersize=size, **style)
            where = [f"{label}: {number(p.y)} at {number(p.x)}" for p in points]
            line.set_gid(tips(*where) if has_marks else tips(label))
        axes.set_xlim(*xlim)
        axes.set_ylim(bottom, top)
        axes.grid(visible=True, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        _few_numbers(axes.xaxis)
        _few_numbers(axes.yaxis)
        if names:
            axes.set_xticks(range(1, len(names) + 1), names)

    return Chart(title, draw if any(line.points for line in lines) else None, note)


def _difference_row(label: str, name: str, found: Estimate) -> Row:
    return Row(label, "  ".join(with_interval(found, signed=True)), [(name, NEUTRAL, found)])


def row_chart(
    title: str,
    rows: Sequence[Row],
    *,
    x: str,
    xlim: tuple[float | None, float | None] = (None, None),
    zero: bool = False,
    note: str = "",
) -> Chart:
    """Return rows of marks with intervals along one axis, from the top; ``zero`` draws a line there."""
    height = sum(_LABEL + _MARK * len(row.marks) + _GAP for row in rows)

    def draw(axes: "Axes") -> None:
        top = 0.0
        for row in rows:
            _label_row(axes, top, row.label, row.note)
            bottom = top + _LABEL + _MARK * len(row.marks)
            if zero:  # beside the marks alone, not through the labels
                axes.plot([0, 0], [top + _LABEL, bottom], color=INK, linewidth=1.2, linestyle=_DASHED)
            for at, (name, look, found) in enumerate(row.marks):
                if found is None:
                    continue
                y, text = top + _LABEL + _MARK * (at + 0.5), f"{name}: {number(found.value)}"
                if found.low is not None and found.high is not None:
                    text += f" [{number(found.low)}, {number(found.high)}]"
                    ends = [found.low, found.high], [y, y]
                    axes.plot(*ends, color=look.color, linewidth=1.7, marker="|", markersize=7)
                (dot,) = axes.plot([found.value], [y], look.marker, color=look.color, markersize=7, **_EDGE)
                dot.set_gid(tips(text))
            top = bottom + _GAP
        _rows_only(axes, height, x)
        axes.set_xlim(*xlim)

    is_empty = all(found is None for row in rows for *_, found in row.marks)
    return Chart(title, None if is_empty else draw, note, height + _AXIS)


def _rows_by_label(title: str, parts: Mapping[str, ByLabel], looks: Mapping[str, Look]) -> list[Chart]:
    """Return rows of marks; many rows in charts of one scale and about one height, side by side."""
    num_gt = {label: num for part in parts.values() for label, num in part.num_gt.items()}  # the same in all groups
    known = {label: [ap for part in parts.values() if (ap := part.ap.get(label)) is not None] for label in num_gt}
    spread = {label: max(aps) - min(aps) for label, aps in known.items() if aps}
    most = min(24, max(1, 96 // max(1, len(parts))))  # a row is as high as it has groups
    chosen = set(sorted(spread, key=lambda label: -spread[label])[:most])
    rows: list[Row] = []
    for label in filter(chosen.__contains__, spread):
        aps = {group: part.ap.get(label) for group, part in parts.items()}
        marks = [(group, looks[group], None if ap is None else Estimate(ap)) for group, ap in aps.items()]
        rows.append(Row(label, num_objects(num_gt[label]), marks))
    note = f"The {len(rows)} of {len(spread)} in which groups differ most." if len(rows) < len(spread) else ""
    highest = max((ap.value for row in rows for *_, ap in row.marks if ap is not None), default=0.0)
    num = 1 if len(rows) <= 6 else math.ceil(len(rows) / 4)
    xlim, charts = (-0.02 * highest, highest * 1.05 or None), list[Chart]()
    for at in range(num if rows else 0):
        part = rows[at * len(rows) // num : (at + 1) * len(rows) // num]
        name = title if num == 1 else f"{title}, {at + 1} of {num}"
        charts.append(row_chart(name, part, x="AP", xlim=xlim, note=note))
    return charts


def _map(counts: Sequence[Sequence[int]], color: str) -> "Callable[[Axes], None]":
    def draw(axes: "Axes") -> None:
        import numpy as np
        from matplotlib.colors import LinearSegmentedColormap, to_rgba

        shades = LinearSegmentedColormap.from_list("shades", [(0.0, to_rgba(color, 0.0)), (1.0, to_rgba(color, 1.0))])
        shown = np.log1p(np.array(counts))  # else all but the diagonal would vanish
        axes.imshow(shown, origin="lower", extent=(0, 1, 0, 1), cmap=shades, interpolation="none")
        axes.plot([0, 1], [0, 1], color=INK, linewidth=1.2, linestyle=_DASHED)
        axes.set(xlabel="predicted", ylabel="true", xticks=[0, 1], yticks=[0, 1])

    return draw


def _rows_only(axes: "Axes", height: float, x: str) -> None:
    """Give axes one number to a pixel from the top, without a vertical axis."""
    axes.set_ylim(height, 0)
    axes.set_yticks([])
    axes.grid(visible=True, axis="x")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(x)
    _few_numbers(axes.xaxis)


def _label_row(axes: "Axes", top: float, label: str, note: str) -> None:
    """Write a row's label and note, on paper, or grid lines would cross them."""
    place, paper = axes.get_yaxis_transform(), {"facecolor": PAPER, "edgecolor": "none", "pad": 0.5}
    axes.text(0, top + _LABEL - 3, label, transform=place, bbox=paper, weight="bold", color=INK)
    axes.text(1, top + _LABEL - 3, note, transform=place, bbox=paper, ha="right")


def _few_numbers(axis: "Axis") -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(lambda value, position: number(round(value, 12)))

"""Charts of the comparison: AP of groups, differences of pairs, and where AP50 is lost."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordexp.data.units import counted_images
from coordexp.detection.decomposition import AP50, ERRORS, RECALLS
from coordexp.report.charts.panels import (
    AXIS_HEIGHT,
    LABEL_HEIGHT,
    Line,
    Point,
    Row,
    difference_row,
    label_row,
    line_chart,
    looks_of,
    number,
    row_chart,
    rows_only,
)
from coordexp.report.figures import PAPER, Chart, Look, tips
from coordexp.report.study.study import Study
from coordexp.report.text.tables import pair_name, with_interval, written
from coordexp.report.text.why_tables import shown_pairs
from coordexp.statistics.results import Decomposition, PairParts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHORT_NAMES = {
    "classification": "cls", "localisation": "loc", "both": "both", "duplicate": "dup", "background": "bkg",
    "missed": "miss",
}  # fmt: skip
# Heights in pixels.
_BAR_HEIGHT = 16
_NAMES_HEIGHT = 12  # of the names below a bar
_BAR_ROW_HEIGHT = 51  # of a bar with its label and names
_NAMED_SHARE = 0.055
"""Of the longest bar: a part that is wider has room for its name."""
_BarPart = tuple[str, float]


def group_charts(study: Study) -> list[Chart]:
    """Return AP of each group with its interval, the highest first."""
    comparison = study.comparison
    if comparison is None:
        return []
    looks = looks_of(study.data)
    highest_first = sorted(comparison.value.items(), key=lambda item: -item[1].value)
    rows = [Row(group, "  ".join(with_interval(ap)), [(group, looks[group], ap)]) for group, ap in highest_first]
    num_seeds = max(map(len, comparison.seeds.values()))
    seeds = f", mean of {num_seeds} seeds" if num_seeds > 1 else ""
    images = counted_images(comparison.num_images, comparison.num_units)
    title = f"{comparison.metric} on {images}{seeds}, 95 % intervals"
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
    rows = [difference_row(pair_name(pair), pair_name(pair), pair.difference) for pair in pairs]
    metric = comparison.metric
    title = f"Difference of {metric}, 95 % intervals"
    return [row_chart(title, rows, x=f"difference of {metric}", zero=True, note=note)]


def why_charts(study: Study) -> list[Chart]:
    """Return where the difference comes from: a bar for each group, rows for each pair, recall by rank."""
    decomposition = study.decomposition
    if decomposition is None:
        return []
    looks = looks_of(study.data)
    pairs = [_pair_chart(pair) for pair in shown_pairs(decomposition)]
    return [_error_chart(decomposition, looks), *pairs, _recall_chart(decomposition, looks)]


def _error_chart(decomposition: Decomposition, looks: dict[str, Look]) -> Chart:
    """Draw a bar for each group: AP50, then what each kind of error costs."""
    bars: dict[str, list[_BarPart]] = {}
    for group, values in decomposition.value.items():
        if AP50.name in values:
            # An error whose fix costs a little AP50 gets no bar.
            measured = [measure for measure in (AP50, *ERRORS) if measure.name in values]
            bars[group] = [(measure.head, max(values[measure.name].value, 0.0)) for measure in measured]
    longest = max((sum(length for _, length in sections) for sections in bars.values()), default=0.0) or 1.0

    def draw(axes: "Axes") -> None:
        for row, (group, sections) in enumerate(bars.items()):
            top = row * _BAR_ROW_HEIGHT
            label_row(axes, top, group, f"AP50 {written(decomposition.value[group][AP50.name].value)}")
            _draw_bar(axes, top + LABEL_HEIGHT, group, looks[group], sections, named_from=_NAMED_SHARE * longest)
        rows_only(axes, _BAR_ROW_HEIGHT * len(bars), "AP50")
        axes.set_xlim(0, longest * 1.01)

    note = (
        "In full colour AP50, then what fixing one kind of error alone would add, in this order: classification (cls), "
        "localisation (loc), both at once (both), duplicate (dup), background (bkg), missed (miss). "
        "The parts overlap, so a bar does not end at 1."
    )
    height = _BAR_ROW_HEIGHT * len(bars) + AXIS_HEIGHT
    return Chart("AP50 and what each kind of error costs", draw if bars else None, note, height)


def _draw_bar(
    axes: "Axes", top: float, group: str, look: Look, sections: Sequence[_BarPart], *, named_from: float
) -> None:
    """Draw the sections of a bar beside each other, the first in full colour; those of some length with their names."""
    start = 0.0
    for place, (name, length) in enumerate(sections):
        shade = 1.0
        if place > 0:
            shade = 0.5 if place % 2 else 0.25
        (patch,) = axes.barh(
            top + _BAR_HEIGHT / 2,
            length,
            _BAR_HEIGHT,
            left=start,
            linewidth=0.8,
            color=look.color,
            alpha=shade,
            edgecolor=PAPER,
        )
        patch.set_gid(tips(f"{group}, {name}: {number(length)}"))
        if length > named_from:
            below = top + _BAR_HEIGHT + _NAMES_HEIGHT - 2
            axes.text(start + length / 2, below, _SHORT_NAMES.get(name, name), ha="center", fontsize=9)
        start += length


def _pair_chart(pair: PairParts) -> Chart:
    name = pair_name(pair)
    rows = [
        difference_row(measure.head, name, pair.difference[measure.name])
        for measure in (AP50, *ERRORS)
        if measure.name in pair.difference
    ]
    note = f"Errors right of the line cost {pair.a} more, left of it {pair.b}; 95 % intervals."
    title = f"{name}: difference of each part"
    return row_chart(title, rows, x="difference of AP50 points", zero=True, note=note)


def _recall_chart(decomposition: Decomposition, looks: dict[str, Look]) -> Chart:
    ranks = [measure for measure in RECALLS if any(measure.name in values for values in decomposition.value.values())]
    lines: list[Line] = []
    for group, values in decomposition.value.items():
        points: list[Point] = []
        for rank, measure in enumerate(ranks, start=1):
            recall = values.get(measure.name)
            if recall is not None:
                points.append(Point(rank, recall.value, recall.low, recall.high))
        lines.append(Line(group, looks[group], points, marked=True))
    return line_chart(
        "Recall of objects by their rank from the top",
        lines,
        x="rank of the object",
        y="recall at IoU .50",
        xlim=(0.7, len(ranks) + 0.3),
        top=1.0,
        note="Rank: place in the order in which objects are written, from the top of the image. Bands: 95 % intervals.",
        names=[measure.head.rpartition("rank ")[2] for measure in ranks],
    )

"""Where a difference comes from: what groups lose AP50 to, as tables and sentences."""

from collections.abc import Sequence

from coordexp.detection.decomposition import AP50, CALIBRATION, ERRORS, OTHERS, RECALLS, Measure
from coordexp.report.study.study import Study
from coordexp.report.table import Table
from coordexp.report.text.tables import UNDEFINED, pair_name, with_interval, written
from coordexp.statistics.results import Decomposition, Estimate, PairParts

MAX_PAIRS = 4
"""Pairs that stand beside each other in a table; of more, those of the best group stand below each other."""
_ERRORS_AND_BOXES = (AP50, *ERRORS, *OTHERS, CALIBRATION)
_LOST_TITLE = (
    "Where AP50 is lost: what fixing one kind of error alone would give; repeated boxes, and calibration of the score"
)
_RECALL_TITLE = "How answers go on: recall of objects by their rank from the top"
_SMALLEST_SHOWN = 5e-4  # what three digits show


def shown_pairs(decomposition: Decomposition) -> list[PairParts]:
    """Return the pairs that tables and charts show: all, or where there are many those of the group highest in AP50."""
    if len(decomposition.pairs) <= MAX_PAIRS:
        return list(decomposition.pairs)

    def ap50(group: str) -> float:
        estimate = decomposition.value[group].get(AP50.name)
        return -1.0 if estimate is None else estimate.value

    best = max(decomposition.value, key=ap50)
    return [pair for pair in decomposition.pairs if best in (pair.a, pair.b)][: 2 * MAX_PAIRS]


def why_title(study: Study) -> str:
    """Return the heading of all of this: one group differs from nothing."""
    return "Where AP50 is lost" if len(study.data.groups) == 1 else "Where the difference comes from"


def why_sentences(study: Study) -> list[str]:
    """Return for each pair shown what its difference of AP50 comes with: the errors that one group loses more to."""
    if study.decomposition is None:
        return []
    return [_sentence(pair) for pair in shown_pairs(study.decomposition)]


def why_tables(study: Study) -> list[Table]:
    """Return what is measured of each group, and the differences with intervals; none without detections."""
    decomposition = study.decomposition
    if decomposition is None:
        return []
    losses = _values_table(decomposition, _LOST_TITLE, _ERRORS_AND_BOXES)
    recalls = _values_table(decomposition, _RECALL_TITLE, RECALLS)
    tables = [table for table in (losses, recalls) if table.rows]
    pairs = shown_pairs(decomposition)
    intervals = f"95 % intervals of {decomposition.resamples} resamples"
    title = f"Where the difference comes from: paired differences, {intervals}"
    if len(pairs) > MAX_PAIRS:
        title += "; AP50, and parts whose interval leaves 0 out"
        tables.append(Table.of(title, ("pair", "part", "difference"), _rows_below_each_other(pairs)))
    elif pairs:
        tables.append(Table.of(title, ("part", *map(pair_name, pairs)), _rows_beside_each_other(pairs)))
    return tables


def _values_table(decomposition: Decomposition, title: str, measures: Sequence[Measure]) -> Table:
    """Return a row for each measure that any group has, with the values of all groups."""
    rows: list[tuple[str, ...]] = []
    for measure in measures:
        estimates = [of_group.get(measure.name) for of_group in decomposition.value.values()]
        if any(estimate is not None for estimate in estimates):
            cells = [written(None if estimate is None else estimate.value) for estimate in estimates]
            rows.append((measure.head, *cells))
    return Table.of(title, ("part", *decomposition.value), rows)


def _rows_beside_each_other(pairs: Sequence[PairParts]) -> list[tuple[str, ...]]:
    """Return a row for each measure that any pair has, a column a pair."""
    rows: list[tuple[str, ...]] = []
    for measure in _measures_of(pairs):
        rows.append((measure.head, *(_signed(pair.difference.get(measure.name)) for pair in pairs)))
    return rows


def _rows_below_each_other(pairs: Sequence[PairParts]) -> list[tuple[str, ...]]:
    """Return a row for each pair and measure: AP50, and what can be told from 0."""
    rows: list[tuple[str, ...]] = []
    for pair in pairs:
        for measure in _measures_of(pairs):
            difference = pair.difference.get(measure.name)
            if difference is not None and (measure is AP50 or _is_shown(difference)):
                rows.append((pair_name(pair), measure.head, _signed(difference)))
    return rows


def _measures_of(pairs: Sequence[PairParts]) -> list[Measure]:
    return [
        measure for measure in (*_ERRORS_AND_BOXES, *RECALLS) if any(measure.name in pair.difference for pair in pairs)
    ]


def _sentence(pair: PairParts) -> str:
    lead = f"{pair_name(pair)}: AP50 {_signed(pair.difference.get(AP50.name))}"
    losses: list[tuple[str, float]] = []
    for measure in ERRORS:
        difference = pair.difference.get(measure.name)
        if difference is not None and _is_shown(difference):
            losses.append((measure.head, difference.value))
    if not losses:
        return f"{lead}; that one kind of error costs either of them more cannot be shown."
    losses.sort(key=lambda loss: -abs(loss[1]))
    sentences: list[str] = []
    for group, sign in ((pair.a, 1), (pair.b, -1)):
        listed = ", ".join(f"{abs(value):.3f} to {head}" for head, value in losses if value * sign > 0)
        if listed:
            sentences.append(f"{group} loses more: {listed}")
    return f"{lead}. {'; '.join(sentences)}."


def _is_shown(difference: Estimate) -> bool:
    """Return whether the interval leaves 0 out, and the difference is one that three digits show."""
    return difference.excludes_zero and abs(difference.value) >= _SMALLEST_SHOWN


def _signed(difference: Estimate | None) -> str:
    return UNDEFINED if difference is None else " ".join(with_interval(difference, signed=True))

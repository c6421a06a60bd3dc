"""Where the difference comes from: what groups lose AP50 to, and how they differ in it, as sentences and tables."""

from collections.abc import Sequence

from coordexp.detection.decomposition import AP50, CALIBRATION, ERRORS, MEASURES, OTHERS
from coordexp.report.study.study import Study
from coordexp.report.text.tables import MINUS, UNDEFINED, Table, TableRow, interval, written
from coordexp.statistics.results import Decomposition, Estimate, PairParts

WHY = "Where the difference comes from"
MAX_PAIRS = 4
_PARTS = (AP50, *ERRORS)


def shown_pairs(found: Decomposition) -> list[PairParts]:
    """Return the pairs that tables and charts show: all, or where there are many those of the group highest in AP50."""
    if len(found.pairs) <= MAX_PAIRS:
        return list(found.pairs)
    best = max(found.value, key=lambda group: _value(found, group, AP50.name))
    return [pair for pair in found.pairs if best in (pair.a, pair.b)][: 2 * MAX_PAIRS]


def why_sentences(study: Study) -> list[str]:
    """Return for each pair shown what its difference of AP50 comes with: the errors that one group loses more to."""
    if study.decomposition is None:
        return []
    return [_sentence(pair) for pair in shown_pairs(study.decomposition)]


def why_tables(study: Study) -> list[Table]:
    """Return the parts of AP50 and the differences of each part with intervals; none without detections."""
    found = study.decomposition
    if found is None:
        return []
    groups = list(found.value)
    rows = [
        TableRow((m.head, *(_cell(found.value[group].get(m.name)) for group in groups)))
        for m in MEASURES
        if any(m.name in found.value[group] for group in groups)
    ]
    title = (
        "Where AP50 is lost: what fixing one kind of error alone would give, boxes, and recall by rank of the object"
    )
    tables = [Table(title, ("part", *groups), tuple(rows))]
    pairs = shown_pairs(found)
    if not pairs:
        return tables
    if len(pairs) <= MAX_PAIRS:
        heads = ("part", *(f"{pair.a} {MINUS} {pair.b}" for pair in pairs))
        lines = [(m.head, *(_difference(pair, m.name) for pair in pairs)) for m in (*_PARTS, *OTHERS, CALIBRATION)]
    else:
        heads = ("pair", "part", "difference")
        lines = [(f"{pair.a} {MINUS} {pair.b}", m.head, _difference(pair, m.name)) for pair in pairs for m in _PARTS]
    title = f"{WHY}: paired differences, 95 % intervals of {found.resamples} resamples"
    return [*tables, Table(title, heads, tuple(TableRow(cells) for cells in lines))]


def _sentence(pair: PairParts) -> str:
    parts = [(m.head, pair.difference[m.name]) for m in ERRORS if m.name in pair.difference]
    shown = sorted((p for p in parts if _is_shown(p[1])), key=lambda part: -abs(part[1].value))
    whole = pair.difference.get(AP50.name)
    lead = f"{pair.a} {MINUS} {pair.b}: AP50 {_signed(whole)}"
    if not shown:
        return f"{lead}; that one kind of error costs either of them more cannot be shown."
    return f"{lead}. {_losses(pair, shown)}"


def _is_shown(found: Estimate) -> bool:
    """Return whether the interval leaves 0 out, and the difference is one that three digits show."""
    return found.low is not None and found.high is not None and found.low * found.high > 0 and abs(found.value) >= 5e-4


def _losses(pair: PairParts, shown: Sequence[tuple[str, Estimate]]) -> str:
    found: list[str] = []
    for group, sign in ((pair.a, 1), (pair.b, -1)):
        own = [f"{abs(part.value):.3f} to {head}" for head, part in shown if part.value * sign > 0]
        if own:
            found.append(f"{group} loses more: {', '.join(own)}")
    return f"{'; '.join(found)}."


def _signed(estimate: Estimate | None) -> str:
    return (
        UNDEFINED if estimate is None else f"{written(estimate.value, signed=True)} {interval(estimate, signed=True)}"
    )


def _difference(pair: PairParts, name: str) -> str:
    return _signed(pair.difference.get(name))


def _cell(estimate: Estimate | None) -> str:
    return UNDEFINED if estimate is None else written(estimate.value)


def _value(found: Decomposition, group: str, name: str) -> float:
    estimate = found.value[group].get(name)
    return -1.0 if estimate is None else estimate.value

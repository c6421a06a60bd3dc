"""Where the difference comes from: what groups lose AP50 to, and how they differ in it, as sentences and tables."""

from collections.abc import Sequence

from coordexp.detection.decomposition import AP50, CALIBRATION, ERRORS, OTHERS, RECALLS, Measure
from coordexp.report.study.study import Study
from coordexp.report.text.tables import UNDEFINED, Table, interval, pair_name, written
from coordexp.statistics.results import Decomposition, Estimate, PairParts

MAX_PAIRS = 4
_NONE = Estimate(-1.0)
_ERRORS_AND_BOXES = (AP50, *ERRORS, *OTHERS, CALIBRATION)
_LOST = "what fixing one kind of error alone would give; repeated boxes, and calibration of the score"


def shown_pairs(found: Decomposition) -> list[PairParts]:
    """Return the pairs that tables and charts show: all, or where there are many those of the group highest in AP50."""
    if len(found.pairs) <= MAX_PAIRS:
        return list(found.pairs)
    best = max(found.value, key=lambda group: found.value[group].get(AP50.name, _NONE).value)
    return [pair for pair in found.pairs if best in (pair.a, pair.b)][: 2 * MAX_PAIRS]


def why_title(study: Study) -> str:
    """Return the heading of all of this: one group differs from nothing."""
    return "Where AP50 is lost" if len(study.data.groups) == 1 else "Where the difference comes from"


def why_sentences(study: Study) -> list[str]:
    """Return for each pair shown what its difference of AP50 comes with: the errors that one group loses more to."""
    return [] if study.decomposition is None else [_sentence(pair) for pair in shown_pairs(study.decomposition)]


def why_tables(study: Study) -> list[Table]:
    """Return what is measured of each group, and the differences with intervals; none without detections."""
    found = study.decomposition
    if found is None:
        return []

    def values(title: str, measures: Sequence[Measure]) -> list[Table]:
        known = [m for m in measures if any(m.name in of_group for of_group in found.value.values())]
        of_groups = found.value.values()
        rows = [(m.head, *(written(it.value if (it := of.get(m.name)) else None) for of in of_groups)) for m in known]
        return [Table.of(title, ("part", *found.value), rows)] if rows else []

    parts = values(f"Where AP50 is lost: {_LOST}", _ERRORS_AND_BOXES)
    ends = values("How answers go on: recall by rank of the object", RECALLS)
    pairs = shown_pairs(found)
    return [*parts, *ends, _differences(found, pairs)] if pairs else [*parts, *ends]


def _differences(found: Decomposition, pairs: Sequence[PairParts]) -> Table:
    """Return the differences of a few pairs side by side; of many, below each other, only what can be told from 0."""
    title = f"Where the difference comes from: paired differences, 95 % intervals of {found.resamples} resamples"
    measures = [m for m in (*_ERRORS_AND_BOXES, *RECALLS) if any(m.name in pair.difference for pair in pairs)]
    if len(pairs) <= MAX_PAIRS:
        lines = [(m.head, *(_signed(pair.difference.get(m.name)) for pair in pairs)) for m in measures]
        return Table.of(title, ("part", *map(pair_name, pairs)), lines)
    lines = [
        (pair_name(pair), m.head, _signed(estimate))
        for pair in pairs
        for m in measures
        if (estimate := pair.difference.get(m.name)) is not None and (m is AP50 or _is_shown(estimate))
    ]
    return Table.of(f"{title}; AP50, and parts whose interval leaves 0 out", ("pair", "part", "difference"), lines)


def _sentence(pair: PairParts) -> str:
    lead = f"{pair_name(pair)}: AP50 {_signed(pair.difference.get(AP50.name))}"
    parts = [(m.head, pair.difference[m.name].value) for m in ERRORS if _is_shown(pair.difference.get(m.name, _NONE))]
    parts.sort(key=lambda part: -abs(part[1]))
    if not parts:
        return f"{lead}; that one kind of error costs either of them more cannot be shown."
    losses = {
        group: ", ".join(f"{abs(value):.3f} to {head}" for head, value in parts if value * sign > 0)
        for group, sign in ((pair.a, 1), (pair.b, -1))
    }
    return f"{lead}. {'; '.join(f'{group} loses more: {own}' for group, own in losses.items() if own)}."


def _is_shown(found: Estimate) -> bool:
    """Return whether the interval leaves 0 out, and the difference is one that three digits show."""
    return found.excludes_zero and abs(found.value) >= 5e-4


def _signed(found: Estimate | None) -> str:
    return UNDEFINED if found is None else f"{written(found.value, signed=True)} {interval(found, signed=True)}"

"""The tables with intervals: AP, differences of pairs, under every reading, convergence, and what AP50 is lost to."""

from collections.abc import Mapping, Sequence

from coordexp.data.units import counted_images
from coordexp.detection.decomposition import AP50, CALIBRATION, ERRORS, OTHERS, RECALLS, Measure
from coordexp.metrics import AP_NAMES
from coordexp.report.study.study import Study
from coordexp.report.text.notes import bucket_notes, sample_notes
from coordexp.report.text.tables import FILE, UNDEFINED, Table, mean_of, pair_name, with_interval, written
from coordexp.statistics.readings import ReadingName
from coordexp.statistics.results import Comparison, CurvePair, Decomposition, Estimate, PairParts, PairResult
from coordexp.statistics.verdict import has_learned, open_reason, p_value

READING_HEADS: Mapping[ReadingName, str] = {
    "own": "own reading",
    "expected": "all by expectation",
    "argmax": "all by argmax",
    "free": "own reading, free decoding",
}
_PAIR_HEADS = (
    "pair", "difference", "95 % interval", "p, random swaps", "p, bootstrap", "p, corrected", "detectable",
    "standard error, images", "standard error, seeds", "verdict",
)  # fmt: skip
_BY_IMAGES, _BY_UNITS = "standard error, images", "standard error, units"
MAX_PAIRS = 4
_NONE = Estimate(-1.0)
_ERRORS_AND_BOXES = (AP50, *ERRORS, *OTHERS, CALIBRATION)
_LOST = "what fixing one kind of error alone would give; repeated boxes, and calibration of the score"


def study_tables(study: Study) -> list[Table]:
    return comparison_tables(study) + readings_tables(study) + convergence_tables(study)


def comparison_tables(study: Study) -> list[Table]:
    """Return AP of the groups, and the differences of their pairs, where there is anything to compare."""
    data, found = study.data, study.comparison
    if found is None:
        return []
    names = [name for name in AP_NAMES if name != found.metric]
    is_trained, rows = {run.group for run in data.trained}, list[tuple[str, ...]]()
    for group in found.groups:
        runs = [run for run in data.groups[group] if run.seed in found.seeds[group]]
        read_by = (data.readings[group] if group in is_trained else FILE,) if is_trained else ()
        others = (written(mean_of([run.own("constrained", name) for run in runs])) for name in names)
        seeds = ", ".join(map(str, found.seeds[group]))
        rows.append((group, *read_by, seeds, *with_interval(found.value[group]), *others))
    who = "each group by its own reading" if len(data.groups) > 1 else "by its own reading"
    how = f", {who}, constrained decoding" if data.trained else ""
    lead = ("group", "read by", "seeds") if is_trained else ("group", "seeds")
    heads = (*lead, found.metric, "95 % interval", *names)
    notes = [*bucket_notes(study), *sample_notes(found)]
    drawn = counted_images(found.num_images, found.num_units)
    groups = Table.of(f"{found.metric}{how}, {drawn}", heads, rows, notes)
    title = f"Differences of {found.metric} on the same images"
    pair_heads = _PAIR_HEADS
    if found.num_units is not None:
        title = f"{title}, {drawn}"
        pair_heads = tuple(_BY_UNITS if head == _BY_IMAGES else head for head in _PAIR_HEADS)
    pairs = Table.of(title, pair_heads, [_pair_cells(pair, found) for pair in found.pairs], _open_notes(found))
    return [groups, pairs] if found.pairs else [groups]


def readings_tables(study: Study) -> list[Table]:
    """Return AP and differences under every reading, where there are others than the own one."""
    if len(study.readings) < 2:
        return []
    first = study.readings["own"]
    rows = [
        (group, *(" ".join(with_interval(found.value[group])) for found in study.readings.values()))
        for group in first.groups
    ]
    heads = ("group", *(READING_HEADS[name] for name in study.readings))
    tables = [Table.of(f"{first.metric} under each reading, with its 95 % interval", heads, rows)]
    if first.pairs:
        rows = [
            (cells[0], READING_HEADS[name], *cells[1:6], cells[-1])  # the design is that of the table above
            for index in range(len(first.pairs))
            for name, found in study.readings.items()
            for cells in [_pair_cells(found.pairs[index], found)]
        ]
        heads = (_PAIR_HEADS[0], "reading", *_PAIR_HEADS[1:6], _PAIR_HEADS[-1])
        notes = [
            f"{READING_HEADS[name].capitalize()}, {note}"
            for name, found in study.readings.items()
            if name != "own"  # those of the table above
            for note in _open_notes(found)
        ]
        tables.append(Table.of(f"Differences of {first.metric} under each reading", heads, rows, notes))
    return tables


def convergence_tables(study: Study) -> list[Table]:
    found = study.convergence
    if found is None:
        return []
    fractions = sorted(found.steps_to)
    heads = ("mean AP", "95 % interval", *(f"steps to {100 * fraction:.0f} %" for fraction in fractions))
    # A share of nothing is no goal.
    known = any(points[-1].metric.value > 0 for points in found.curves.values())
    groups = [
        (group, *with_interval(area), *(_steps(found.steps_to[f].get(group), known) for f in fractions))
        for group, area in found.area.items()
    ]
    pairs = [
        (pair_name(pair), *with_interval(pair.area, signed=True), *(_step_difference(pair, f) for f in fractions))
        for pair in found.pairs
        if pair.area is not None
    ]
    titles = (
        "Convergence on the subset: mean AP over all steps, and steps to a part of the best AP",
        "Differences of convergence on the same images; fewer steps are better",
    )
    tables = [Table.of(titles[0], ("group", *heads), groups)]
    return [*tables, Table.of(titles[1], ("pair", *heads), pairs)] if pairs else tables


def verdict_of(pair: PairResult, comparison: Comparison) -> str:
    """Return in a word what a pair's test says; with one seed it is about checkpoints."""
    if not has_learned(comparison, pair.a, pair.b):
        return "nothing learned"
    if not pair.significant:
        return "not told apart"
    better = pair.a if pair.difference.value > 0 else pair.b
    return f"{better} is better" if pair.seed_std is not None else f"{better} is higher"


def _open_notes(comparison: Comparison) -> list[str]:
    """Explain each pair that is not told apart beside an interval that leaves 0 out."""
    reasons = {pair_name(pair): open_reason(pair, len(comparison.pairs)) for pair in comparison.pairs}
    return [
        f"{pair}: the interval leaves 0 out, and yet the two are not told apart, since {reason}."
        for pair, reason in reasons.items()
        if reason
    ]


def _pair_cells(pair: PairResult, comparison: Comparison) -> tuple[str, ...]:
    return (
        pair_name(pair),
        *with_interval(pair.difference, signed=True),
        p_value(pair.p_swap),
        UNDEFINED if pair.p_bootstrap is None else p_value(pair.p_bootstrap),
        p_value(pair.p_holm),
        written(pair.detectable),
        written(pair.image_std, digits=4),
        written(pair.seed_std, digits=4),
        verdict_of(pair, comparison),
    )


def _step_difference(pair: CurvePair, fraction: float) -> str:
    estimate = pair.steps_to.get(fraction)
    if estimate is None:
        return UNDEFINED
    ends = ("open" if end is None else written(end, signed=True, digits=0) for end in (estimate.low, estimate.high))
    return f"{written(estimate.value, signed=True, digits=0)} [{', '.join(ends)}]"


def _steps(estimate: Estimate | None, known: bool) -> str:
    if estimate is None:
        return "never" if known else UNDEFINED
    if estimate.low is None:
        return f"{estimate.value:.0f}"
    high = "never" if estimate.high is None else f"{estimate.high:.0f}"
    return f"{estimate.value:.0f} [{estimate.low:.0f}, {high}]"


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

    tables = values(f"Where AP50 is lost: {_LOST}", _ERRORS_AND_BOXES)
    tables += values("How answers go on: recall by rank of the object", RECALLS)
    pairs = shown_pairs(found)
    title = f"Where the difference comes from: paired differences, 95 % intervals of {found.resamples} resamples"
    measures = [m for m in (*_ERRORS_AND_BOXES, *RECALLS) if any(m.name in pair.difference for pair in pairs)]
    if len(pairs) > MAX_PAIRS:  # below each other, and only what can be told from 0
        lines = [
            (pair_name(pair), m.head, _signed(estimate))
            for pair in pairs
            for m in measures
            if (estimate := pair.difference.get(m.name)) is not None and (m is AP50 or _is_shown(estimate))
        ]
        title += "; AP50, and parts whose interval leaves 0 out"
        tables.append(Table.of(title, ("pair", "part", "difference"), lines))
    elif pairs:
        lines = [(m.head, *(_signed(pair.difference.get(m.name)) for pair in pairs)) for m in measures]
        tables.append(Table.of(title, ("part", *map(pair_name, pairs)), lines))
    return tables


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
    return UNDEFINED if found is None else " ".join(with_interval(found, signed=True))

"""Slices: the groups compared on parts of the images or objects, and what may be said of them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from coordexp.data.units import counted_images
from coordexp.errors import counted
from coordexp.report.charts.panels import Row, looks_of, row_chart
from coordexp.report.figures import LOOKS, Chart, Look
from coordexp.report.rendered import CsvLine, Rendered
from coordexp.report.study.inputs import Outcome, StudyInputs
from coordexp.report.study.measures import MOST_RESAMPLES
from coordexp.report.study.part import Part
from coordexp.report.study.study import Study, in_order_of
from coordexp.report.table import Table
from coordexp.report.text.tables import MINUS, UNDEFINED, pair_name, with_interval, written
from coordexp.statistics.results import Estimate
from coordexp.statistics.slices import CATEGORY, FEWEST_OF_SLICE, Slice, SlicePair, Slices, compare_slices
from coordexp.statistics.verdict import p_value

TITLE = "Slices, exploratory"
MAX_PAIRS = 3
"""Pairs that stand beside AP in one table; more have a table of their own, of the best group's pairs."""
MAX_WIDE_PAIRS = 6
MAX_SENTENCES = 8
_MOST_ROWS = 40
"""Slices that a chart can hold; with more, categories are left to the table."""


def compute_slices(inputs: StudyInputs) -> Outcome[Slices | None]:
    """Compare the groups on each slice; None if no slices were asked for, or there are no detections."""
    if inputs.tags is None or not inputs.own_detections:
        return Outcome(None)
    slices = compare_slices(
        inputs.annotations,
        inputs.own_detections,
        inputs.tags,
        resamples=min(inputs.settings.resamples, MOST_RESAMPLES),
        seed=inputs.settings.seed,
        families=inputs.families,
        units=inputs.units,
        on_progress=inputs.progress("comparing slices"),
    )
    return Outcome(slices)


def render_slices(slices: Slices, study: Study) -> Rendered:
    """Return what a report shows of slices: tables, a chart, sentences, and every number for programs."""
    slices = replace(
        slices,
        slices=tuple(replace(current, pairs=in_order_of(study, current.pairs)) for current in slices.slices),
    )
    num_parts = counted(len(slices.slices), "part")
    return Rendered(
        title=TITLE,
        sentences=tuple(slice_sentences(slices)),
        charts=(slice_chart(slices, study),),
        looks=_looks(study),
        tables=tuple(slice_tables(slices, study)),
        on_screen=f"{num_parts} of the images, on the page (exploratory)",
        record=[asdict(current) for current in slices.slices],
        csv_lines=tuple(_csv_lines(slices)),
    )


SLICES = Part("slices", compute_slices, render_slices)


def slice_tables(slices: Slices, study: Study) -> list[Table]:
    """Return every slice with what is in it, AP and AP50 of each group, and the differences of the shown pairs."""
    groups = list(study.data.groups)
    pair_names = _shown_pairs(study)
    count_heads = ["slice", "images", "objects"] if study.units is None else ["slice", "images", "units", "objects"]
    value_heads = [f"{metric} {group}" for group in groups for metric in ("AP", "AP50")]
    pair_heads: list[str] = []
    for name in pair_names:
        pair_heads += [name, f"p of slices, {name}", f"beyond largest, {name}"]
    count_rows = [_count_cells(current, study) for current in slices.slices]
    value_rows = [_value_cells(current, groups) for current in slices.slices]
    pair_rows = [_pair_cells(current, pair_names) for current in slices.slices]

    how = "each group by its own reading" if study.data.trained else "each file as it is"
    title = f"{TITLE}: AP on parts, {how}"
    notes = _notes(slices, study)
    if len(pair_names) <= MAX_PAIRS:
        heads = [*count_heads, *value_heads, *pair_heads]
        return [Table.of(title, heads, _beside(count_rows, value_rows, pair_rows), notes)]
    pair_title = f"{TITLE}: differences of AP on parts"
    return [
        Table.of(title, [*count_heads, *value_heads], _beside(count_rows, value_rows)),
        Table.of(pair_title, [*count_heads, *pair_heads], _beside(count_rows, pair_rows), notes),
    ]


def slice_sentences(slices: Slices) -> list[str]:
    """Return what can be said of a difference between slices: only what its own interval shows."""
    sentences: list[str] = []
    for current in slices.slices:
        for pair in current.pairs:
            if pair.beyond is None or not pair.beyond.excludes_zero:
                continue
            word = "larger" if pair.beyond.value > 0 else "smaller"
            largest = f"{current.tag} = {slices.largest[current.tag]}"
            size = _unsigned(pair.beyond)
            sentences.append(f"{_pair_text(pair)} is {word} on {current.name} than on {largest}, by {size}.")
    if len(sentences) > MAX_SENTENCES:
        num_left = len(sentences) - MAX_SENTENCES
        more = f"{counted(num_left, 'more difference')} of this kind: in the table."
        return [*sentences[:MAX_SENTENCES], more]
    if not sentences and any(current.pairs for current in slices.slices):
        return ["That two groups differ more on one slice than on another cannot be shown."]
    return sentences


def slice_chart(slices: Slices, study: Study) -> Chart:
    """Draw the differences of AP on each slice, a row a slice and a mark a pair; of one group, its AP."""
    pair_names = _shown_pairs(study)
    looks = _looks(study)
    has_room = len(slices.slices) <= _MOST_ROWS
    shown_slices = [current for current in slices.slices if has_room or current.tag != CATEGORY]
    rows: list[Row] = []
    for current in shown_slices:
        differences = {_pair_text(pair): pair.difference for pair in current.pairs}
        estimates = differences if pair_names else current.ap
        marks = [(name, look, estimates.get(name)) for name, look in looks.items()]
        rows.append(Row(current.name, counted_images(current.num_images, current.num_units), marks))

    quantity = "difference of AP" if pair_names else "AP"
    names = pair_names or list(study.data.groups)
    note = f"Exploratory; 95 % intervals. From the top of each row: {', '.join(names)}."
    if len(shown_slices) < len(slices.slices):
        note += " Categories are in the table."
    return row_chart(f"{TITLE}: {quantity}", rows, x=quantity, zero=bool(pair_names), note=note)


def _pair_text(pair: SlicePair) -> str:
    return f"{pair.a} {MINUS} {pair.b}"


def _shown_pairs(study: Study) -> list[str]:
    """Return the names of the pairs shown: all, or of many those of the group that is best on all images."""
    comparison = study.comparison
    if comparison is None:
        return []
    names = [pair_name(pair) for pair in comparison.pairs]
    if len(names) <= MAX_WIDE_PAIRS:
        return names
    best = max(comparison.value, key=lambda group: comparison.value[group].value)
    return [pair_name(pair) for pair in comparison.pairs if best in (pair.a, pair.b)][:MAX_WIDE_PAIRS]


def _looks(study: Study) -> dict[str, Look]:
    """Return how the marks of the chart look: one a pair, or of one group its own."""
    names = _shown_pairs(study)
    if not names:
        return looks_of(study.data)
    return {name: LOOKS[place % len(LOOKS)] for place, name in enumerate(names)}


def _beside(*columns: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return rows of cells, each of them the rows of all ``columns`` beside each other."""
    return [[cell for cells in rows for cell in cells] for rows in zip(*columns, strict=True)]


def _count_cells(current: Slice, study: Study) -> list[str]:
    images, objects = f"{current.num_images:,}", f"{current.num_objects:,}"
    if study.units is None:
        return [current.name, images, objects]
    return [current.name, images, f"{current.num_units or 0:,}", objects]


def _value_cells(current: Slice, groups: Sequence[str]) -> list[str]:
    cells: list[str] = []
    for group in groups:
        cells += [_cell(current.ap.get(group)), _cell(current.ap50.get(group))]
    return cells


def _pair_cells(current: Slice, names: Sequence[str]) -> list[str]:
    by_name: Mapping[str, SlicePair] = {_pair_text(pair): pair for pair in current.pairs}
    cells: list[str] = []
    for name in names:
        pair = by_name.get(name)
        if pair is None or pair.difference is None:
            cells += [UNDEFINED] * 3
            continue
        p = UNDEFINED if pair.p_holm is None else p_value(pair.p_holm)
        cells += [_cell(pair.difference, signed=True), p, _cell(pair.beyond, signed=True)]
    return cells


def _cell(estimate: Estimate | None, *, signed: bool = False) -> str:
    """Return a value with its interval, or alone where there is none."""
    if estimate is None:
        return UNDEFINED
    value, interval = with_interval(estimate, signed=signed)
    return value if interval == UNDEFINED else f"{value} {interval}"


def _unsigned(estimate: Estimate) -> str:
    """Return the size of a difference and its interval, both without the sign that the sentence has in a word."""
    turned = estimate if estimate.value >= 0 else estimate.reversed()
    return f"{written(turned.value)} (95 % interval {written(turned.low)} to {written(turned.high)})"


def _notes(slices: Slices, study: Study) -> list[str]:
    drawn = "images" if study.units is None else "units"
    tests = counted(slices.num_tests, "test")
    corrected = f"; p is corrected for {tests}, tag values x pairs" if slices.num_tests else ""
    notes = [
        "Exploratory: slices are looked at after the fact and say where to look next. "
        f"Intervals are of {slices.resamples} resamples, each of one number alone{corrected}.",
        f"A slice of fewer than {FEWEST_OF_SLICE} {drawn} has values alone. By size, objects an image and category "
        "there are intervals and no p.",
    ]
    if slices.largest:
        largest = ", ".join(f"{tag} = {value}" for tag, value in slices.largest.items())
        notes.append(
            f"Beyond largest: the difference minus that on the largest slice of the tag ({largest}), on the same "
            "draws. Only this interval says that groups differ more on one slice than on another."
        )
    return [*notes, *slices.remarks]


def _csv_lines(slices: Slices) -> list[CsvLine]:
    """Return a line for each number of a slice: of groups, of pairs, and of pairs beyond the largest slice."""
    lines: list[CsvLine] = []
    for current in slices.slices:
        shared: dict[str, str | int | float | None] = {
            "slice": current.name,
            "num_images": current.num_images,
            "resamples": slices.resamples,
        }
        if current.num_units is not None:
            shared["num_units"] = current.num_units
        for metric, estimates in (("AP", current.ap), ("AP50", current.ap50)):
            for group, estimate in estimates.items():
                if estimate is not None:
                    lines.append(shared | {"kind": "slice", "group": group, "metric": metric} | asdict(estimate))
        for pair in current.pairs:
            of_pair = shared | {"group": pair.a, "against": pair.b, "metric": "AP"}
            if pair.difference is not None:
                difference = asdict(pair.difference)
                lines.append(of_pair | {"kind": "slice pair", "p_holm": pair.p_holm} | difference)
            if pair.beyond is not None:
                lines.append(of_pair | {"kind": "slice beyond largest"} | asdict(pair.beyond))
    return lines

"""Groups on parts of the images or objects, as tables, and what may be said of them."""

from collections.abc import Mapping, Sequence

from coordexp.errors import counted
from coordexp.report.study.study import Study
from coordexp.report.text.tables import MINUS, UNDEFINED, Table, pair_name, with_interval, written
from coordexp.statistics.results import Estimate
from coordexp.statistics.slices import FEWEST_OF_SLICE, Slice, SlicePair, Slices
from coordexp.statistics.verdict import p_value

TITLE = "Slices, exploratory"
MAX_PAIRS = 3
"""Pairs that stand beside AP in one table; more have a table of their own, of the best group's pairs."""
MAX_WIDE_PAIRS = 6
MAX_SENTENCES = 8


def slice_tables(study: Study) -> list[Table]:
    """Return every slice with what is in it, AP and AP50 of each group, and the differences; none without slices."""
    found = study.slices
    if found is None:
        return []
    pairs = shown_pairs(study)
    counts = ["slice", "images", *(["units"] if study.units is not None else []), "objects"]
    value_heads = [f"{metric} {group}" for group in study.data.groups for metric in ("AP", "AP50")]
    pair_heads = [head for name in pairs for head in (name, f"p of slices, {name}", f"beyond largest, {name}")]
    value_rows = [[*_counts(one, study), *_values(one, list(study.data.groups))] for one in found.slices]
    pair_rows = [_pair_cells(one, pairs) for one in found.slices]
    how = "each group by its own reading" if study.data.trained else "each file as it is"
    title, notes = f"{TITLE}: AP on parts, {how}", _notes(study, found)
    if len(pairs) <= MAX_PAIRS:
        rows = [[*values, *cells] for values, cells in zip(value_rows, pair_rows, strict=True)]
        return [Table.of(title, [*counts, *value_heads, *pair_heads], rows, notes)]
    num_counts = len(counts)
    differences = [[*values[:num_counts], *cells] for values, cells in zip(value_rows, pair_rows, strict=True)]
    return [
        Table.of(title, [*counts, *value_heads], value_rows),
        Table.of(f"{TITLE}: differences of AP on parts", [*counts, *pair_heads], differences, notes),
    ]


def slice_sentences(study: Study) -> list[str]:
    """Return what can be said of a difference between slices: only what its own interval shows."""
    found = study.slices
    if found is None:
        return []
    sentences: list[str] = []
    for one in found.slices:
        for pair in one.pairs:
            if pair.beyond is not None and pair.beyond.excludes_zero:
                word = "larger" if pair.beyond.value > 0 else "smaller"
                sentences.append(
                    f"{pair_text(pair)} is {word} on {one.name} than on {one.tag} = {found.largest[one.tag]}, by "
                    f"{_bare(pair.beyond)}."
                )
    if len(sentences) > MAX_SENTENCES:
        more = len(sentences) - MAX_SENTENCES
        sentences = [*sentences[:MAX_SENTENCES], f"{counted(more, 'more difference')} of this kind: in the table."]
    if not sentences and any(len(one.pairs) for one in found.slices):
        sentences.append("That two groups differ more on one slice than on another cannot be shown.")
    return sentences


def pair_text(pair: SlicePair) -> str:
    return f"{pair.a} {MINUS} {pair.b}"


def shown_pairs(study: Study) -> list[str]:
    """Return the names of the pairs shown: all, or of many those of the group that is best on all images."""
    found = study.comparison
    if found is None:
        return []
    names = [pair_name(pair) for pair in found.pairs]
    if len(names) <= MAX_WIDE_PAIRS:
        return names
    best = max(found.value, key=lambda group: found.value[group].value)
    return [pair_name(pair) for pair in found.pairs if best in (pair.a, pair.b)][:MAX_WIDE_PAIRS]


def _counts(one: Slice, study: Study) -> list[str]:
    units = [] if study.units is None else [f"{one.num_units or 0:,}"]
    return [one.name, f"{one.num_images:,}", *units, f"{one.num_objects:,}"]


def _values(one: Slice, groups: Sequence[str]) -> list[str]:
    return [_cell(estimate) for group in groups for estimate in (one.ap.get(group), one.ap50.get(group))]


def _pair_cells(one: Slice, names: Sequence[str]) -> list[str]:
    by_name: Mapping[str, SlicePair] = {pair_text(pair): pair for pair in one.pairs}
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


def _bare(estimate: Estimate) -> str:
    """Return the size of a difference and its interval, both without the sign that the sentence has in a word."""
    turned = estimate if estimate.value >= 0 else estimate.reversed()
    return f"{written(turned.value)} (95 % interval {written(turned.low)} to {written(turned.high)})"


def _notes(study: Study, found: Slices) -> list[str]:
    drawn = "images" if study.units is None else "units"
    largest = ", ".join(f"{tag} = {value}" for tag, value in found.largest.items())
    notes = [
        "Exploratory: slices are looked at after the fact and say where to look next. "
        f"Intervals are of {found.resamples} resamples, each of one number alone"
        + (f"; p is corrected for {counted(found.num_tests, 'test')}, tag values x pairs." if found.num_tests else "."),
        f"A slice of fewer than {FEWEST_OF_SLICE} {drawn} has values alone. By size, objects an image and category "
        "there are intervals and no p.",
    ]
    if largest:
        notes.append(
            f"Beyond largest: the difference minus that on the largest slice of the tag ({largest}), on the same "
            "draws. Only this interval says that groups differ more on one slice than on another."
        )
    return [*notes, *found.remarks]

"""The tables with intervals: AP of groups and differences of pairs, by each group's own reading and under every one."""

from collections.abc import Mapping

from coordexp.data.units import counted_images
from coordexp.metrics import AP_NAMES
from coordexp.report.study.study import Study
from coordexp.report.table import Table
from coordexp.report.text.convergence_tables import convergence_tables
from coordexp.report.text.notes import bucket_notes, sample_notes
from coordexp.report.text.tables import FILE, UNDEFINED, mean_of, pair_name, with_interval, written
from coordexp.statistics.readings import ReadingName
from coordexp.statistics.results import Comparison, PairResult
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
_TESTED = slice(1, 6)  # of the heads of a pair: its difference and its tests, without the design of the experiment


def study_tables(study: Study) -> list[Table]:
    """Return every table with intervals of AP."""
    return [*comparison_tables(study), *readings_tables(study), *convergence_tables(study)]


def comparison_tables(study: Study) -> list[Table]:
    """Return AP of the groups, and the differences of their pairs, where there is anything to compare."""
    comparison = study.comparison
    if comparison is None:
        return []
    tables = [_groups_table(study, comparison)]
    if comparison.pairs:
        tables.append(_pairs_table(comparison))
    return tables


def readings_tables(study: Study) -> list[Table]:
    """Return AP and differences under every reading, where there are others than each group's own."""
    if len(study.readings) < 2:
        return []
    own_reading = study.readings["own"]
    rows: list[tuple[str, ...]] = []
    for group in own_reading.groups:
        cells = [" ".join(with_interval(comparison.value[group])) for comparison in study.readings.values()]
        rows.append((group, *cells))
    heads = ("group", *(READING_HEADS[name] for name in study.readings))
    title = f"{own_reading.metric} under each reading, with its 95 % interval"
    tables = [Table.of(title, heads, rows)]
    if own_reading.pairs:
        tables.append(_pairs_by_reading(study, own_reading))
    return tables


def verdict_of(pair: PairResult, comparison: Comparison) -> str:
    """Return in a word what a pair's test says; with one seed it is about checkpoints."""
    if not has_learned(comparison, pair.a, pair.b):
        return "nothing learned"
    if not pair.significant:
        return "not told apart"
    better = pair.a if pair.difference.value > 0 else pair.b
    return f"{better} is better" if pair.seed_std is not None else f"{better} is higher"


def _groups_table(study: Study, comparison: Comparison) -> Table:
    data = study.data
    trained_groups = {run.group for run in data.trained}
    other_metrics = [name for name in AP_NAMES if name != comparison.metric]
    rows: list[tuple[str, ...]] = []
    for group in comparison.groups:
        runs = [run for run in data.groups[group] if run.seed in comparison.seeds[group]]
        cells = [group]
        if trained_groups:
            cells.append(data.readings[group] if group in trained_groups else FILE)
        cells.append(", ".join(map(str, comparison.seeds[group])))
        cells += with_interval(comparison.value[group])
        cells += [written(mean_of([run.own("constrained", name) for run in runs])) for name in other_metrics]
        rows.append(tuple(cells))

    lead = ("group", "read by", "seeds") if trained_groups else ("group", "seeds")
    who = "each group by its own reading" if len(data.groups) > 1 else "by its own reading"
    how = f", {who}, constrained decoding" if data.trained else ""
    images = counted_images(comparison.num_images, comparison.num_units)
    heads = (*lead, comparison.metric, "95 % interval", *other_metrics)
    notes = [*bucket_notes(study), *sample_notes(comparison)]
    return Table.of(f"{comparison.metric}{how}, {images}", heads, rows, notes)


def _pairs_table(comparison: Comparison) -> Table:
    title = f"Differences of {comparison.metric} on the same images"
    heads = _PAIR_HEADS
    if comparison.num_units is not None:
        title = f"{title}, {counted_images(comparison.num_images, comparison.num_units)}"
        heads = tuple(_BY_UNITS if head == _BY_IMAGES else head for head in _PAIR_HEADS)
    rows = [_pair_cells(pair, comparison) for pair in comparison.pairs]
    return Table.of(title, heads, rows, _open_notes(comparison))


def _pairs_by_reading(study: Study, own_reading: Comparison) -> Table:
    """Return each pair under each reading; the design of the experiment is in the table of pairs."""
    rows: list[tuple[str, ...]] = []
    for index in range(len(own_reading.pairs)):
        for name, comparison in study.readings.items():
            cells = _pair_cells(comparison.pairs[index], comparison)
            rows.append((cells[0], READING_HEADS[name], *cells[_TESTED], cells[-1]))
    notes: list[str] = []
    for name, comparison in study.readings.items():
        if name != "own":  # those of the table of pairs
            notes += [f"{READING_HEADS[name].capitalize()}, {note}" for note in _open_notes(comparison)]
    heads = (_PAIR_HEADS[0], "reading", *_PAIR_HEADS[_TESTED], _PAIR_HEADS[-1])
    return Table.of(f"Differences of {own_reading.metric} under each reading", heads, rows, notes)


def _open_notes(comparison: Comparison) -> list[str]:
    """Explain each pair that is not told apart beside an interval that leaves 0 out."""
    notes: list[str] = []
    for pair in comparison.pairs:
        reason = open_reason(pair, len(comparison.pairs))
        if reason:
            notes.append(
                f"{pair_name(pair)}: the interval leaves 0 out, and yet the two are not told apart, since {reason}."
            )
    return notes


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

"""Tables as text, which every output format shows alike; those of the statistics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from coordexp.metrics import AP_NAMES, Decoding, MetricName
from coordexp.report.study.data import ExperimentData, RunData
from coordexp.report.study.study import Study
from coordexp.statistics.intervals import FEW_IMAGES, FEWEST_IMAGES
from coordexp.statistics.readings import ReadingName
from coordexp.statistics.results import Comparison, Estimate, PairResult
from coordexp.statistics.verdict import has_learned, open_reason, p_value

UNDEFINED = "-"
FILE = "its file"
"""What a group is read by that has one kind of boxes, since a file brings it."""
COUNTED = "detections counted"
"""Head of what an F1 is of."""
_TEXT_COLUMNS = {
    "group", "boxes", COUNTED, "read by", "reading", "seed", "seeds", "state", "file", "frame", "pair", "part",
    "verdict", "key", "interval", "loss term", "in words", "sum over a batch", "divided by the number of", "settings",
    "95 % interval",
}  # fmt: skip
MINUS = "\u2212"
MIN_OBJECTS = 30
"""Of fewer, an AP says next to nothing."""
READING_HEADS: Mapping[ReadingName, str] = {
    "own": "own reading",
    "expected": "all by expectation",
    "argmax": "all by argmax",
    "free": "own reading, free decoding",
}


@dataclass(frozen=True)
class TableRow:
    """One line of a table; ``is_mean`` marks a mean over the seeds that follow it."""

    cells: tuple[str, ...]
    is_mean: bool = False


@dataclass(frozen=True)
class Table:
    """A table of text; the other columns are numbers and stand to the right, ``notes`` below it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()

    def is_text(self, column: str) -> bool:
        """Return whether a column holds words."""
        return column in _TEXT_COLUMNS


def study_tables(study: Study) -> list[Table]:
    """Return the tables with intervals, as far as there are any."""
    return comparison_tables(study) + readings_tables(study) + convergence_tables(study)


def comparison_tables(study: Study) -> list[Table]:
    """Return AP of the groups, and the differences of their pairs, where there is anything to compare."""
    if study.comparison is None:
        return []
    pairs = [_pairs(study.comparison)] if study.comparison.pairs else []
    notes = (*bucket_notes(study), *sample_notes(study.comparison))
    return [replace(_groups(study.data, study.comparison), notes=notes), *pairs]


def readings_tables(study: Study) -> list[Table]:
    """Return AP and differences under every reading, where there are others than the own one."""
    if len(study.readings) < 2:
        return []
    first = study.readings["own"]
    by_group = [
        (group, *(f"{written(f.value[group].value)} {interval(f.value[group])}" for f in study.readings.values()))
        for group in first.groups
    ]
    heads = ("group", *(READING_HEADS[name] for name in study.readings))
    tables = [
        Table(f"{first.metric} under each reading, with its 95 % interval", heads, tuple(map(TableRow, by_group)))
    ]
    if first.pairs:
        rows = [
            TableRow((cells[0], READING_HEADS[name], *cells[1:6], cells[-1]))  # the design is that of the table above
            for index in range(len(first.pairs))
            for name, found in study.readings.items()
            for cells in [_pair_cells(found.pairs[index], found)]
        ]
        heads = (_PAIR_HEADS[0], "reading", *_PAIR_HEADS[1:6], _PAIR_HEADS[-1])
        reasons = tuple(
            f"{READING_HEADS[name].capitalize()}, {note}"
            for name, found in study.readings.items()
            if name != "own"  # those of the table above
            for note in _open_notes(found)
        )
        tables.append(Table(f"Differences of {first.metric} under each reading", heads, tuple(rows), reasons))
    return tables


def convergence_tables(study: Study) -> list[Table]:
    """Return how fast groups learn, and by how much they differ in it."""
    found = study.convergence
    if found is None:
        return []
    fractions = sorted(found.steps_to)
    heads = ("mean AP", "95 % interval", *(f"steps to {100 * fraction:.0f} %" for fraction in fractions))
    # A share of nothing is no goal.
    known = any(points[-1].metric.value > 0 for points in found.curves.values())
    rows = [
        (group, written(area.value), interval(area), *(_steps(found.steps_to[f].get(group), known) for f in fractions))
        for group, area in found.area.items()
    ]
    pairs = [
        (
            f"{pair.a} {MINUS} {pair.b}",
            written(pair.area.value, signed=True),
            interval(pair.area, signed=True),
            *(_step_difference(pair.steps_to.get(f)) for f in fractions),
        )
        for pair in found.pairs
        if pair.area is not None
    ]
    titles = (
        "Convergence on the subset: mean AP over all steps, and steps to a part of the best AP",
        "Differences of convergence on the same images; fewer steps are better",
    )
    tables = [Table(titles[0], ("group", *heads), tuple(map(TableRow, rows)))]
    return [*tables, Table(titles[1], ("pair", *heads), tuple(map(TableRow, pairs)))] if pairs else tables


def own_value(decoding: Decoding, metric: str, run: RunData) -> float | None:
    """Return a metric of the boxes that are the run's headline."""
    return run.metrics.get(str(MetricName(decoding, metric, run.reading)))


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean of those that are there."""
    there = [value for value in values if value is not None]
    return fmean(there) if there else None


def pair_name(pair: PairResult) -> str:
    """Return ``C − A``: the first minus the second."""
    return f"{pair.a} {MINUS} {pair.b}"


def interval(estimate: Estimate | None, *, signed: bool = False, digits: int = 3) -> str:
    """Return ``[0.011, 0.098]``, or a dash where there is no interval."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return UNDEFINED
    low, high = (written(end, signed=signed, digits=digits) for end in (estimate.low, estimate.high))
    return f"[{low}, {high}]"


def written(value: float | None, *, signed: bool = False, digits: int = 3) -> str:
    """Return a number with a true minus sign, a plus sign if asked, or a dash."""
    if value is None:
        return UNDEFINED
    return f"{value:{'+' if signed else ''}.{digits}f}".replace("-", MINUS)


def num_objects(number: int) -> str:
    """Return how many objects a number rests on, and that they are too few where they are."""
    few = "" if number >= MIN_OBJECTS else " (too few)"
    return f"{number:,} {'object' if number == 1 else 'objects'}{few}"


def bucket_notes(study: Study) -> tuple[str, ...]:
    """Return on how many objects AP by size rests, below a table with its columns; nothing where that is not known."""
    sizes = next((part.num_by_size for part in study.breakdowns.values()), {})
    listed = ", ".join(f"AP_{name} {num_objects(number)}" for name, number in sizes.items())
    return (f"What AP by size rests on: {listed}.",) if listed else ()


def sample_notes(comparison: Comparison) -> tuple[str, ...]:
    """Return what to know of intervals of AP where there are few images, or categories are in few of them."""
    images, notes = comparison.images_a_category, list[str]()
    if comparison.num_images < FEWEST_IMAGES:
        notes.append(f"From {comparison.num_images} images nothing can be known of others: no interval, no difference.")
    elif comparison.num_images < MIN_OBJECTS:
        notes.append(f"{comparison.num_images} images are too few to rely on an interval.")
    if images is not None and images < FEW_IMAGES:
        notes.append(
            f"Too few images: a category is in {images:.1f} of the {comparison.num_images:,} on average (harmonic "
            "mean). Intervals are then too narrow, and hold for AP on as many images, not on more."
        )
    return tuple(notes)


def verdict_of(pair: PairResult, comparison: Comparison) -> str:
    """Return in a word what a pair's test says; with one seed it is about checkpoints."""
    if not has_learned(comparison, pair.a, pair.b):
        return "nothing learned"
    if not pair.significant:
        return "not told apart"
    better = pair.a if pair.difference.value > 0 else pair.b
    return f"{better} is better" if pair.seed_std is not None else f"{better} is higher"


def _groups(data: ExperimentData, comparison: Comparison) -> Table:
    heads = [name for name in AP_NAMES if name != comparison.metric]
    runs = {
        group: [run for run in data.groups.get(group, []) if run.seed in comparison.seeds[group]]
        for group in comparison.groups
    }
    is_trained = {run.group for run in data.trained}
    read_by = {group: (kind if group in is_trained else FILE,) for group, kind in data.readings.items()}
    if not is_trained:
        read_by = dict.fromkeys(read_by, ())
    rows = [
        (
            group,
            *read_by[group],
            ", ".join(map(str, comparison.seeds[group])),
            written(comparison.value[group].value),
            interval(comparison.value[group]),
            *(written(mean_of([own_value("constrained", name, run) for run in runs[group]])) for name in heads),
        )
        for group in comparison.groups
    ]
    who = "each group by its own reading" if len(data.groups) > 1 else "by its own reading"
    own = f", {who}, constrained decoding" if data.trained else ""
    title = f"{comparison.metric}{own}, {comparison.num_images} images"
    lead = ("group", "read by", "seeds") if is_trained else ("group", "seeds")
    return Table(title, (*lead, comparison.metric, "95 % interval", *heads), tuple(map(TableRow, rows)))


def _pairs(comparison: Comparison) -> Table:
    rows = [TableRow(_pair_cells(pair, comparison)) for pair in comparison.pairs]
    title = f"Differences of {comparison.metric} on the same images"
    return Table(title, _PAIR_HEADS, tuple(rows), tuple(_open_notes(comparison)))


def _open_notes(comparison: Comparison) -> list[str]:
    """Explain each pair that is not told apart beside an interval that leaves 0 out."""
    reasons = {pair_name(pair): open_reason(pair, len(comparison.pairs)) for pair in comparison.pairs}
    return [
        f"{pair}: the interval leaves 0 out, and yet the two are not told apart, since {reason}."
        for pair, reason in reasons.items()
        if reason
    ]


_PAIR_HEADS = (
    "pair", "difference", "95 % interval", "p, random swaps", "p, bootstrap", "p, corrected", "detectable",
    "standard error, images", "standard error, seeds", "verdict",
)  # fmt: skip


def _pair_cells(pair: PairResult, comparison: Comparison) -> tuple[str, ...]:
    return (
        pair_name(pair),
        written(pair.difference.value, signed=True),
        interval(pair.difference, signed=True),
        p_value(pair.p_swap),
        UNDEFINED if pair.p_bootstrap is None else p_value(pair.p_bootstrap),
        p_value(pair.p_holm),
        written(pair.detectable),
        written(pair.image_std, digits=4),
        written(pair.seed_std, digits=4),
        verdict_of(pair, comparison),
    )


def _step_difference(estimate: Estimate | None) -> str:
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

"""An experiment and its statistics -> tables as text, which every output format shows alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from coordexp.detection.metrics import detection_metrics
from coordexp.detection.metrics.f1 import F1_PERCENTS
from coordexp.metrics import (
    AP_NAMES,
    BOX_KINDS,
    GENERATION_METRICS,
    Decoding,
    Metric,
    MetricName,
    loss_head,
)
from coordexp.report.study.data import ExperimentData, RunData, by_group, state_text
from coordexp.report.study.study import Study
from coordexp.statistics.readings import ReadingName
from coordexp.statistics.results import Comparison, Convergence, Estimate, PairResult

UNDEFINED = "-"
_TEXT_COLUMNS = {
    "group",
    "boxes",
    "F1 of",
    "read by",
    "reading",
    "seed",
    "seeds",
    "state",
    "file",
    "frame",
    "pair",
    "part",
    "verdict",
    "key",
    "interval",
    "95 % interval",
}
MINUS = "\u2212"
READING_HEADS: Mapping[ReadingName, str] = {
    "own": "own",
    "expected": "all expected",
    "argmax": "all argmax",
    "free": "own, free decoding",
}


@dataclass(frozen=True)
class TableRow:
    """One line of a table; ``is_mean`` marks a mean over the seeds that follow it."""

    cells: tuple[str, ...]
    is_mean: bool = False


@dataclass(frozen=True)
class Table:
    """A table of text; the other columns are numbers and stand to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]

    def is_text(self, column: str) -> bool:
        """Return whether a column holds words."""
        return column in _TEXT_COLUMNS


@dataclass(frozen=True)
class NumberColumn:
    """A numeric column: its head, a run's value, and how a value is written."""

    head: str
    value: Callable[[RunData], float | None]
    write: Callable[[float], str]


def headline_table(data: ExperimentData) -> Table:
    """Return AP of both box kinds under constrained decoding, every seed, each group's own reading first."""
    rows: list[TableRow] = []
    for group, runs in data.groups.items():
        kinds = sorted(BOX_KINDS, key=lambda kind: kind != runs[0].reading)
        for kind in kinds if runs[0].foreign is None else kinds[:1]:
            names = [str(MetricName("constrained", name, kind)) for name in AP_NAMES]
            columns = [NumberColumn(name, partial(last_value, name), as_fraction) for name in names]
            rows += _group_rows(runs, columns, lead=lambda seed, group=group, kind=kind: (group, kind, seed))
    how = ", constrained decoding, each group's own reading first" if data.trained else " of each file"
    return Table(f"Average precision{how}", ("group", "boxes", "seed", *AP_NAMES), tuple(rows))


def by_seed(data: ExperimentData, title: str, columns: Sequence[NumberColumn]) -> Table:
    """Return a table with a row for each seed, below the mean over seeds."""
    rows = [
        row
        for group, runs in data.groups.items()
        for row in _group_rows(runs, columns, lead=lambda seed, group=group: (group, seed))
    ]
    return Table(title, ("group", "seed", *(column.head for column in columns)), tuple(rows))


def quality_tables(data: ExperimentData) -> list[Table]:
    """Return what separates ranking from boxes, every metric that a run has but COCO's own AP; and F1 twice."""
    measured = [
        NumberColumn(
            metric.declared.column,
            partial(own_value, "constrained", metric.name),
            as_count if metric.declared.is_count else as_fraction,
        )
        for metric in detection_metrics()
        if metric.declared.in_report and metric.name not in AP_NAMES
    ]
    duplicates = next(metric for metric in GENERATION_METRICS if metric.name == "duplicates")
    columns = [
        NumberColumn("AP", partial(own_value, "constrained", "AP"), as_fraction),
        *measured,
        evaluation_column(duplicates, "constrained"),
    ]
    columns = [column for column in columns if any(column.value(run) is not None for run in data.runs)]
    if all(column.head == "AP" for column in columns):
        return []
    how = ": each group by its own reading, constrained decoding" if data.trained else ""
    return [by_seed(data, f"Ranking and boxes apart{how}", columns), *f1_tables(data)]


def f1_tables(data: ExperimentData) -> list[Table]:
    """Return macro F1 with every detection, in the positive-only protocol, and how much of that is the protocol."""
    names = {f".{percent}": f"_{percent}" for percent in F1_PERCENTS} | {"mean .50:.95": ""}

    def protocols_part(suffix: str, run: RunData) -> float | None:
        honest, positive = (own_value("constrained", f"F1_{kind}{suffix}", run) for kind in ("macro", "positive"))
        return None if honest is None or positive is None else positive - honest

    kinds: dict[str, Callable[[str, RunData], float | None]] = {
        "all detections": lambda suffix, run: own_value("constrained", f"F1_macro{suffix}", run),
        "positive-only": lambda suffix, run: own_value("constrained", f"F1_positive{suffix}", run),
        "protocol's part": protocols_part,
    }
    rows: list[TableRow] = []
    for group, runs in data.groups.items():
        for kind, value in kinds.items():
            write = partial(written, signed=value is protocols_part)
            columns = [NumberColumn(head, partial(value, suffix), write) for head, suffix in names.items()]
            rows += _group_rows(runs, columns, lead=lambda seed, group=group, kind=kind: (group, kind, seed))
    if all(cell == UNDEFINED for row in rows for cell in row.cells[3:]):
        return []
    return [
        Table(
            "F1 over categories, twice: of all detections, and in the positive-only protocol of other papers",
            ("group", "F1 of", "seed", *names),
            tuple(rows),
        )
    ]


def evaluation_column(metric: Metric, decoding: Decoding) -> NumberColumn:
    """Return the column of a metric that does not depend on boxes."""
    name = str(MetricName(decoding, metric.name))
    return NumberColumn(metric.column, partial(last_value, name), as_count if metric.is_count else as_fraction)


def gradients_table(data: ExperimentData) -> list[Table]:
    """Return how often gradients were scaled down, and their norms before that, where it was measured."""
    columns = [
        NumberColumn("clipped steps", partial(last_value, "clipped_fraction"), as_fraction),
        NumberColumn("mean norm", partial(last_value, "mean_grad_norm"), as_fraction),
        NumberColumn("smallest logged", lambda run: min(run.values("grad_norm"), default=None), as_fraction),
        NumberColumn("largest logged", lambda run: max(run.values("grad_norm"), default=None), as_fraction),
        NumberColumn("limit", lambda run: run.number("training.max_grad_norm"), as_fraction),
    ]
    if all(columns[0].value(run) is None for run in data.runs):
        return []
    return [by_seed(data, "Gradients: share of all steps that were scaled down, and norms before that", columns)]


def runs_table(data: ExperimentData) -> Table:
    """Return where each run stands, and its last losses."""
    columns = [
        NumberColumn("steps", lambda run: float(run.step), as_count),
        NumberColumn("seconds", partial(last_value, "final/train_seconds"), as_count),
    ] + [NumberColumn(loss_head(name), partial(last_value, f"train_{name}"), _loss) for name in data.loss_names]
    rows: list[TableRow] = []
    for group, runs in by_group(data.trained).items():
        states = {str(run.seed): state_text(run) for run in runs}
        rows += _group_rows(
            runs, columns, lead=lambda seed, group=group, states=states: (group, seed, states.get(seed, ""))
        )
    heads = ("group", "seed", "state", *(column.head for column in columns))
    return Table("Runs: steps, training seconds and last training losses", heads, tuple(rows))


def files_table(data: ExperimentData) -> Table:
    """Return the files of detections that stand for runs."""
    rows = [
        TableRow(
            (
                run.group,
                str(run.seed),
                str(run.foreign.path),
                run.foreign.frame,
                f"{run.foreign.num_detections:,}",
                f"{run.foreign.num_images:,}",
                run.foreign.scores,
            )
        )
        for run in data.runs
        if run.foreign is not None
    ]
    heads = ("group", "seed", "file", "frame", "boxes", "images with boxes", "scores")
    return Table("Files of detections", heads, tuple(rows))


def _group_rows(
    runs: Sequence[RunData], columns: Sequence[NumberColumn], *, lead: Callable[[str], tuple[str, ...]]
) -> list[TableRow]:
    """Return a row for each seed; if there are several, the mean over the finished ones above them.

    Foreign rows of which nothing is known are left out: a file does not say how it was trained or generated.
    """
    values = [[column.value(run) for column in columns] for run in runs]
    if runs[0].foreign is not None and all(value is None for row in values for value in row):
        return []
    rows = [TableRow((*lead(str(run.seed)), *_written(row, columns))) for run, row in zip(runs, values, strict=True)]
    if len(runs) == 1:
        return rows
    finished = [row for run, row in zip(runs, values, strict=True) if run.state == "finished"]
    means = [_mean([row[index] for row in finished]) for index in range(len(columns))]
    return [TableRow((*lead(f"mean of {len(finished)}"), *_written(means, columns)), is_mean=True), *rows]


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if there else None


def _written(values: Sequence[float | None], columns: Sequence[NumberColumn]) -> list[str]:
    return [UNDEFINED if value is None else column.write(value) for value, column in zip(values, columns, strict=True)]


def last_value(name: str, run: RunData) -> float | None:
    """Return the last value of a metric."""
    return run.metrics.get(name)


def own_value(decoding: Decoding, metric: str, run: RunData) -> float | None:
    """Return a metric of the boxes that are the run's headline."""
    return run.metrics.get(str(MetricName(decoding, metric, run.reading)))


def as_fraction(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:.3f}"


def _loss(value: float) -> str:
    return f"{value:.4f}"


def as_signed(value: float) -> str:
    """Return a number as log-odds are written."""
    return written(value, signed=True, digits=2)


def as_count(value: float) -> str:
    """Return a whole number, or one digit of a small mean."""
    return f"{value:.0f}" if value == round(value) or value >= 100 else f"{value:.1f}"


def study_tables(study: Study) -> list[Table]:
    """Return the tables with intervals, as far as there are any."""
    found: list[Table] = []
    if study.comparison is not None:
        found.append(_groups(study.data, study.comparison))
        if study.comparison.pairs:
            found.append(_pairs(study.comparison))
    found += readings_tables(study)
    return found + convergence_tables(study)


def readings_tables(study: Study) -> list[Table]:
    """Return AP and differences under every reading, where there are others than the own one."""
    if len(study.readings) < 2:
        return []
    first = study.readings["own"]
    by_group = [
        TableRow(
            (
                group,
                *(
                    f"{written(found.value[group].value)} {interval(found.value[group])}"
                    for found in study.readings.values()
                ),
            )
        )
        for group in first.groups
    ]
    heads = ("group", *(READING_HEADS[name] for name in study.readings))
    tables = [Table(f"{first.metric} under each reading, with its 95 % interval", heads, tuple(by_group))]
    if first.pairs:
        rows = [
            TableRow((cells[0], READING_HEADS[name], *cells[1:6], cells[-1]))  # the design is that of the table above
            for index in range(len(first.pairs))
            for name, found in study.readings.items()
            for cells in [_pair_cells(found.pairs[index])]
        ]
        heads = (_PAIR_HEADS[0], "reading", *_PAIR_HEADS[1:6], _PAIR_HEADS[-1])
        tables.append(Table(f"Differences of {first.metric} under each reading", heads, tuple(rows)))
    return tables


def convergence_tables(study: Study) -> list[Table]:
    """Return how fast groups learn, and by how much they differ in it."""
    if study.convergence is None:
        return []
    found = [_convergence(study.convergence)]
    if study.convergence.area_difference:
        found.append(_convergence_pairs(study.convergence))
    return found


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


def p_value(p: float) -> str:
    """Return a p-value as people write it."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def verdict_of(pair: PairResult) -> str:
    """Return in a word what a pair's test says; with one seed it is about checkpoints."""
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
    read_by = {group: (kind if group in is_trained else "its file",) for group, kind in data.readings.items()}
    if not is_trained:
        read_by = dict.fromkeys(read_by, ())
    rows = [
        TableRow(
            (
                group,
                *read_by[group],
                ", ".join(map(str, comparison.seeds[group])),
                written(comparison.value[group].value),
                interval(comparison.value[group]),
                *(written(_mean([own_value("constrained", name, run) for run in runs[group]])) for name in heads),
            )
        )
        for group in comparison.groups
    ]
    own = ", each group by its own reading, constrained decoding" if data.trained else ""
    title = f"{comparison.metric}{own}, {comparison.num_images} images"
    lead = ("group", "read by", "seeds") if is_trained else ("group", "seeds")
    return Table(title, (*lead, comparison.metric, "95 % interval", *heads), tuple(rows))


def _pairs(comparison: Comparison) -> Table:
    rows = [TableRow(_pair_cells(pair)) for pair in comparison.pairs]
    return Table(f"Differences of {comparison.metric} on the same images", _PAIR_HEADS, tuple(rows))


_PAIR_HEADS = (
    "pair", "difference", "95 % interval", "p swaps", "p boot", "p Holm", "detectable", "std images", "std seeds",
    "verdict",
)  # fmt: skip


def _pair_cells(pair: PairResult) -> tuple[str, ...]:
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
        verdict_of(pair),
    )


def _convergence(convergence: Convergence) -> Table:
    fractions = sorted(convergence.steps_to)
    # A share of nothing is no goal.
    known = any(points[-1].metric.value > 0 for points in convergence.curves.values())
    rows = [
        TableRow(
            (
                group,
                written(area.value),
                interval(area),
                *(_steps(convergence.steps_to[fraction].get(group), known=known) for fraction in fractions),
            )
        )
        for group, area in convergence.area.items()
    ]
    heads = ("group", "area", "95 % interval", *(f"steps to {fraction:.0%}" for fraction in fractions))
    return Table(
        "Convergence on the subset: mean height of the AP curve, steps to a part of the best AP", heads, tuple(rows)
    )


def _convergence_pairs(convergence: Convergence) -> Table:
    fractions = sorted(convergence.steps_to)
    rows = [
        TableRow(
            (
                f"{a} {MINUS} {b}",
                written(area.value, signed=True),
                interval(area, signed=True),
                *(_step_difference(convergence.steps_to_difference[f].get((a, b))) for f in fractions),
            )
        )
        for (a, b), area in convergence.area_difference.items()
    ]
    heads = ("pair", "area", "95 % interval", *(f"steps to {fraction:.0%}" for fraction in fractions))
    return Table("Differences of convergence on the same images; fewer steps are better", heads, tuple(rows))


def _step_difference(estimate: Estimate | None) -> str:
    if estimate is None:
        return UNDEFINED
    ends = ("open" if end is None else written(end, signed=True, digits=0) for end in (estimate.low, estimate.high))
    return f"{written(estimate.value, signed=True, digits=0)} [{', '.join(ends)}]"


def _steps(estimate: Estimate | None, *, known: bool) -> str:
    if estimate is None:
        return "never" if known else UNDEFINED
    if estimate.low is None:
        return f"{estimate.value:.0f}"
    high = "never" if estimate.high is None else f"{estimate.high:.0f}"
    return f"{estimate.value:.0f} [{estimate.low:.0f}, {high}]"

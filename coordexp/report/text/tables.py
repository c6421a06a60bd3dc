"""An experiment -> tables and notes, as text that every output format shows alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from coordexp.detection.measure import detection_metrics
from coordexp.metrics import (
    AP_NAMES,
    GENERATION_METRICS,
    HEADLINE,
    BoxKind,
    Decoding,
    Metric,
    MetricName,
    loss_head,
)
from coordexp.report.study.data import ExperimentData, RunData, state_text

UNDEFINED = "-"
_TEXT_COLUMNS = {"group", "boxes", "seed", "seeds", "state", "pair", "verdict", "key", "interval", "95 % interval"}
_KINDS = "free/malformed/"


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
class _NumberColumn:
    """A numeric column: its head, a run's value, and how a value is written."""

    head: str
    value: Callable[[RunData], float | None]
    write: Callable[[float], str]


def tables(data: ExperimentData) -> list[Table]:
    """Return the headline, free decoding, quality where it was measured, and the runs with their losses."""
    return [headline_table(data), *free_tables(data), *quality_tables(data), runs_table(data)]


def headline_table(data: ExperimentData) -> Table:
    """Return AP of both box kinds under constrained decoding, every seed."""
    kinds: tuple[BoxKind, ...] = ("expected", "argmax")
    rows: list[TableRow] = []
    for group, runs in data.groups.items():
        for kind in kinds:
            names = [str(MetricName("constrained", name, kind)) for name in AP_NAMES]
            columns = [_NumberColumn(name, partial(_metric, name), _fraction) for name in names]
            rows += _group_rows(runs, columns, lead=lambda seed, group=group, kind=kind: (group, kind, seed))
    return Table("Average precision, constrained decoding", ("group", "boxes", "seed", *AP_NAMES), tuple(rows))


def free_tables(data: ExperimentData) -> list[Table]:
    """Return what models write without the grammar: AP, counts, and malformed objects by kind where there are any."""
    precision = [
        _NumberColumn("AP exp.", partial(_metric, str(MetricName("free", "AP", "expected"))), _fraction),
        _NumberColumn("AP argmax", partial(_metric, str(MetricName("free", "AP", "argmax"))), _fraction),
        _NumberColumn("AP50 exp.", partial(_metric, str(MetricName("free", "AP50", "expected"))), _fraction),
    ]
    counts = [_evaluation_column(metric, "free") for metric in GENERATION_METRICS if metric.in_report]
    names = sorted({name for run in data.runs for name, n in run.metrics.items() if name.startswith(_KINDS) and n})
    kinds = [
        _NumberColumn(name.removeprefix(_KINDS).replace("_", " "), partial(_metric, name), _count) for name in names
    ]
    found = [
        _by_seed(data, "Free decoding: average precision", precision),
        _by_seed(data, "Free decoding: what was written", counts),
    ]
    if kinds:
        found.append(_by_seed(data, "Free decoding: malformed objects by kind", kinds))
    return found


def _by_seed(data: ExperimentData, title: str, columns: Sequence[_NumberColumn]) -> Table:
    rows = [
        row
        for group, runs in data.groups.items()
        for row in _group_rows(runs, columns, lead=lambda seed, group=group: (group, seed))
    ]
    return Table(title, ("group", "seed", *(column.head for column in columns)), tuple(rows))


def quality_tables(data: ExperimentData) -> list[Table]:
    """Return what separates ranking from boxes, where it was measured: every metric of boxes but COCO's own AP."""
    measured = [
        _evaluation_column(metric.declared, "constrained", "expected")
        for metric in detection_metrics()
        if metric.declared.in_report and metric.name not in AP_NAMES
    ]
    duplicates = next(metric for metric in GENERATION_METRICS if metric.name == "duplicates")
    columns = [
        _NumberColumn("AP", partial(_metric, HEADLINE), _fraction),
        *measured,
        _evaluation_column(duplicates, "constrained"),
    ]
    if all(column.value(run) is None for column in columns[1:] for run in data.runs):
        return []
    return [_by_seed(data, "Ranking and boxes apart: expected boxes, constrained decoding", columns)]


def _evaluation_column(metric: Metric, decoding: Decoding, boxes: BoxKind | None = None) -> _NumberColumn:
    name = str(MetricName(decoding, metric.name, boxes))
    return _NumberColumn(metric.column, partial(_metric, name), _count if metric.is_count else _fraction)


def runs_table(data: ExperimentData) -> Table:
    """Return where each run stands, and its last losses."""
    columns = [
        _NumberColumn("steps", lambda run: float(run.step), _count),
        _NumberColumn("seconds", partial(_metric, "final/train_seconds"), _count),
    ] + [_NumberColumn(loss_head(name), partial(_metric, f"train_{name}"), _loss) for name in data.loss_names]
    rows: list[TableRow] = []
    for group, runs in data.groups.items():
        states = {str(run.seed): state_text(run) for run in runs}
        rows += _group_rows(
            runs, columns, lead=lambda seed, group=group, states=states: (group, seed, states.get(seed, ""))
        )
    heads = ("group", "seed", "state", *(column.head for column in columns))
    return Table("Runs: steps, training seconds and last training losses", heads, tuple(rows))


def _group_rows(
    runs: Sequence[RunData], columns: Sequence[_NumberColumn], *, lead: Callable[[str], tuple[str, ...]]
) -> list[TableRow]:
    """Return a row for each seed; if there are several, the mean over the finished ones above them."""
    values = [[column.value(run) for column in columns] for run in runs]
    rows = [TableRow((*lead(str(run.seed)), *_written(row, columns))) for run, row in zip(runs, values, strict=True)]
    if len(runs) == 1:
        return rows
    finished = [row for run, row in zip(runs, values, strict=True) if run.state == "finished"]
    means = [_mean([row[index] for row in finished]) for index in range(len(columns))]
    return [TableRow((*lead(f"mean of {len(finished)}"), *_written(means, columns)), is_mean=True), *rows]


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if there else None


def _written(values: Sequence[float | None], columns: Sequence[_NumberColumn]) -> list[str]:
    return [UNDEFINED if value is None else column.write(value) for value, column in zip(values, columns, strict=True)]


def _metric(name: str, run: RunData) -> float | None:
    return run.metrics.get(name)


def _fraction(value: float) -> str:
    return f"{value:.3f}"


def _loss(value: float) -> str:
    return f"{value:.4f}"


def _count(value: float) -> str:
    return f"{value:.0f}" if value == round(value) or value >= 100 else f"{value:.1f}"

"""The numbers of runs, a column a metric and a row a seed, below the mean over seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

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
from coordexp.report.text.tables import COUNTED, FILE, UNDEFINED, Table, TableRow, mean_of, own_value, written


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
            read_by = kind if runs[0].foreign is None else FILE
            rows += _group_rows(runs, columns, lead=lambda seed, group=group, read_by=read_by: (group, read_by, seed))
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
    duplicates = next(metric for metric in GENERATION_METRICS if metric.name == "duplicate_rate")
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
    names = {f"IoU .{percent}": f"_{percent}" for percent in F1_PERCENTS} | {"mean of IoU .50 to .95": ""}

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
            ("group", COUNTED, "seed", *names),
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
        NumberColumn("share of steps clipped", partial(last_value, "clipped_fraction"), as_fraction),
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
    ] + [
        NumberColumn(f"{loss_head(name)} loss", partial(last_value, f"train_{name}"), _loss) for name in data.loss_names
    ]
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
    heads = ("group", "seed", "file", "frame", "detections", "images with detections", "scores")
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
    means = [mean_of([row[index] for row in finished]) for index in range(len(columns))]
    return [TableRow((*lead(f"mean of {len(finished)}"), *_written(means, columns)), is_mean=True), *rows]


def _written(values: Sequence[float | None], columns: Sequence[NumberColumn]) -> list[str]:
    return [UNDEFINED if value is None else column.write(value) for value, column in zip(values, columns, strict=True)]


def last_value(name: str, run: RunData) -> float | None:
    """Return the last value of a metric."""
    return run.metrics.get(name)


def as_fraction(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:.3f}"


def _loss(value: float) -> str:
    return f"{value:.4f}"


def as_count(value: float) -> str:
    """Return a whole number, or one digit of a small mean."""
    return f"{value:.0f}" if value == round(value) or value >= 100 else f"{value:.1f}"

"""The last values of runs, a column a metric and a row a seed, below the mean over seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from coordexp.data.units import UnitNames
from coordexp.detection.metrics import detection_metrics
from coordexp.detection.metrics.f1 import F1_PERCENTS
from coordexp.metrics import (
    AP_NAMES,
    BOX_KINDS,
    DECODINGS,
    GENERATION_METRICS,
    SERVED_AP,
    Decoding,
    MetricName,
    loss_head,
)
from coordexp.report.records.data import ExperimentData, RunRecord, by_group, state_text
from coordexp.report.table import COUNTED, Table, TableRow
from coordexp.report.text.tables import FILE, UNDEFINED, mean_of, written

_KINDS = "free/malformed/"
_THREE_DIGITS = "{:.3f}".format


@dataclass(frozen=True)
class NumberColumn:
    """A numeric column: its head, a run's value, and how a value is written."""

    head: str
    value: Callable[[RunRecord], float | None]
    write: Callable[[float], str] = _THREE_DIGITS


def headline_table(data: ExperimentData, notes: tuple[str, ...] = ()) -> Table:
    """Return AP of both box kinds under constrained decoding, every seed, each group's own reading first."""
    rows: list[TableRow] = []
    for group, runs in data.groups.items():
        own_first = sorted(BOX_KINDS, key=lambda kind: kind != runs[0].reading)
        is_file = runs[0].foreign is not None  # which has one kind of boxes
        for kind in own_first[:1] if is_file else own_first:
            columns = [_logged(name, MetricName("constrained", name, kind)) for name in AP_NAMES]
            rows += _seed_rows(runs, columns, group, FILE if is_file else kind)
    how = ", constrained decoding, each group's own reading first" if data.trained else " of each file"
    return Table(f"Average precision{how}", ("group", "boxes", "seed", *AP_NAMES), tuple(rows), notes)


def answer_tables(data: ExperimentData) -> list[Table]:
    """Return what models write: AP and counts without the grammar, what an object costs, repeats, answers cut off."""
    columns_by_title = {
        "Free decoding: average precision": [
            _own("AP", "AP", "free"),
            _logged("AP, expectation", MetricName("free", "AP", "expected")),
            _logged("AP, argmax", MetricName("free", "AP", "argmax")),
            _own("AP50", "AP50", "free"),
        ],
        "Free decoding: what was written": [
            _logged(metric.column, MetricName("free", metric.name), is_count=metric.is_count)
            for metric in GENERATION_METRICS
            if metric.in_report
        ],
    }
    for title, columns in _detailed_columns(data).items():
        columns_by_title[title] = _measured(data, columns)
    tables = [by_seed(data, title, columns) for title, columns in columns_by_title.items() if columns]
    return [table for table in tables if table.rows]


def _detailed_columns(data: ExperimentData) -> dict[str, list[NumberColumn]]:
    """Return the columns of tables of answers of which only those are shown that any run has measured."""
    kinds: set[str] = set()
    for run in data.runs:
        kinds |= {name for name, count in run.metrics.items() if name.startswith(_KINDS) and count}
    columns_by_title = {
        "Free decoding: malformed objects by kind": [
            _logged(name.removeprefix(_KINDS).replace("_", " "), name, is_count=True) for name in sorted(kinds)
        ],
        "What an object costs: generated tokens, and seconds of generation": _by_decoding(
            lambda decoding: [
                _logged(f"tokens per object, {decoding}", MetricName(decoding, "tokens_per_object")),
                _logged(f"seconds per object, {decoding}", MetricName(decoding, "seconds_per_object")),
            ]
        ),
        f"Speed of generation, all workers at once, on {_machines(data)}": _by_decoding(
            lambda decoding: [
                _logged(f"images per second, {decoding}", MetricName(decoding, "images_per_second")),
                _logged(f"boxes per second, {decoding}", MetricName(decoding, "boxes_per_second")),
            ]
        ),
        "Answers cut off at the token limit": _by_decoding(
            lambda decoding: [
                _logged(f"answers, {decoding}", MetricName(decoding, "truncated_images"), is_count=True),
                _logged(f"share, {decoding}", MetricName(decoding, "truncated_fraction")),
            ]
        ),
    }
    if any(_has_repeats(run) for run in data.runs):
        title = "Objects that repeat an earlier one exactly, and AP with each answer cut at the first of them"
        columns_by_title[title] = [*_by_decoding(_repeat_columns), *_by_decoding(_cut_columns)]
    return columns_by_title


def _has_repeats(run: RunRecord) -> bool:
    return any(run.metrics.get(str(MetricName(decoding, "longest_repeat"))) for decoding in DECODINGS)


def _repeat_columns(decoding: Decoding) -> list[NumberColumn]:
    return [
        _logged(f"repeats, {decoding}", MetricName(decoding, "duplicate_rate")),
        _logged(f"in a row, {decoding}", MetricName(decoding, "longest_repeat"), is_count=True),
    ]


def _cut_columns(decoding: Decoding) -> list[NumberColumn]:
    return [_own(f"AP, {decoding}", "AP", decoding), _own(f"AP cut, {decoding}", "AP_cut", decoding)]


def _by_decoding(columns_of: Callable[[Decoding], list[NumberColumn]]) -> list[NumberColumn]:
    columns: list[NumberColumn] = []
    for decoding in DECODINGS:
        columns += columns_of(decoding)
    return columns


def quality_tables(data: ExperimentData) -> list[Table]:
    """Return what separates ranking from boxes, every metric that a run has but COCO's own AP; and F1 twice."""
    columns: list[NumberColumn] = []
    for metric in detection_metrics():
        declared = metric.declared
        if declared.in_report and declared.name not in AP_NAMES:
            columns.append(_own(declared.column, declared.name, is_count=declared.is_count))
    measured = _measured(data, columns)
    if not measured:
        return []
    how = ": each group by its own reading, constrained decoding" if data.trained else ""
    ap = _measured(data, [_own("AP", "AP")])
    return [by_seed(data, f"Ranking and boxes apart{how}", [*ap, *measured]), *f1_tables(data)]


def f1_tables(data: ExperimentData) -> list[Table]:
    """Return macro F1 with every detection, in the positive-only protocol, and how much of that is the protocol."""
    suffixes = {f"IoU .{percent}": f"_{percent}" for percent in F1_PERCENTS} | {"mean of IoU .50 to .95": ""}

    def part_of_protocol(suffix: str, run: RunRecord) -> float | None:
        all_detections = run.own("constrained", f"F1_macro{suffix}")
        positive_only = run.own("constrained", f"F1_positive{suffix}")
        if all_detections is None or positive_only is None:
            return None
        return positive_only - all_detections

    kinds = {
        "all detections": [_own(head, f"F1_macro{suffix}") for head, suffix in suffixes.items()],
        "positive-only": [_own(head, f"F1_positive{suffix}") for head, suffix in suffixes.items()],
        "protocol's part": [
            NumberColumn(head, partial(part_of_protocol, suffix), partial(written, signed=True))
            for head, suffix in suffixes.items()
        ],
    }
    rows: list[TableRow] = []
    for group, runs in data.groups.items():
        for kind, columns in kinds.items():
            rows += _seed_rows(runs, columns, group, kind)
    if all(cell == UNDEFINED for row in rows for cell in row.cells[3:]):
        return []
    title = "F1 over categories, twice: of all detections, and in the positive-only protocol of other papers"
    return [Table(title, ("group", COUNTED, "seed", *suffixes), tuple(rows))]


def served_tables(data: ExperimentData) -> list[Table]:
    """Return AP as a client of a server can have it: by the tokens as written, and by the likeliest ones alone."""
    columns = [
        _logged("argmax", MetricName("constrained", "AP", "argmax")),
        *(_logged(f"top {number}", MetricName("constrained", name, "expected")) for number, name in SERVED_AP.items()),
        _logged("expected", MetricName("constrained", "AP", "expected")),
    ]
    if not _measured(data, columns[1:-1]):
        return []
    title = "Served: AP of the tokens as written, by expectation over the likeliest tokens, and over all bins"
    return [by_seed(data, title, columns)]


def gradients_table(data: ExperimentData) -> list[Table]:
    """Return the norms of gradients and how many steps were clipped; none for runs that did not measure it."""
    columns = [
        _logged("share of steps clipped", "clipped_fraction"),
        _logged("mean norm", "mean_grad_norm"),
        NumberColumn("smallest logged", lambda run: min(run.values("grad_norm"), default=None)),
        NumberColumn("largest logged", lambda run: max(run.values("grad_norm"), default=None)),
        NumberColumn("limit", lambda run: run.number("training.max_grad_norm")),
    ]
    if not _measured(data, columns[:1]):
        return []
    return [by_seed(data, "Gradients: share of all steps that were scaled down, and norms before that", columns)]


def ends_tables(data: ExperimentData, units: UnitNames | None = None) -> list[Table]:
    """Return where each run stands with its last losses, and the files that stand for runs."""
    losses = [_logged(f"{loss_head(name)} loss", f"train_{name}") for name in data.loss_names]
    columns = [
        NumberColumn("steps", lambda run: float(run.step), as_count),
        _logged("seconds", "final/train_seconds", is_count=True),
        *(replace(column, write="{:.4f}".format) for column in losses),
    ]
    rows: list[TableRow] = []
    for group, runs in by_group(data.trained).items():
        states = {str(run.seed): state_text(run) for run in runs}
        for row in _seed_rows(runs, columns, group):
            seed = row.cells[1]
            rows.append(TableRow((group, seed, states.get(seed, ""), *row.cells[2:]), is_mean=row.is_mean))
    heads = ("group", "seed", "state", *(column.head for column in columns))
    trained = Table("Runs: steps, training seconds and last training losses", heads, tuple(rows))
    return [table for table in (trained, _files_table(data, units)) if table.rows]


def _files_table(data: ExperimentData, units: UnitNames | None) -> Table:
    """Return the files that stand for runs, with the units of their images where there are units."""
    rows: list[tuple[str, ...]] = []
    for run in data.runs:
        file = run.foreign
        if file is None:
            continue
        of_units = () if units is None else (f"{units.numbered(file.image_ids).num_units:,}",)
        lead = (run.group, str(run.seed), str(file.path), file.frame)
        rows.append((*lead, f"{file.num_detections:,}", f"{file.num_images:,}", *of_units, file.scores))
    unit_head = () if units is None else ("units with detections",)
    heads = ("group", "seed", "file", "frame", "detections", "images with detections", *unit_head, "scores")
    return Table.of("Files of detections", heads, rows)


def by_seed(data: ExperimentData, title: str, columns: Sequence[NumberColumn]) -> Table:
    """Return a table with a row for each seed of each group, below the mean of the group."""
    rows: list[TableRow] = []
    for group, runs in data.groups.items():
        rows += _seed_rows(runs, columns, group)
    return Table(title, ("group", "seed", *(column.head for column in columns)), tuple(rows))


def as_count(value: float) -> str:
    return f"{value:.0f}" if value == round(value) or value >= 100 else f"{value:.1f}"


def _seed_rows(runs: Sequence[RunRecord], columns: Sequence[NumberColumn], *lead: str) -> list[TableRow]:
    """Return a row for each seed; if there are several, the mean over the finished ones above them.

    Args:
        runs: of one group, at least one.
        columns: the numbers of each row.
        lead: the cells in front of the seed.
    """
    values_by_run = [[column.value(run) for column in columns] for run in runs]
    if runs[0].foreign is not None and all(value is None for values in values_by_run for value in values):
        return []  # a file does not say how it was trained or generated

    def row(seed: str, values: Sequence[float | None], *, is_mean: bool = False) -> TableRow:
        cells = [
            UNDEFINED if value is None else column.write(value) for value, column in zip(values, columns, strict=True)
        ]
        return TableRow((*lead, seed, *cells), is_mean=is_mean)

    rows = [row(str(run.seed), values) for run, values in zip(runs, values_by_run, strict=True)]
    if len(runs) == 1:
        return rows
    finished = [values for run, values in zip(runs, values_by_run, strict=True) if run.state == "finished"]
    means = [mean_of([values[place] for values in finished]) for place in range(len(columns))]
    return [row(f"mean of {len(finished)}", means, is_mean=True), *rows]


def _machines(data: ExperimentData) -> str:
    """Name the hardware, by group where it was not the same for all."""
    names_by_group = {
        group: {run.hardware or "unknown hardware" for run in runs} for group, runs in data.groups.items()
    }
    all_names = set[str]().union(*names_by_group.values())
    if len(all_names) == 1:
        return all_names.pop()
    return "; ".join(f"{', '.join(sorted(names))} ({group})" for group, names in names_by_group.items())


def _measured(data: ExperimentData, columns: Sequence[NumberColumn]) -> list[NumberColumn]:
    """Return the columns of which any run has a value."""
    return [column for column in columns if any(column.value(run) is not None for run in data.runs)]


def _logged(head: str, name: MetricName | str, *, is_count: bool = False) -> NumberColumn:
    """Return a column of a metric by its full name."""
    write = as_count if is_count else _THREE_DIGITS
    return NumberColumn(head, lambda run: run.metrics.get(str(name)), write)


def _own(head: str, metric: str, decoding: Decoding = "constrained", *, is_count: bool = False) -> NumberColumn:
    """Return a column of a metric of the boxes by which each group is read."""
    write = as_count if is_count else _THREE_DIGITS
    return NumberColumn(head, lambda run: run.own(decoding, metric), write)

"""The last values of runs, a column a metric and a row a seed, below the mean over seeds."""

from collections.abc import Callable, Iterable, Sequence
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
from coordexp.report.study.data import ExperimentData, RunRecord, by_group, state_text
from coordexp.report.text.tables import COUNTED, FILE, UNDEFINED, Table, TableRow, mean_of, written

_KINDS = "free/malformed/"


@dataclass(frozen=True)
class NumberColumn:
    """A numeric column: its head, a run's value, and how a value is written."""

    head: str
    value: Callable[[RunRecord], float | None]
    write: Callable[[float], str] = "{:.3f}".format


def headline_table(data: ExperimentData, notes: tuple[str, ...] = ()) -> Table:
    """Return AP of both box kinds under constrained decoding, every seed, each group's own reading first."""
    rows: list[TableRow] = []
    for group, runs in data.groups.items():
        kinds = sorted(BOX_KINDS, key=lambda kind: kind != runs[0].reading)
        for kind in kinds if runs[0].foreign is None else kinds[:1]:
            columns = [_logged(name, MetricName("constrained", name, kind)) for name in AP_NAMES]
            rows += _seed_rows(runs, columns, group, kind if runs[0].foreign is None else FILE)
    how = ", constrained decoding, each group's own reading first" if data.trained else " of each file"
    return Table(f"Average precision{how}", ("group", "boxes", "seed", *AP_NAMES), tuple(rows), notes)


def answer_tables(data: ExperimentData) -> list[Table]:
    """Return what models write: AP and counts without the grammar, what an object costs, repeats, answers cut off."""

    def both(*names: tuple[str, str, bool]) -> list[NumberColumn]:
        return [
            _logged(f"{head}, {decoding}", MetricName(decoding, name), is_count=is_count)
            for decoding in DECODINGS
            for name, head, is_count in names
        ]

    kinds = sorted({name for run in data.runs for name, n in run.metrics.items() if name.startswith(_KINDS) and n})
    found = {
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
        "Free decoding: malformed objects by kind": [
            _logged(name.removeprefix(_KINDS).replace("_", " "), name, is_count=True) for name in kinds
        ],
        "What an object costs: generated tokens, and seconds of generation": both(
            ("tokens_per_object", "tokens per object", False), ("seconds_per_object", "seconds per object", False)
        ),
        f"Speed of generation, all workers at once, on {_machines(data)}": both(
            ("images_per_second", "images per second", False), ("boxes_per_second", "boxes per second", False)
        ),
        "Answers cut off at the token limit": both(
            ("truncated_images", "answers", True), ("truncated_fraction", "share", False)
        ),
    }
    if any(run.metrics.get(str(MetricName(way, "longest_repeat"))) for run in data.runs for way in DECODINGS):
        found["Objects that repeat an earlier one exactly, and AP with each answer cut at the first of them"] = [
            *both(("duplicate_rate", "repeats", False), ("longest_repeat", "in a row", True)),
            *(_own(f"{head}, {way}", head.replace(" ", "_"), way) for way in DECODINGS for head in ("AP", "AP cut")),
        ]
    always = list(found)[:2]
    shown = {title: columns if title in always else _measured(data, columns) for title, columns in found.items()}
    tables = [by_seed(data, title, columns) for title, columns in shown.items() if columns]
    return [table for table in tables if table.rows]


def quality_tables(data: ExperimentData) -> list[Table]:
    """Return what separates ranking from boxes, every metric that a run has but COCO's own AP; and F1 twice."""
    metrics = [metric.declared for metric in detection_metrics() if metric.declared.in_report]
    columns = [_own(m.column, m.name, is_count=m.is_count) for m in metrics if m.name not in AP_NAMES]
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
        honest, positive = (run.own("constrained", f"F1_{kind}{suffix}") for kind in ("macro", "positive"))
        return None if honest is None or positive is None else positive - honest

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
    rows = [row for group, runs in data.groups.items() for row in _seed_rows(runs, columns, group)]
    return Table(title, ("group", "seed", *(column.head for column in columns)), tuple(rows))


def as_count(value: float) -> str:
    return f"{value:.0f}" if value == round(value) or value >= 100 else f"{value:.1f}"


def _seed_rows(runs: Sequence[RunRecord], columns: Sequence[NumberColumn], *lead: str) -> list[TableRow]:
    """Return a row for each seed; if there are several, the mean over the finished ones above them."""
    values = [[column.value(run) for column in columns] for run in runs]
    if runs[0].foreign is not None and all(value is None for row in values for value in row):
        return []  # a file does not say how it was trained or generated

    def row(seed: str, found: Iterable[float | None], *, is_mean: bool = False) -> TableRow:
        cells = (UNDEFINED if v is None else column.write(v) for v, column in zip(found, columns, strict=True))
        return TableRow((*lead, seed, *cells), is_mean=is_mean)

    rows = [row(str(run.seed), own) for run, own in zip(runs, values, strict=True)]
    if len(runs) == 1:
        return rows
    finished = [own for run, own in zip(runs, values, strict=True) if run.state == "finished"]
    means = [mean_of([own[at] for own in finished]) for at in range(len(columns))]
    return [row(f"mean of {len(finished)}", means, is_mean=True), *rows]


def _machines(data: ExperimentData) -> str:
    """Name the hardware, by group where it was not the same for all."""
    of = {group: {run.hardware or "unknown hardware" for run in runs} for group, runs in data.groups.items()}
    if len(set().union(*of.values())) == 1:
        return next(iter(of.values())).pop()
    return "; ".join(f"{', '.join(sorted(names))} ({group})" for group, names in of.items())


def _measured(data: ExperimentData, columns: Sequence[NumberColumn]) -> list[NumberColumn]:
    return [column for column in columns if any(column.value(run) is not None for run in data.runs)]


def _logged(head: str, name: MetricName | str, *, is_count: bool = False) -> NumberColumn:
    return NumberColumn(head, lambda run: run.metrics.get(str(name)), *([as_count] if is_count else []))


def _own(head: str, metric: str, decoding: Decoding = "constrained", *, is_count: bool = False) -> NumberColumn:
    return NumberColumn(head, lambda run: run.own(decoding, metric), *([as_count] if is_count else []))

"""What models write: free decoding, where answers stop, and what an object costs; last values of runs as tables."""

from functools import partial

from coordexp.metrics import DECODINGS, GENERATION_METRICS, STOP_MARGINS, MetricName
from coordexp.report.study.data import ExperimentData
from coordexp.report.text.run_tables import (
    NumberColumn,
    as_count,
    as_fraction,
    as_signed,
    by_seed,
    evaluation_column,
    last_value,
)
from coordexp.report.text.tables import Table, own_value

_KINDS = "free/malformed/"


def free_tables(data: ExperimentData) -> list[Table]:
    """Return what models write without the grammar: AP, counts, malformed objects by kind and what an object costs.

    The last two stand there where there is something to tell.
    """
    precision = [
        NumberColumn("AP", partial(own_value, "free", "AP"), as_fraction),
        NumberColumn("AP, expectation", partial(last_value, str(MetricName("free", "AP", "expected"))), as_fraction),
        NumberColumn("AP, argmax", partial(last_value, str(MetricName("free", "AP", "argmax"))), as_fraction),
        NumberColumn("AP50", partial(own_value, "free", "AP50"), as_fraction),
    ]
    counts = [evaluation_column(metric, "free") for metric in GENERATION_METRICS if metric.in_report]
    names = sorted({name for run in data.runs for name, n in run.metrics.items() if name.startswith(_KINDS) and n})
    kinds = [
        NumberColumn(name.removeprefix(_KINDS).replace("_", " "), partial(last_value, name), as_count) for name in names
    ]
    found = [
        by_seed(data, "Free decoding: average precision", precision),
        by_seed(data, "Free decoding: what was written", counts),
    ]
    if kinds:
        found.append(by_seed(data, "Free decoding: malformed objects by kind", kinds))
    costs = [
        NumberColumn(f"{head}, {decoding}", partial(last_value, str(MetricName(decoding, name))), as_fraction)
        for decoding in DECODINGS
        for name, head in (("tokens_per_object", "tokens per object"), ("seconds_per_object", "seconds per object"))
    ]
    if any(column.value(run) is not None for column in costs for run in data.runs):
        found.append(by_seed(data, "What an object costs: generated tokens, and seconds of generation", costs))
    speeds = [
        NumberColumn(f"{head}, {decoding}", partial(last_value, str(MetricName(decoding, name))), as_fraction)
        for decoding in DECODINGS
        for name, head in (("images_per_second", "images per second"), ("boxes_per_second", "boxes per second"))
    ]
    if any(column.value(run) is not None for column in speeds for run in data.runs):
        found.append(by_seed(data, f"Speed of generation, all workers at once, on {_machines(data)}", speeds))
    return found


def _machines(data: ExperimentData) -> str:
    """Name the hardware, by group where it was not the same for all."""
    of = {group: {run.hardware or "unknown hardware" for run in runs} for group, runs in data.groups.items()}
    if len(set().union(*of.values())) == 1:
        return next(iter(of.values())).pop()
    return "; ".join(f"{', '.join(sorted(names))} ({group})" for group, names in of.items())


def stop_tables(data: ExperimentData) -> list[Table]:
    """Return how many answers were cut off, and how surely a model goes on after so many objects; where measured."""
    cut = [
        NumberColumn(f"{head}, {decoding}", partial(last_value, str(MetricName(decoding, name))), write)
        for decoding in DECODINGS
        for name, head, write in (
            ("truncated_images", "answers", as_count),
            ("truncated_fraction", "share", as_fraction),
        )
    ]
    margins = [
        NumberColumn(
            name.partition("_margin/after_")[2].replace("_", " "),
            partial(last_value, str(MetricName("constrained", name))),
            as_signed,
        )
        for name in STOP_MARGINS
    ]
    titles = (
        "Answers cut off at the token limit",
        "Stop margin: log-odds of another object against the end, by the objects written, constrained decoding",
    )
    found = [
        by_seed(data, title, there)
        for title, columns in zip(titles, (cut, margins), strict=True)
        if (there := [column for column in columns if any(column.value(run) is not None for run in data.runs)])
    ]
    return found + _other_answers(data)


def _other_answers(data: ExperimentData) -> list[Table]:
    """Return what the same models give with duplicate stop, where it ends an answer."""
    stops = {decoding: str(MetricName(decoding, "duplicate_stops")) for decoding in DECODINGS}
    repeats = [
        column
        for decoding in DECODINGS
        for column in (
            NumberColumn(f"ended, {decoding}", partial(last_value, stops[decoding]), as_count),
            NumberColumn(f"AP, {decoding}", partial(own_value, decoding, "AP"), as_fraction),
            NumberColumn(f"AP with stop, {decoding}", partial(own_value, decoding, "AP_duplicate_stop"), as_fraction),
        )
    ]
    found: list[Table] = []
    if any(run.metrics.get(name) for run in data.runs for name in stops.values()):
        found.append(by_seed(data, "Duplicate stop: an object that repeats the one before it ends its answer", repeats))
    return found

"""What models write: free decoding, where answers stop, and what an object costs; last values of runs as tables."""

from collections.abc import Callable
from functools import partial

from coordexp.metrics import DECODINGS, GENERATION_METRICS, MetricName
from coordexp.report.study.data import ExperimentData
from coordexp.report.text.run_tables import (
    NumberColumn,
    as_count,
    as_fraction,
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
    """Return how many answers were cut off, and what repeats cost; where measured."""

    def of_each(*columns: tuple[str, str, Callable[[float], str]]) -> list[NumberColumn]:
        return [
            NumberColumn(f"{head}, {decoding}", partial(last_value, str(MetricName(decoding, name))), write)
            for decoding in DECODINGS
            for name, head, write in columns
        ]

    repeats = of_each(("duplicate_rate", "repeats", as_fraction), ("longest_repeat", "in a row", as_count))
    for decoding in DECODINGS:
        for name, head in (("AP", "AP"), ("AP_cut", "AP cut")):
            repeats.append(NumberColumn(f"{head}, {decoding}", partial(own_value, decoding, name), as_fraction))
    tables = {
        "Answers cut off at the token limit": of_each(
            ("truncated_images", "answers", as_count), ("truncated_fraction", "share", as_fraction)
        ),
        "Objects that repeat an earlier one exactly, and AP with each answer cut at the first of them": repeats,
    }
    has_repeats = any(run.metrics.get(str(MetricName(way, "longest_repeat"))) for run in data.runs for way in DECODINGS)
    return [
        by_seed(data, title, there)
        for title, columns in tables.items()
        if (columns is not repeats or has_repeats)
        and (there := [column for column in columns if any(column.value(run) is not None for run in data.runs)])
    ]

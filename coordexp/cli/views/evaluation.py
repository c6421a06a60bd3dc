"""The numbers of an evaluation as tables for the terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from coordexp.coord_tokens.grammar.parse import FAILURE_KINDS
from coordexp.detection.measure import detection_metrics
from coordexp.metrics import BOX_KINDS, GENERATION_METRICS, Decoding, Metric, MetricName


def print_metrics(
    metrics: Mapping[str, float], decoding: Sequence[Decoding], *, num_images: int, console: Console
) -> None:
    """Print one table of box metrics and one of counts, then the malformed pieces by kind."""
    boxes = Table("decoding", "boxes", title=f"{num_images} {'image' if num_images == 1 else 'images'}")
    counts = Table("decoding", *(metric.column for metric in GENERATION_METRICS))
    box_metrics = [metric.declared for metric in detection_metrics()]
    for metric in box_metrics:
        boxes.add_column(metric.column, justify="right")
    for way in decoding:
        for kind in BOX_KINDS:
            values = (metrics.get(str(MetricName(way, metric.name, kind))) for metric in box_metrics)
            boxes.add_row(way, kind, *map(_written, box_metrics, values))
        counts.add_row(
            way, *(_written(metric, metrics.get(str(MetricName(way, metric.name)))) for metric in GENERATION_METRICS)
        )
    console.print(boxes)
    console.print(counts)
    for way in decoding:
        kinds = {kind: metrics[str(MetricName(way, f"malformed/{kind}"))] for kind in FAILURE_KINDS}
        if found := ", ".join(f"{count:.0f} {kind.replace('_', ' ')}" for kind, count in kinds.items() if count):
            console.print(f"malformed, {way}: {found}", highlight=False)


def _written(metric: Metric, value: float | None) -> str:
    if value is not None and metric.is_count:
        return f"{value:.0f}"
    return f"{value:.1f}" if value is not None and metric.unit == "seconds" else _fraction(value)


def _fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"

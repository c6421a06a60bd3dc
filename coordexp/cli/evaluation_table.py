"""The numbers of an evaluation as tables for the terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from coordexp.coord_tokens.grammar.parse import FAILURE_KINDS
from coordexp.metrics import BOX_KINDS, BOX_METRICS, Decoding

_HEADS = {
    "AP_small": "small",
    "AP_medium": "medium",
    "AP_large": "large",
    "AP_oracle_score": "AP oracle",
    "AP_constant_score": "AP const",
    "F1_50": "F1 .5",
    "F1_75": "F1 .75",
    "calibration_error": "calib.",
}
_COUNTS = {
    "num_objects": "objects",
    "malformed": "malformed",
    "unknown_category": "unknown",
    "duplicates": "duplicates",
    "empty_images": "empty",
    "truncated_images": "truncated",
}


def print_metrics(
    metrics: Mapping[str, float], decoding: Sequence[Decoding], *, num_images: int, console: Console
) -> None:
    """Print one table of box metrics and one of counts, then the malformed pieces by kind."""
    boxes = Table("decoding", "boxes", title=f"{num_images} {'image' if num_images == 1 else 'images'}")
    counts = Table("decoding", *_COUNTS.values(), "coord mass", "seconds")
    for name in BOX_METRICS:
        boxes.add_column(_HEADS.get(name, name), justify="right")
    for way in decoding:
        for box in BOX_KINDS:
            boxes.add_row(way, box, *(_fraction(metrics.get(f"{way}/{box}/{name}")) for name in BOX_METRICS))
        numbers = (f"{metrics[f'{way}/{name}']:.0f}" for name in _COUNTS)
        counts.add_row(way, *numbers, _fraction(metrics.get(f"{way}/coord_mass")), f"{metrics[f'{way}/seconds']:.1f}")
    console.print(boxes)
    console.print(counts)
    for way in decoding:
        kinds = {kind: metrics[f"{way}/malformed/{kind}"] for kind in FAILURE_KINDS}
        if found := ", ".join(f"{count:.0f} {kind.replace('_', ' ')}" for kind, count in kinds.items() if count):
            console.print(f"malformed, {way}: {found}", highlight=False)


def _fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"

"""What verbs print that is more than a few lines: samples, an evaluation, a prepared data set, an examination."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coordexp.detection.metrics import detection_metrics
from coordexp.findings import Verdict, size_text
from coordexp.metrics import BOX_KINDS, GENERATION_METRICS, BoxKind, Decoding, Metric, MetricName

if TYPE_CHECKING:
    from coordexp.data.prepare import Manifest
    from coordexp.doctor.examine import Examination
    from coordexp.doctor.memory import MemoryEstimate
    from coordexp.evaluate.predict import Prediction
    from coordexp.train.preview import Preview, Role

STYLES: "dict[Role, str]" = {
    "prompt": "dim",
    "image": "dim cyan",
    "description": "bold green",
    "coord": "yellow",
    "structure": "magenta",
}
_PALETTE = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#000075")
_SHORT_SIDE_PX = 480  # small pictures are enlarged, so that a label can be read
_NUM_REASONS_SHOWN = 8
_ROWS = (
    ("images", "counts", "images"),
    ("  written", "written", "images"),
    ("  without objects", "counts", "images_without_objects"),
    ("  of a file that another names too", "counts", "repeated_file_names"),
    ("  with more than --max-objects", "written", "capped_images"),
    ("annotations", "counts", "annotations"),
    ("  targets", "counts", "boxes"),
    ("  targets cut at the image border", "counts", "clipped"),
    ("  targets widened to one bin", "counts", "thin"),
    ("  targets over --max-objects, left out", "written", "capped_objects"),
    ("  crowds, kept apart", "counts", "crowd"),
    ("  ignored, kept apart", "counts", "ignored"),
    ("  of rejected images", "counts", "of_rejected_images"),
    ("rejected images", "counts", "rejected_images"),
    ("rejected annotations", "counts", "rejected_annotations"),
    ("rejected categories", "counts", "rejected_categories"),
)
_VERDICT_STYLES: dict[Verdict, str] = {"ok": "green", "warning": "yellow", "failure": "bold red"}


def legend() -> Text:
    """Return the roles in their colours."""
    text = Text("tokens: ")
    for role, style in STYLES.items():
        text.append(role, style=style)
        text.append("  ")
    text.append("(labels are underlined)", style="underline")
    return text


def tokens_text(preview: "Preview") -> Text:
    """Return the whole sequence, coloured by role; what is learnt is underlined."""
    text = Text()
    for span in preview.spans:
        style = f"{STYLES[span.role]}{' underline' if span.supervised else ''}"
        text.append(span.text.replace("\n", "⏎\n") if span.role == "prompt" else span.text, style=style)
    return text


def show_sample(preview: "Preview", console: Console, *, drawn: Path) -> None:
    """Print one sample: where it comes from, its tokens, and the boxes that its tokens say."""
    sample = preview.sample
    console.rule(f"image {sample.image_id}")
    console.print(f"{sample.image}  {sample.width} x {sample.height} px, {preview.num_tokens} tokens", markup=False)
    console.print(tokens_text(preview), soft_wrap=True)
    if preview.objects:
        console.print(_boxes(preview))
    else:
        console.print("no objects: the answer to learn is the end token alone")
    console.print(f"boxes drawn in {drawn}", markup=False, soft_wrap=True)


def draw(preview: "Preview") -> Image.Image:
    """Return the picture with the boxes that the tokens say, each with its description."""
    scale = max(1, -(-_SHORT_SIDE_PX // min(preview.picture.size)))
    width, height = preview.picture.size
    picture = preview.picture.resize((width * scale, height * scale), Image.Resampling.LANCZOS)
    pen = ImageDraw.Draw(picture)
    for number, (desc, box) in enumerate(preview.objects):
        x1, y1, x2, y2 = (value * scale for value in box)
        pen.rectangle((x1, y1, x2, y2), outline=_colour(number), width=2)
        place = (x1 + 3, y1 + 2)
        # The built-in font knows no more than Latin 1; a sign it lacks must not end the preview.
        label = desc.encode("latin-1", "replace").decode("latin-1")
        pen.rectangle(pen.textbbox(place, label), fill="white")
        pen.text(place, label, fill=_colour(number))
    return picture


def _boxes(preview: "Preview") -> Table:
    table = Table("", "description", "x1", "y1", "x2", "y2", title="read back from the tokens, in pixels")
    for number, (desc, box) in enumerate(preview.objects):
        table.add_row(Text("■", style=_colour(number)), Text(desc), *(f"{value:.1f}" for value in box))
    return table


def _colour(number: int) -> str:
    return _PALETTE[number % len(_PALETTE)]


def print_metrics(
    metrics: Mapping[str, float], decoding: Sequence[Decoding], *, num_images: int, console: Console
) -> None:
    """Print a table of box metrics, one of counts and one of costs, then the malformed pieces by kind."""
    title = f"{num_images} {'image' if num_images == 1 else 'images'}"
    measured: list[tuple[Decoding, BoxKind]] = [(way, kind) for way in decoding for kind in BOX_KINDS]
    boxes = Table("boxes", *(f"{way}, {kind}" for way, kind in measured), title=title)
    for metric in detection_metrics():
        values = [metrics.get(str(MetricName(way, metric.name, kind))) for way, kind in measured]
        _add_metric(boxes, metric.declared, values)
    counts, costs = Table("answers", *decoding), Table("costs", *decoding)
    for metric in GENERATION_METRICS:
        values = [metrics.get(str(MetricName(way, metric.name))) for way in decoding]
        _add_metric(counts if metric.in_report else costs, metric, values)
    for table in (boxes, counts, costs):
        for column in table.columns[1:]:
            column.justify = "right"
        console.print(table)
    for way in decoding:
        prefix = str(MetricName(way, "malformed/"))
        kinds = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
        if found := ", ".join(f"{count:.0f} {kind.replace('_', ' ')}" for kind, count in kinds.items() if count):
            console.print(f"malformed, {way}: {found}", highlight=False)


def _add_metric(table: Table, metric: Metric, values: Sequence[float | None]) -> None:
    """Add a row, unless the metric was not measured at all: LVIS's are of LVIS alone."""
    if any(value is not None for value in values):
        table.add_row(metric.column, *(_written(metric, value) for value in values))


def _written(metric: Metric, value: float | None) -> str:
    if value is None:
        return "-"
    if metric.is_count:
        return f"{value:.0f}"
    return f"{value:.1f}" if metric.name == "seconds" else f"{value:.3f}"


def manifest_table(manifest: "Manifest") -> Table:
    """Return what was found and written, a row for each kind."""
    table = Table("", "", show_header=False)
    table.columns[1].justify = "right"
    for label, group, name in _ROWS:
        value = _number(manifest, group, name)
        if value or not label.startswith(" "):
            table.add_row(label, f"{value:,}")
    categories = manifest["categories"]
    table.add_row("categories", f"{len(categories):,}" if isinstance(categories, list) else "-")
    ceiling = manifest["codec_ceiling"]
    ap = ceiling.get("AP") if isinstance(ceiling, dict) else None
    table.add_row("codec ceiling, AP of the quantised truth", f"{ap:.4f}" if isinstance(ap, float) else "-")
    return table


def rejected_lines(manifest: "Manifest") -> list[str]:
    """Return the first reasons why records were rejected, a line each."""
    rejected = manifest["rejected"]
    if not isinstance(rejected, list) or not rejected:
        return []
    shown = [f"  {entry['where']}: {entry['reason']}" for entry in rejected[:_NUM_REASONS_SHOWN]]
    more = len(rejected) - len(shown)
    return ["rejected:", *shown, *([f"  and {more:,} more, all in manifest.json"] if more else [])]


def warning_lines(manifest: "Manifest") -> list[str]:
    """Return what looks wrong with the whole file, a line each."""
    warnings = manifest["warnings"]
    return [f"warning: {sentence}" for sentence in warnings] if isinstance(warnings, list) else []


def _number(manifest: "Manifest", group: str, name: str) -> int:
    values = manifest[group]
    value = values.get(name, 0) if isinstance(values, dict) else 0
    return value if isinstance(value, int) else 0


def show_examination(found: "Examination", console: Console) -> None:
    """Print one line a check, the memory summand by summand, and the verdict."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what", overflow="fold")
    for finding in found.findings:
        table.add_row(
            Text(finding.check), Text(finding.verdict, style=_VERDICT_STYLES[finding.verdict]), Text(finding.sentence)
        )
    console.print(table)
    if found.longest_batch is not None:
        sequence = found.longest_batch.sequence
        tokens = f"{sequence.length} tokens, {sequence.prompt} of them prompt"
        console.print(
            f"memory of one worker whose batches are all of the longest sequence ({tokens}):", highlight=False
        )
        console.print(_memory_table(found.longest_batch.memory))
    console.print(_verdict(found), style=_VERDICT_STYLES["ok" if found.would_start else "failure"], highlight=False)


def examination_json(found: "Examination") -> str:
    """Return the examination as JSON."""
    memory = None if found.longest_batch is None else found.longest_batch.memory
    return json.dumps(
        {
            "would_start": found.would_start,
            "findings": [
                {"check": finding.check, "verdict": finding.verdict, "sentence": finding.sentence}
                for finding in found.findings
            ],
            "memory": {}
            if memory is None
            else {
                name: {"bytes": memory.totals[name], "summands": dict(memory.phases[name])} for name in memory.phases
            },
            "longest_sequence": None if found.longest_batch is None else vars(found.longest_batch.sequence),
        },
        indent=2,
    )


def _memory_table(memory: "MemoryEstimate") -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("part", no_wrap=True)
    for phase in memory.phases:
        table.add_column(phase, justify="right", no_wrap=True)
    every = memory.phases.values()
    for name in dict.fromkeys(name for parts in every for name in parts):
        if any(parts.get(name) for parts in every):
            table.add_row(name, *(size_text(parts[name]) if name in parts else "" for parts in every))
    table.add_section()
    table.add_row("together", *(size_text(total) for total in memory.totals.values()))
    return table


def _verdict(found: "Examination") -> str:
    failures = sum(finding.verdict == "failure" for finding in found.findings)
    warnings = sum(finding.verdict == "warning" for finding in found.findings)
    noted = f" ({warnings} {'warning' if warnings == 1 else 'warnings'})" if warnings else ""
    if failures:
        return f"a run would not start: {failures} {'failure' if failures == 1 else 'failures'}{noted}"
    return f"a run would start{noted}"


def prediction_table(prediction: "Prediction") -> Table:
    """Return one row for each object of a picture: both readings of its box, and how sure each side is."""
    table = Table(
        title=Text(f"{prediction.picture}  {prediction.width} x {prediction.height} px"),
        title_justify="left",
        box=SIMPLE_HEAD,
        caption=None if prediction.objects else "no object found",
    )
    readings = ("box by the mean, px", "box by the most likely bin, px", "std of each side, px")
    for header in ("", "object", "score", *readings):
        table.add_column(header, justify="left" if header == "object" else "right")
    for number, item in enumerate(prediction.objects, start=1):
        boxes = (" ".join(f"{side:.1f}" for side in box) for box in (item.expected_px, item.argmax_px))
        spread = " ".join(f"{side:.1f}" for side in item.std_px) if item.distributions else "-"
        table.add_row(str(number), Text(item.desc), f"{item.score:.3f}", *boxes, spread)
    return table

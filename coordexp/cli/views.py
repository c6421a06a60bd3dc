"""What verbs print in tables and pictures: samples, an evaluation, a prepared data set, an examination, predictions."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coordexp.detection.metrics import detection_metrics
from coordexp.errors import counted
from coordexp.findings import Verdict, size_text
from coordexp.metrics import BOX_KINDS, GENERATION_METRICS, BoxKind, Decoding, Metric, MetricName

if TYPE_CHECKING:
    from coordexp.data.sources.prepare import Manifest
    from coordexp.doctor.examine import Examination
    from coordexp.doctor.memory import MemoryEstimate
    from coordexp.evaluate.predict import Prediction
    from coordexp.train.preview import Preview, Role

Box = tuple[float, float, float, float]
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
# Rows of the table on a prepared data set: what is shown, and the section and key of the manifest. The rows that begin
# with a space are left out where they are 0.
_MANIFEST_ROWS = (
    ("images", "counts", "images"),
    ("  written", "written", "images"),
    ("  without objects", "counts", "images_without_objects"),
    ("  of a file that another names too", "counts", "repeated_file_names"),
    ("  with more than --max-objects", "written", "capped_images"),
    ("annotations", "counts", "annotations"),
    ("  targets", "counts", "boxes"),
    ("  targets cut at the image border", "counts", "clipped"),
    ("  targets widened to one bin", "counts", "thin"),
    ("  of no extent, left out", "counts", "no_extent"),
    ("  with swapped corners, put in order", "counts", "swapped"),
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
    """Return a line that says which colour stands for which role of a token."""
    line = Text("tokens: ")
    for role, style in STYLES.items():
        line.append(role, style=style)
        line.append("  ")
    line.append("(labels are underlined)", style="underline")
    return line


def show_sample(preview: "Preview", console: Console, *, drawn: Path) -> None:
    """Print one sample: its file, its tokens coloured by role, and the boxes that are read back from its tokens.

    Args:
        preview: the sample.
        console: where it is printed.
        drawn: file of the drawing, which is named.
    """
    sample = preview.sample
    console.rule(f"image {sample.image_id}")
    console.print(f"{sample.image}  {sample.width} x {sample.height} px, {preview.num_tokens} tokens", markup=False)
    tokens = Text()
    for span in preview.spans:
        style = STYLES[span.role]
        if span.supervised:
            style = f"{style} underline"
        text = span.text.replace("\n", "⏎\n") if span.role == "prompt" else span.text
        tokens.append(text, style=style)
    console.print(tokens, soft_wrap=True)

    if preview.objects:
        table = Table("", "description", "x1", "y1", "x2", "y2", title="read back from the tokens, in pixels")
        for number, (desc, box) in enumerate(preview.objects):
            table.add_row(Text("■", style=_colour(number)), Text(desc), *(f"{value:.1f}" for value in box))
        console.print(table)
    else:
        console.print("no objects: the answer to learn is the end token alone")
    console.print(f"boxes drawn in {drawn}", markup=False, soft_wrap=True)


def draw(picture: Image.Image, size_px: tuple[int, int], objects: Iterable[tuple[str, Sequence[Box]]]) -> Image.Image:
    """Return a picture with boxes drawn on it; a small picture is enlarged.

    Args:
        picture: the image, perhaps smaller than the original, as the model sees it.
        size_px: width and height of the original.
        objects: label and boxes (xyxy, in pixels of the original) of each object. The label stands at the first box.
            The other boxes are drawn thinner.
    """
    scale = max(1, math.ceil(_SHORT_SIDE_PX / min(picture.size)))
    picture = picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.LANCZOS)
    x_scale = picture.width / size_px[0]
    y_scale = picture.height / size_px[1]
    pen = ImageDraw.Draw(picture)
    for number, (words, boxes) in enumerate(objects):
        drawn_boxes = [(x1 * x_scale, y1 * y_scale, x2 * x_scale, y2 * y_scale) for x1, y1, x2, y2 in boxes]
        for index, box in enumerate(drawn_boxes):
            pen.rectangle(box, outline=_colour(number), width=2 if index == 0 else 1)

        left, top, _, _ = drawn_boxes[0]
        label_place = (left + 3, top + 2)
        # The built-in font has the letters of Latin-1 only. Another letter would raise and end the preview.
        label = words.encode("latin-1", "replace").decode("latin-1")
        pen.rectangle(pen.textbbox(label_place, label), fill="white")
        pen.text(label_place, label, fill=_colour(number))
    return picture


def _colour(number: int) -> str:
    return _PALETTE[number % len(_PALETTE)]


def print_metrics(
    metrics: Mapping[str, float], decoding: Sequence[Decoding], *, num_images: int, console: Console
) -> None:
    """Print an evaluation as three tables (boxes, answers, costs), and what was malformed in the answers.

    Args:
        metrics: the value of each metric by its full name.
        decoding: the ways in which answers were generated, a column each.
        num_images: how many images were evaluated.
        console: where the tables are printed.
    """
    readings: list[tuple[Decoding, BoxKind]] = [(way, kind) for way in decoding for kind in BOX_KINDS]
    boxes = Table("boxes", *(f"{way}, {kind}" for way, kind in readings), title=counted(num_images, "image"))
    for metric in detection_metrics():
        _add_row(boxes, metric.declared, metrics, [MetricName(way, metric.name, kind) for way, kind in readings])

    answers = Table("answers", *decoding)
    costs = Table("costs", *decoding)
    for metric in GENERATION_METRICS:
        table = answers if metric.in_report else costs
        _add_row(table, metric, metrics, [MetricName(way, metric.name) for way in decoding])

    for table in (boxes, answers, costs):
        for column in table.columns[1:]:
            column.justify = "right"
        console.print(table)

    for way in decoding:
        prefix = str(MetricName(way, "malformed/"))
        counts = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
        kinds = [f"{count:.0f} {kind.replace('_', ' ')}" for kind, count in counts.items() if count]
        if kinds:
            console.print(f"malformed, {way}: {', '.join(kinds)}", highlight=False)


def _add_row(table: Table, metric: Metric, metrics: Mapping[str, float], names: Sequence[MetricName]) -> None:
    """Add the values of a metric to a table, unless there is none, as of LVIS's metrics on COCO."""
    values = [metrics.get(str(name)) for name in names]
    if any(value is not None for value in values):
        table.add_row(metric.column, *(_value_text(metric, value) for value in values))


def _value_text(metric: Metric, value: float | None) -> str:
    if value is None:
        return "-"
    if metric.is_count:
        return f"{value:.0f}"
    if metric.name == "seconds":
        return f"{value:.1f}"
    return f"{value:.3f}"


def manifest_table(manifest: "Manifest") -> Table:
    """Return a table of what a prepared data set holds, and of what was repaired or left out."""
    table = Table("", "", show_header=False)
    table.columns[1].justify = "right"
    for label, section, key in _MANIFEST_ROWS:
        counts = manifest[section]
        count = counts.get(key, 0) if isinstance(counts, dict) else 0
        is_shown_at_zero = not label.startswith(" ")
        if isinstance(count, int) and (count or is_shown_at_zero):
            table.add_row(label, f"{count:,}")

    categories = manifest["categories"]
    table.add_row("categories", f"{len(categories):,}" if isinstance(categories, list) else "-")
    ceiling = manifest["codec_ceiling"]
    ap = ceiling.get("AP") if isinstance(ceiling, dict) else None
    table.add_row("codec ceiling, AP of the quantised truth", f"{ap:.4f}" if isinstance(ap, float) else "-")
    return table


def manifest_lines(manifest: "Manifest") -> list[str]:
    """Return the warnings about the whole file, and why the first rejected records were rejected, a line each."""
    lines: list[str] = []
    warnings = manifest["warnings"]
    if isinstance(warnings, list):
        lines += [f"warning: {sentence}" for sentence in warnings]

    rejected = manifest["rejected"]
    if isinstance(rejected, list) and rejected:
        lines.append("rejected:")
        lines += [f"  {entry['where']}: {entry['reason']}" for entry in rejected[:_NUM_REASONS_SHOWN]]
        num_more = len(rejected) - _NUM_REASONS_SHOWN
        if num_more > 0:
            lines.append(f"  and {num_more:,} more, all in manifest.json")
    return lines


def show_examination(examination: "Examination", console: Console) -> None:
    """Print a line for each check, the memory by phase and purpose, and the verdict."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what", overflow="fold")
    for finding in examination.findings:
        verdict = Text(finding.verdict, style=_VERDICT_STYLES[finding.verdict])
        table.add_row(Text(finding.check), verdict, Text(finding.sentence))
    console.print(table)

    if examination.longest_batch is not None:
        sequence = examination.longest_batch.sequence
        tokens = f"{sequence.length} tokens, {sequence.prompt} of them prompt"
        console.print(
            f"memory of one worker whose batches are all of the longest sequence ({tokens}):", highlight=False
        )
        console.print(_memory_table(examination.longest_batch.memory))

    counts = Counter(finding.verdict for finding in examination.findings)
    if examination.would_start:
        verdict, style = "a run would start", _VERDICT_STYLES["ok"]
    else:
        verdict, style = f"a run would not start: {counted(counts['failure'], 'failure')}", _VERDICT_STYLES["failure"]
    if counts["warning"]:
        verdict += f" ({counted(counts['warning'], 'warning')})"
    console.print(verdict, style=style, highlight=False)


def _memory_table(memory: "MemoryEstimate") -> Table:
    """Return a table with a column for each phase and a row for each purpose; a phase may lack some purposes."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("part", no_wrap=True)
    for phase in memory.phases:
        table.add_column(phase, justify="right", no_wrap=True)
    purposes: dict[str, None] = {}  # a set that keeps the order
    for sizes in memory.phases.values():
        purposes |= dict.fromkeys(sizes)
    for purpose in purposes:
        cells = [size_text(sizes[purpose]) if purpose in sizes else "" for sizes in memory.phases.values()]
        table.add_row(purpose, *cells)
    table.add_section()
    table.add_row("together", *(size_text(total) for total in memory.totals.values()))
    return table


def examination_json(examination: "Examination") -> str:
    """Return an examination as JSON: the verdict, the findings, and memory and length of the longest batch."""
    batch = examination.longest_batch
    phases = {} if batch is None else batch.memory.phases
    document = {
        "would_start": examination.would_start,
        "findings": [
            {"check": finding.check, "verdict": finding.verdict, "sentence": finding.sentence}
            for finding in examination.findings
        ],
        "memory": {phase: {"bytes": sum(sizes.values()), "summands": dict(sizes)} for phase, sizes in phases.items()},
        "longest_sequence": None if batch is None else vars(batch.sequence),
    }
    return json.dumps(document, indent=2)


def prediction_table(prediction: "Prediction") -> Table:
    """Return a table of the objects in one picture, with both readings of each box and its spread."""
    table = Table(
        title=Text(f"{prediction.picture}  {prediction.width} x {prediction.height} px"),
        title_justify="left",
        box=SIMPLE_HEAD,
        caption=None if prediction.objects else "no object found",
    )
    readings = ("box by the mean, px", "box by the most likely bin, px", "std of each side, px")
    for header in ("", "object", "score", *readings):
        table.add_column(header, justify="left" if header == "object" else "right")
    for number, detected in enumerate(prediction.objects, start=1):
        # Digits of plain text have no distribution over bins, so no spread.
        spread = _sides_text(detected.std_px) if detected.distributions else "-"
        table.add_row(
            str(number),
            Text(detected.desc),
            f"{detected.score:.3f}",
            _sides_text(detected.expected_px),
            _sides_text(detected.argmax_px),
            spread,
        )
    return table


def _sides_text(sides_px: Iterable[float]) -> str:
    return " ".join(f"{side:.1f}" for side in sides_px)

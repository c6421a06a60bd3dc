"""What verbs print that is more than a few lines: samples, an evaluation, a prepared data set, an examination."""

import json
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
    roles = [part for role, style in STYLES.items() for part in ((role, style), "  ")]
    return Text.assemble("tokens: ", *roles, ("(labels are underlined)", "underline"))


def show_sample(preview: "Preview", console: Console, *, drawn: Path) -> None:
    """Print one sample: where it comes from, its tokens coloured by role, and the boxes that its tokens say."""
    sample = preview.sample
    console.rule(f"image {sample.image_id}")
    console.print(f"{sample.image}  {sample.width} x {sample.height} px, {preview.num_tokens} tokens", markup=False)
    tokens = Text()
    for span in preview.spans:
        style = f"{STYLES[span.role]}{' underline' if span.supervised else ''}"  # what is learnt
        tokens.append(span.text.replace("\n", "⏎\n") if span.role == "prompt" else span.text, style=style)
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
    """Return a picture, enlarged where it is small, with boxes in the pixels of ``size_px``, that of the original.

    Of the boxes of an object the first one has its words, and the others are thinner.
    """
    scale = max(1, -(-_SHORT_SIDE_PX // min(picture.size)))
    picture = picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.LANCZOS)
    pen, across, down = ImageDraw.Draw(picture), picture.width / size_px[0], picture.height / size_px[1]
    for number, (words, boxes) in enumerate(objects):
        places = [(x1 * across, y1 * down, x2 * across, y2 * down) for x1, y1, x2, y2 in boxes]
        for index, place in enumerate(places):
            pen.rectangle(place, outline=_colour(number), width=1 if index else 2)
        at = (places[0][0] + 3, places[0][1] + 2)
        # The built-in font knows no more than Latin 1; a sign it lacks must not end the preview.
        label = words.encode("latin-1", "replace").decode("latin-1")
        pen.rectangle(pen.textbbox(at, label), fill="white")
        pen.text(at, label, fill=_colour(number))
    return picture


def _colour(number: int) -> str:
    return _PALETTE[number % len(_PALETTE)]


def print_metrics(
    metrics: Mapping[str, float], decoding: Sequence[Decoding], *, num_images: int, console: Console
) -> None:
    title = counted(num_images, "image")
    measured: list[tuple[Decoding, BoxKind]] = [(way, kind) for way in decoding for kind in BOX_KINDS]
    boxes = Table("boxes", *(f"{way}, {kind}" for way, kind in measured), title=title)
    counts, costs = Table("answers", *decoding), Table("costs", *decoding)
    rows: list[tuple[Table, Metric, list[str]]] = []
    for metric in detection_metrics():
        rows.append((boxes, metric.declared, [str(MetricName(way, metric.name, kind)) for way, kind in measured]))
    for metric in GENERATION_METRICS:
        names = [str(MetricName(way, metric.name)) for way in decoding]
        rows.append((counts if metric.in_report else costs, metric, names))
    for table, metric, names in rows:
        if any(name in metrics for name in names):  # LVIS's are of LVIS alone
            table.add_row(metric.column, *(_written(metric, metrics.get(name)) for name in names))
    for table in (boxes, counts, costs):
        for column in table.columns[1:]:
            column.justify = "right"
        console.print(table)
    for way in decoding:
        prefix = str(MetricName(way, "malformed/"))
        kinds = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
        if found := ", ".join(f"{count:.0f} {kind.replace('_', ' ')}" for kind, count in kinds.items() if count):
            console.print(f"malformed, {way}: {found}", highlight=False)


def _written(metric: Metric, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.{0 if metric.is_count else 1 if metric.name == 'seconds' else 3}f}"


def manifest_table(manifest: "Manifest") -> Table:
    table = Table("", "", show_header=False)
    table.columns[1].justify = "right"
    for label, group, name in _ROWS:
        values = manifest[group]
        value = values.get(name, 0) if isinstance(values, dict) else 0
        if isinstance(value, int) and (value or not label.startswith(" ")):
            table.add_row(label, f"{value:,}")
    categories, ceiling = manifest["categories"], manifest["codec_ceiling"]
    table.add_row("categories", f"{len(categories):,}" if isinstance(categories, list) else "-")
    ap = ceiling.get("AP") if isinstance(ceiling, dict) else None
    table.add_row("codec ceiling, AP of the quantised truth", f"{ap:.4f}" if isinstance(ap, float) else "-")
    return table


def manifest_lines(manifest: "Manifest") -> list[str]:
    """Return what looks wrong with the whole file, and the first reasons why records were rejected, a line each."""
    warnings, rejected = manifest["warnings"], manifest["rejected"]
    lines = [f"warning: {sentence}" for sentence in warnings] if isinstance(warnings, list) else []
    if isinstance(rejected, list) and rejected:
        lines += ["rejected:", *(f"  {entry['where']}: {entry['reason']}" for entry in rejected[:_NUM_REASONS_SHOWN])]
        if (more := len(rejected) - _NUM_REASONS_SHOWN) > 0:
            lines.append(f"  and {more:,} more, all in manifest.json")
    return lines


def show_examination(found: "Examination", console: Console) -> None:
    """Print one line a check, the memory part by part, and the verdict."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what", overflow="fold")
    for finding in found.findings:
        verdict = Text(finding.verdict, style=_VERDICT_STYLES[finding.verdict])
        table.add_row(Text(finding.check), verdict, Text(finding.sentence))
    console.print(table)
    if found.longest_batch is not None:
        sequence, memory = found.longest_batch.sequence, found.longest_batch.memory
        tokens = f"{sequence.length} tokens, {sequence.prompt} of them prompt"
        console.print(
            f"memory of one worker whose batches are all of the longest sequence ({tokens}):", highlight=False
        )
        parts = Table(box=SIMPLE_HEAD, pad_edge=False)
        parts.add_column("part", no_wrap=True)
        for phase in memory.phases:
            parts.add_column(phase, justify="right", no_wrap=True)
        every = memory.phases.values()
        for name in dict.fromkeys(name for sizes in every for name in sizes):
            parts.add_row(name, *(size_text(sizes[name]) if name in sizes else "" for sizes in every))
        parts.add_section()
        parts.add_row("together", *(size_text(total) for total in memory.totals.values()))
        console.print(parts)
    verdicts = Counter(finding.verdict for finding in found.findings)
    said = {verdict: counted(count, verdict) for verdict, count in verdicts.items()}
    noted = f" ({said['warning']})" if "warning" in said else ""
    verdict = "a run would start" if found.would_start else f"a run would not start: {said['failure']}"
    console.print(verdict + noted, style=_VERDICT_STYLES["ok" if found.would_start else "failure"], highlight=False)


def examination_json(found: "Examination") -> str:
    batch = found.longest_batch
    phases = {} if batch is None else batch.memory.phases
    examined = {
        "would_start": found.would_start,
        "findings": [
            {"check": finding.check, "verdict": finding.verdict, "sentence": finding.sentence}
            for finding in found.findings
        ],
        "memory": {name: {"bytes": sum(parts.values()), "summands": dict(parts)} for name, parts in phases.items()},
        "longest_sequence": None if batch is None else vars(batch.sequence),
    }
    return json.dumps(examined, indent=2)


def prediction_table(prediction: "Prediction") -> Table:
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

"""``python -m coordexp prepare``: a progress bar, a table of what was found, and the command that comes next."""

import shlex
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from coordexp.data.prepare.manifest import SAMPLES, Manifest
from coordexp.data.prepare.prepare import Prepared, PrepareSpec, prepare
from coordexp.detection.ceiling import ceiling_of_table

_WIDTH_WITHOUT_TERMINAL = 120
_HEADERS_AT_ONCE = 8
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


def prepare_command(spec: PrepareSpec, *, num_workers: int | None = None) -> None:
    """Prepare a data set and say what is in it.

    Args:
        spec: what to prepare.
        num_workers: image headers that are read at once, under ``--check-images headers``; None for 8.

    Raises:
        CoordExpError: as :func:`coordexp.data.prepare.prepare.prepare`.
    """
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)
    prepared = prepare_with_progress(spec, num_threads=num_workers or _HEADERS_AT_ONCE)
    state = "written" if prepared.is_new else "already made from these annotations with these options"
    _print(console, f"{spec.output}: {state}")
    console.print(_table(prepared.manifest))
    for line in _reasons(prepared.manifest):
        _print(console, line)
    _print(console, f"next: {_next_command(spec)}")


def prepare_with_progress(spec: PrepareSpec, *, num_threads: int) -> Prepared:
    """Prepare a data set, with a progress bar on stderr where that is a terminal."""
    columns = (TextColumn("{task.description:<8}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def on_progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done)

        return prepare(spec, ceiling=ceiling_of_table, num_threads=num_threads, progress=on_progress)


def prepare_shapes_records(root: Path) -> None:
    """Write ``root/jsonl/{train,val}`` beside the COCO files of generated shapes.

    Raises:
        CoordExpError: as :func:`coordexp.data.prepare.prepare.prepare`.
    """
    for split in ("train", "val"):
        annotations = root / f"instances_{split}.json"
        spec = PrepareSpec(annotations=annotations, images=root / split, output=root / "jsonl" / split)
        prepare(spec, ceiling=ceiling_of_table)


def _print(console: Console, line: str) -> None:
    """Print a line as it is: a person copies paths and commands from it."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(manifest: Manifest) -> Table:
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


def _number(manifest: Manifest, group: str, name: str) -> int:
    values = manifest[group]
    value = values.get(name, 0) if isinstance(values, dict) else 0
    return value if isinstance(value, int) else 0


def _reasons(manifest: Manifest) -> list[str]:
    rejected = manifest["rejected"]
    if not isinstance(rejected, list) or not rejected:
        return []
    shown = [f"  {entry['where']}: {entry['reason']}" for entry in rejected[:_NUM_REASONS_SHOWN]]
    more = len(rejected) - len(shown)
    return ["rejected:", *shown, *([f"  and {more:,} more, all in manifest.json"] if more else [])]


def _next_command(spec: PrepareSpec) -> str:
    settings = [f"data.train_annotations={spec.output / SAMPLES}", f"data.train_images={spec.images}"]
    words = ["python", "-m", "coordexp", "train", "--config", "experiments/coco_qwen3vl_4b.yaml", *settings]
    return shlex.join(words)

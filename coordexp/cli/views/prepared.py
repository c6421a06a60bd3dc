"""What preparing a data set found, as a table and a few lines for the terminal."""

from rich.table import Table

from coordexp.data.prepare import Manifest

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


def manifest_table(manifest: Manifest) -> Table:
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


def rejected_lines(manifest: Manifest) -> list[str]:
    """Return the first reasons why records were rejected, a line each."""
    rejected = manifest["rejected"]
    if not isinstance(rejected, list) or not rejected:
        return []
    shown = [f"  {entry['where']}: {entry['reason']}" for entry in rejected[:_NUM_REASONS_SHOWN]]
    more = len(rejected) - len(shown)
    return ["rejected:", *shown, *([f"  and {more:,} more, all in manifest.json"] if more else [])]


def _number(manifest: Manifest, group: str, name: str) -> int:
    values = manifest[group]
    value = values.get(name, 0) if isinstance(values, dict) else 0
    return value if isinstance(value, int) else 0

"""The manifest of a prepared data set: what went in, what came out, and what was left out and why."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

from coordexp.coord_tokens.bins import CODEC_VERSION, NUM_BINS
from coordexp.data.prepare.prepare_shard import SHARD_VERSION, ShardOptions
from coordexp.data.prepare.shard_file import Shard
from coordexp.data.sources.coco_table import CocoTable

Manifest: TypeAlias = dict[str, object]

MANIFEST = "manifest.json"
SAMPLES = "samples.jsonl"
_VERSION = 1
_CAP_RULE = "of more than max_objects the largest boxes stay, the earlier of equals; the rest is capped_objects"


def identity(*, dialect: str, annotations_sha256: str, options: ShardOptions, check_images: str) -> Manifest:
    """Return the part of a manifest that says what it was made from: equal identities, equal data."""
    return {
        "manifest_version": _VERSION,
        "format": dialect,
        "annotations_sha256": annotations_sha256,
        "options": {
            "boxes": "coord_tokens" if options.coord_tokens else "numbers",
            "ordering": options.ordering,
            "seed": options.seed if options.ordering == "random" else None,
            "max_objects": options.max_objects,
            "check_images": check_images,
        },
        "codec": {
            "version": CODEC_VERSION,
            "num_bins": NUM_BINS,
            "encode": f"round(c * {NUM_BINS}), clamped to 0..{NUM_BINS - 1}; a box is at least one bin wide and high",
            "decode": f"k / {NUM_BINS}",
        },
        "shard_version": SHARD_VERSION,
    }


def is_same(manifest: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Tell whether two manifests have one identity."""
    keys = ("manifest_version", "format", "annotations_sha256", "options", "codec", "shard_version")
    return all(manifest.get(key) == other.get(key) for key in keys)


def build_manifest(
    made_from: Manifest,
    table: CocoTable,
    shards: Sequence[Shard],
    *,
    annotations: Path,
    image_root: Path,
    samples_sha256: str,
    ceiling: float | None,
    max_bad_fraction: float,
) -> Manifest:
    """Put the manifest together.

    Args:
        made_from: see :func:`identity`.
        table: what the annotation file holds.
        shards: what was written.
        annotations: the annotation file.
        image_root: the image folder, which the records' paths are relative to.
        samples_sha256: of the JSONL file.
        ceiling: the codec ceiling, AP.
        max_bad_fraction: what was accepted.
    """
    written: Counter[str] = Counter()
    for shard in shards:
        written.update(shard.counts)
    rejected = table.rejections.all()
    counts = table.counts | {"rejected_images": table.rejections.count("images")}
    return {
        **made_from,
        "inputs": {
            "annotations": annotations.name,
            "bytes": annotations.stat().st_size,
            "image_root": str(image_root.absolute()),
        },
        "outputs": {SAMPLES: {"sha256": samples_sha256, "records": written["images"]}},
        "codec_ceiling": {"AP": ceiling, "images": written["images"], "how": "exact, every image and category"},
        "counts": {name: counts[name] for name in sorted(counts)},
        "written": {name: written[name] for name in sorted(written)},
        "cap_rule": _CAP_RULE,
        "categories": _categories(table, shards),
        "max_bad_fraction": max_bad_fraction,
        "rejected": [asdict(record) for record in rejected],
    }


def _categories(table: CocoTable, shards: Sequence[Shard]) -> list[dict[str, object]]:
    images: Counter[int] = Counter()
    objects: Counter[int] = Counter()
    for shard in shards:
        images.update(shard.category_images)
        objects.update(shard.category_objects)
    return [
        {"id": key, "name": row.name, **row.extras, "images": images[key], "objects": objects[key]}
        for key, row in sorted(table.categories.items())
    ]

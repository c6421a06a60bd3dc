"""The manifest of a prepared data set: what went in, what came out, and what was left out and why."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from coordexp.coord_tokens.bins import CODEC_VERSION, NUM_BINS
from coordexp.data.sources.coco import TARGET, CocoTable

Manifest: TypeAlias = dict[str, object]

MANIFEST = "manifest.json"
SAMPLES = "samples.jsonl"
_VERSION = 1
_RECORD_VERSION = 1  # raised when equal input would give other lines
_CAP_RULE = "of more than max_objects the largest boxes stay, the earlier of equals; the rest is capped_objects"


def identity(*, dialect: str, annotations_sha256: str, options: Mapping[str, object]) -> Manifest:
    """Return the part of a manifest that says what it was made from: equal identities, equal data."""
    return {
        "manifest_version": _VERSION,
        "format": dialect,
        "annotations_sha256": annotations_sha256,
        "options": dict(options),
        "codec": {
            "version": CODEC_VERSION,
            "num_bins": NUM_BINS,
            "encode": f"round(c * {NUM_BINS}), clamped to 0..{NUM_BINS - 1}; a box is at least one bin wide and high",
            "decode": f"k / {NUM_BINS}",
        },
        "shard_version": _RECORD_VERSION,
    }


def is_same(manifest: Mapping[str, object], made_from: Manifest) -> bool:
    """Return whether a manifest has this identity."""
    return all(manifest.get(key) == value for key, value in made_from.items())


def build_manifest(
    made_from: Manifest,
    table: CocoTable,
    *,
    annotations: Path,
    image_root: Path,
    samples_sha256: str,
    max_objects: int | None,
    ceiling: float | None,
    max_bad_fraction: float,
) -> Manifest:
    """Put the manifest together.

    Args:
        made_from: see :func:`identity`.
        table: what is written.
        annotations: the annotation file.
        image_root: the image folder, which the records' paths are relative to.
        samples_sha256: of the JSONL file.
        max_objects: objects of an image at most; None for all.
        ceiling: the codec ceiling, AP.
        max_bad_fraction: what was accepted.
    """
    is_target = table.kinds == TARGET
    image_of = np.repeat(np.arange(len(table.images)), np.diff(table.first))[is_target]
    num_targets = np.bincount(image_of, minlength=len(table.images))
    num_capped = np.zeros_like(num_targets) if max_objects is None else (num_targets - max_objects).clip(0)
    written = {
        "images": len(table.images),
        "objects": int((num_targets - num_capped).sum()),
        "not_targets": int((~is_target).sum()),
        "capped_images": int((num_capped > 0).sum()),
        "capped_objects": int(num_capped.sum()),
    }
    return {
        **made_from,
        "inputs": {
            "annotations": annotations.name,
            "bytes": annotations.stat().st_size,
            "image_root": str(image_root.absolute()),
        },
        "outputs": {SAMPLES: {"sha256": samples_sha256, "records": written["images"]}},
        "codec_ceiling": {"AP": ceiling, "images": written["images"], "how": "exact, every image and category"},
        "counts": {name: table.counts[name] for name in sorted(table.counts)},
        "written": {name: written[name] for name in sorted(written)},
        "cap_rule": _CAP_RULE,
        "categories": _categories(table, is_target, image_of),
        "max_bad_fraction": max_bad_fraction,
        "rejected": [asdict(record) for record in table.rejections.all()],
    }


def _categories(table: CocoTable, is_target: NDArray[np.bool_], image_of: NDArray[np.int64]) -> list[dict[str, object]]:
    """Describe each category, with its images and its targets before any cap."""
    category_ids = table.category_ids[is_target]
    objects = dict(zip(*(part.tolist() for part in np.unique(category_ids, return_counts=True)), strict=True))
    pairs = np.unique(np.stack([category_ids, image_of]), axis=1)[0]
    images = dict(zip(*(part.tolist() for part in np.unique(pairs, return_counts=True)), strict=True))
    return [
        {"id": key, "name": entry.name, **entry.extras(), "images": images.get(key, 0), "objects": objects.get(key, 0)}
        for key, entry in sorted(table.categories.items())
    ]

"""A finished shard on disk, kept for a run that goes on where another was killed."""

import io
import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from coordexp.data.sources.coco_rows import BadEntry
from coordexp.detection.ceiling import CeilingMatches


@dataclass(frozen=True)
class Shard:
    """A finished shard.

    Attributes:
        lines: the file of its JSONL lines.
        num_images: images it was given.
        counts: ``images, objects, not_targets`` written; ``capped_images, capped_objects``.
        category_images: category id -> images with a target of it.
        category_objects: category id -> targets, before any cap.
        bad: images whose header contradicts the annotations.
        matches: for the codec ceiling.
    """

    lines: Path
    num_images: int
    counts: dict[str, int]
    category_images: dict[int, int]
    category_objects: dict[int, int]
    bad: list[BadEntry]
    matches: CeilingMatches


def save_shard(path: Path, shard: Shard, *, num_bytes: int) -> None:
    """Write what there is to know of a shard; with this file, and not before, it is finished."""
    told = {
        "num_bytes": num_bytes,
        "num_images": shard.num_images,
        "counts": shard.counts,
        "category_images": list(shard.category_images.items()),
        "category_objects": list(shard.category_objects.items()),
        "bad": [list(entry) for entry in shard.bad],
    }
    content = io.BytesIO()
    np.savez(content, told=np.frombuffer(json.dumps(told).encode(), np.uint8), **asdict(shard.matches))
    write_whole(path, content.getvalue())


def load_shard(lines: Path, path: Path) -> Shard | None:
    """Return a finished shard, or None if it is not (wholly) there."""
    if not path.is_file() or not lines.is_file():
        return None
    with np.load(path) as stored:
        told = json.loads(stored["told"].tobytes())
        matches = CeilingMatches(**{field.name: stored[field.name] for field in fields(CeilingMatches)})
    if lines.stat().st_size != told["num_bytes"]:
        return None
    return Shard(
        lines=lines,
        num_images=told["num_images"],
        counts=told["counts"],
        category_images=dict(told["category_images"]),
        category_objects=dict(told["category_objects"]),
        bad=[BadEntry(*entry) for entry in told["bad"]],
        matches=matches,
    )


def write_whole(path: Path, content: bytes) -> None:
    """Write a file in one step, so that a reader finds all of it or nothing."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)

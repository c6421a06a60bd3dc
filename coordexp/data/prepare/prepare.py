"""COCO or LVIS annotations -> JSONL and a manifest, by several processes, and again from where a kill stopped it.

The work is cut into shards of images. A finished shard is a pair of files named by a hash of all it
depends on; what was killed finds them and goes on. The folder is built beside its place and renamed
when it is whole.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coordexp.data.images.image_folder import ImageFolder
from coordexp.data.prepare.manifest import MANIFEST, SAMPLES, Manifest, build_manifest, identity, is_same
from coordexp.data.prepare.prepare_shard import ShardOptions, shard_tasks, write_shard
from coordexp.data.prepare.shard_file import Shard
from coordexp.data.prepare.workers import Workers
from coordexp.data.sources.coco_rows import BadEntry
from coordexp.data.sources.coco_sections import Dialect, read_rows
from coordexp.data.sources.coco_table import CocoTable, build_table, shown_entry
from coordexp.data.sources.json_lists import STRETCH_BYTES
from coordexp.detection.ceiling import CeilingMatches, average_precision
from coordexp.errors import DataError
from coordexp.files import write_json

CheckImages = Literal["none", "names", "headers"]
# Called with a stage (hashing, reading, writing), how much of it is done and how much there is.
Progress = Callable[[str, int, int], None]

_BLOCK_BYTES = 2**22


@dataclass(frozen=True)
class PrepareSpec:
    """What to prepare.

    Attributes:
        annotations: COCO or LVIS instances file.
        images: folder of the images.
        output: folder to make, with ``samples.jsonl`` and ``manifest.json``.
        dialect: ``coco`` or ``lvis``.
        coord_tokens: boxes as coord tokens; otherwise as numbers.
        ordering: order of the objects in a record.
        seed: of ``random``.
        max_objects: objects of an image at most, the largest ones; None for all.
        max_bad_fraction: largest accepted fraction of bad images, annotations or categories.
        check_images: ``names``: every file is there (one listing a folder; width and height are in
            the annotations, so no image is opened). ``headers``: each is opened, not decoded, and
            its size compared. ``none``: the images may be elsewhere.
    """

    annotations: Path
    images: Path
    output: Path
    dialect: Dialect = "coco"
    coord_tokens: bool = False
    ordering: Literal["top_left", "random"] = "top_left"
    seed: int = 0
    max_objects: int | None = None
    max_bad_fraction: float = 0.0
    check_images: CheckImages = "names"


@dataclass(frozen=True)
class Prepared:
    """A prepared data set.

    Attributes:
        manifest: content of ``manifest.json``.
        is_new: False if the folder was there, made from the same annotations with the same options.
    """

    manifest: Manifest
    is_new: bool


def silent(stage: str, done: int, total: int) -> None:
    """Say nothing."""


def prepare(
    spec: PrepareSpec, *, num_workers: int = 1, progress: Progress = silent, stretch_bytes: int = STRETCH_BYTES
) -> Prepared:
    """Write the data set; the same bytes for any number of workers.

    Args:
        spec: what to prepare.
        num_workers: processes; 1 works in this one.
        progress: told how far it is.
        stretch_bytes: how much of the annotations one task reads.

    Raises:
        DataError: if the annotations cannot be used, too many records are bad, or the output is
            something else.
        ResourceError: if a worker process dies.
    """
    folder = ImageFolder(spec.images, check=spec.check_images != "none")
    options = ShardOptions(
        coord_tokens=spec.coord_tokens,
        ordering=spec.ordering,
        seed=spec.seed,
        max_objects=spec.max_objects,
        check_headers=spec.check_images == "headers",
    )
    made_from = identity(
        dialect=spec.dialect,
        annotations_sha256=_sha256(spec.annotations, progress),
        options=options,
        check_images=spec.check_images,
    )
    known = _existing(spec.output, made_from)
    if known is not None:
        return Prepared(known, is_new=False)
    with _building(spec.output) as building, Workers(num_workers) as workers:
        table = _read(spec, folder, workers, stretch_bytes, progress)
        shards = _write_shards(spec, table, options, building / "shards", workers, progress)
        _accept_headers(table, shards, max_bad_fraction=spec.max_bad_fraction)
        manifest = build_manifest(
            made_from,
            table,
            shards,
            annotations=spec.annotations,
            image_root=spec.images,
            samples_sha256=_join(shards, building / SAMPLES),
            ceiling=average_precision(CeilingMatches.joined([shard.matches for shard in shards])),
            max_bad_fraction=spec.max_bad_fraction,
        )
        write_json(building / MANIFEST, manifest, indent=1)
    return Prepared(manifest, is_new=True)


def _read(
    spec: PrepareSpec, folder: ImageFolder, workers: Workers, stretch_bytes: int, progress: Progress
) -> CocoTable:
    size = spec.annotations.stat().st_size
    rows = read_rows(
        spec.annotations,
        spec.images,
        dialect=spec.dialect,
        workers=workers,
        stretch_bytes=stretch_bytes,
        on_progress=lambda byte: progress("reading", byte, size),
    )
    return build_table(rows, spec.annotations, folder, max_bad_fraction=spec.max_bad_fraction)


def _sha256(path: Path, progress: Progress) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                progress("hashing", file.tell(), size)
    except FileNotFoundError:
        raise DataError(f"{path}: file not found") from None
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read ({error.strerror})") from None
    return digest.hexdigest()


def _existing(output: Path, made_from: Manifest) -> Manifest | None:
    """Return the manifest of a data set that is there already.

    Raises:
        DataError: if something else is there: it may be somebody's work, or in use by a run.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    try:
        manifest = json.loads((output / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise DataError(f"{output}: exists and is no prepared data set; expected a new or empty folder") from None
    if not isinstance(manifest, dict) or not is_same(manifest, made_from) or not (output / SAMPLES).is_file():
        raise DataError(
            f"{output}: holds a data set made from other annotations or with other options; remove it, or choose "
            "another folder"
        )
    return manifest


@contextmanager
def _building(output: Path) -> Generator[Path]:
    """Yield the folder that becomes ``output``; if the block fails, its shards stay for the next try."""
    building = output.with_name(f".{output.name}.partial")
    shards, lock = building / "shards", building / "lock"
    shards.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{output}: another process is preparing it") from None
        try:
            yield building
            shutil.rmtree(shards)
            lock.unlink()
            building.rename(output)
        finally:
            if shards.is_dir() and not any(shards.iterdir()):  # nothing to go on from
                shutil.rmtree(building)


def _write_shards(
    spec: PrepareSpec, table: CocoTable, options: ShardOptions, folder: Path, workers: Workers, progress: Progress
) -> list[Shard]:
    shards: list[Shard] = []
    done = 0
    tasks = shard_tasks(table, folder=folder, image_root=spec.images, options=options)
    for shard in workers.map(write_shard, tasks):
        shards.append(shard)
        done += shard.num_images
        progress("writing", done, len(table.images))
    return shards


def _accept_headers(table: CocoTable, shards: list[Shard], *, max_bad_fraction: float) -> None:
    bad: list[BadEntry] = [entry for shard in shards for entry in shard.bad]
    for entry in bad:
        table.rejections.add("images", shown_entry("images", entry), entry.reason)
    table.rejections.accept(table.counts, max_bad_fraction=max_bad_fraction)


def _join(shards: list[Shard], path: Path) -> str:
    """Write the shards' lines one after another; return the SHA-256 of the whole."""
    digest = hashlib.sha256()
    with path.open("wb") as joined:
        for shard in shards:
            content = shard.lines.read_bytes()
            digest.update(content)
            joined.write(content)
        joined.flush()
        os.fsync(joined.fileno())
    return digest.hexdigest()

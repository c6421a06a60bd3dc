"""The splits a configuration names: read them, choose a fixed part of one, fingerprint their bytes."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from coordexp.config.schema.data import Data
from coordexp.data.sample import SplitData
from coordexp.data.sources.coco import read_coco
from coordexp.data.sources.jsonl import read_jsonl
from coordexp.data.sources.shapes import ShapesSpec, write_shapes
from coordexp.data.splits.stratify import stratified_subset
from coordexp.errors import ConfigError, DataError
from coordexp.files import sha256_of_file
from coordexp.findings import Check, Finding, failure, ok, require, warning

__all__ = [
    "Split",
    "annotations_path",
    "check_split",
    "data_fingerprint",
    "images_path",
    "load_split",
    "stratified_subset",
]

Split = Literal["train", "val"]
_HASHED_BYTES = 256 * 2**20  # of a folder's images


def load_split(data_config: Data, split: Split, *, data_dir: Path, accept_prequantised: bool = False) -> SplitData:
    """Read a split; under ``format: shapes`` generate the data set first, unless it is there.

    Training annotations may be JSONL (a name that ends in ``.jsonl``), such as ``prepare`` writes.

    Args:
        data_config: the section ``data``.
        split: ``train`` or ``val``.
        data_dir: where generated data lives.
        accept_prequantised: as :func:`coordexp.data.sources.jsonl.read_jsonl`.

    Raises:
        DataError: as :func:`read_coco` and :func:`coordexp.data.sources.jsonl.read_jsonl`.
    """
    if data_config.format == "shapes":
        write_shapes(data_dir, ShapesSpec(**data_config.shapes.model_dump()))
    data = require(check_split(data_config, split, data_dir=data_dir, accept_prequantised=accept_prequantised))
    assert data is not None  # a missing file was a failure
    return data


def check_split(
    data_config: Data, split: Split, *, data_dir: Path, accept_prequantised: bool = False
) -> Check[SplitData | None]:
    """Look whether the files of a split are there, and read them; arguments and errors are those of ``load_split``."""
    annotations = annotations_path(data_config, split, data_dir=data_dir)
    images = images_path(data_config, split, data_dir=data_dir)
    missing = [*_missing_files(annotations, images, split)]
    if missing:
        yield from missing
        return None
    if annotations.suffix != ".jsonl":
        data = read_coco(annotations, images, max_bad_fraction=data_config.max_bad_fraction)
    elif split == "val":
        raise DataError(f"{annotations}: AP is measured on the original annotations; expected COCO JSON")
    else:
        data = read_jsonl(
            annotations,
            images,
            max_bad_fraction=data_config.max_bad_fraction,
            accept_prequantised=accept_prequantised,
        )
    categories = f", {len(data.categories)} categories" if data.categories else ""
    yield ok(
        f"{split} annotations",
        f"{len(data.samples):,} images, {data.counts['boxes']:,} boxes{categories}, each checked",
    )
    for rejected in data.rejected[:1]:
        yield warning(
            f"{split} annotations",
            f"{len(data.rejected)} records will be left out, e.g. {rejected.where}: {rejected.reason}",
        )
    return data


def _missing_files(annotations: Path, images: Path, split: Split) -> Iterator[Finding]:
    if not annotations.is_file():
        key = f"data.{split}_annotations"
        error = DataError(f"{annotations}: file not found; put the annotations there, or set {key}")
        yield failure(f"{split} annotations", error)
    if not images.is_dir():
        error = DataError(f"{images}: no such image folder; put the images there, or set data.{split}_images")
        yield failure(f"{split} images", error)
    elif next(images.iterdir(), None) is None:
        error = DataError(f"{images}: the image folder is empty; put the images there, or set data.{split}_images")
        yield failure(f"{split} images", error)


def annotations_path(data_config: Data, split: Split, *, data_dir: Path) -> Path:
    """Return the annotation file of a split."""
    if data_config.format == "shapes":
        return data_dir / f"instances_{split}.json"
    path = data_config.train_annotations if split == "train" else data_config.val_annotations
    return _configured(path, f"data.{split}_annotations")


def images_path(data_config: Data, split: Split, *, data_dir: Path) -> Path:
    """Return the image folder of a split."""
    if data_config.format == "shapes":
        return data_dir / split
    path = data_config.train_images if split == "train" else data_config.val_images
    return _configured(path, f"data.{split}_images")


def data_fingerprint(paths: Iterable[Path]) -> str:
    """Return a SHA-256 over data: the bytes of files, and names, sizes and bytes of the files in folders.

    Give it annotation files and image folders. Of a folder above 256 MiB only every n-th file is
    read, 256 MiB in all (COCO has 19 GB of images): an added, lost, renamed or re-encoded picture is
    always noticed, one changed to the same byte size only among those. Where the data lies does
    not matter.

    Raises:
        DataError: if a path does not exist.
    """
    digest = hashlib.sha256()
    for path in paths:
        if path.is_dir():
            lines = _folder_lines(path)
        elif path.is_file():
            lines = [sha256_of_file(path)]
        else:
            raise DataError(f"{path}: no such file or folder")
        digest.update(f"{len(lines)}\n".encode())
        digest.update("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _folder_lines(folder: Path) -> list[str]:
    files = sorted(_names_and_sizes(folder))
    stride = max(1, -(-sum(size for _, size in files) // _HASHED_BYTES))
    return [f"{name}\0{size}" for name, size in files] + [sha256_of_file(folder / name) for name, _ in files[::stride]]


def _names_and_sizes(folder: Path) -> Iterator[tuple[str, int]]:
    pending = [folder]
    while pending:
        current = pending.pop()
        with os.scandir(current) as entries:
            for entry in entries:
                if entry.is_dir():
                    pending.append(Path(entry.path))
                else:
                    name = Path(entry.path).relative_to(folder).as_posix()
                    yield name, entry.stat().st_size


def _configured(path: Path | None, key: str) -> Path:
    if path is None:
        raise ConfigError(f"{key} is not set; data.format: coco needs it")
    return path

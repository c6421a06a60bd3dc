"""The splits a configuration names: read them, fingerprint their bytes, choose a fixed part of one."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from coordexp.config.schema.data import Data
from coordexp.data.sample import SplitData
from coordexp.data.sources.source import Split, source_of
from coordexp.data.splits.stratify import stratified_subset
from coordexp.errors import DataError
from coordexp.files import sha256_of_file
from coordexp.findings import Check, Finding, failure, ok, require, warning

__all__ = ["Split", "check_split", "data_fingerprint", "load_split", "stratified_subset"]

_HASHED_BYTES = 256 * 2**20  # of a folder's images


def load_split(data: Data, split: Split, *, data_dir: Path, accept_prequantised: bool = False) -> SplitData:
    """Read a split; a generated data set is made first, unless it is there.

    Args:
        data: section ``data`` of a configuration.
        split: ``train`` or ``val``.
        data_dir: where generated data lives.
        accept_prequantised: whether boxes may be bins already.

    Raises:
        DataError: if the data cannot be used, or AP cannot be measured on a validation split.
    """
    loaded = require(check_split(data, split, data_dir=data_dir, accept_prequantised=accept_prequantised))
    assert loaded is not None  # a missing file was a failure
    return loaded


def check_split(
    data: Data, split: Split, *, data_dir: Path, accept_prequantised: bool = False
) -> Check[SplitData | None]:
    """Look whether the files of a split are there, and read them; arguments and errors are those of ``load_split``."""
    source = source_of(data, split, data_dir=data_dir)
    if split == "val":
        source.ground_truth()
    if source.generated is None:
        missing = [*_missing_files(source.annotations, source.images, split)]
        if missing:
            yield from missing
            return None
    loaded = source.read(max_bad_fraction=data.max_bad_fraction, accept_prequantised=accept_prequantised)
    categories = f", {len(loaded.categories)} categories" if loaded.categories else ""
    yield ok(
        f"{split} annotations",
        f"{len(loaded.samples):,} images, {loaded.counts['boxes']:,} boxes{categories}, each checked",
    )
    for rejected in loaded.rejected[:1]:
        yield warning(
            f"{split} annotations",
            f"{len(loaded.rejected)} records will be left out, e.g. {rejected.where}: {rejected.reason}",
        )
    return loaded


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

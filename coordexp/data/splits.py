"""The splits a configuration names: read them, fingerprint their bytes, choose a part that stands for the whole."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordexp.config.schema.data import Data
from coordexp.data.leaks import leak_sentence
from coordexp.data.sample import SIZE_EDGES_PX2, Sample, Samples, SplitData, fold
from coordexp.data.sources.chosen import ChosenSource, chosen_part
from coordexp.data.sources.coco import LvisSource
from coordexp.data.sources.source import Split, found_sentence, source_of
from coordexp.errors import DataError, counted
from coordexp.files import known_hashes, sha256_of_file, sha256_of_text
from coordexp.findings import Check, failure, ok, require, warning

HASHED_BYTES = 64 * 2**30  # of a folder's images
_OF_VIEWERS = ("Thumbs.db", "desktop.ini")  # beside hidden names such as .DS_Store and .nfs0000
_NUM_DRAWS = 128
_SHOWN_NAMES = 8


def load_split(data: Data, split: Split, *, data_dir: Path, accept_prequantised: bool = False) -> SplitData:
    """Read a split; a generated data set is made first in ``data_dir``, unless it is there.

    Raises:
        DataError: if the data cannot be used, or boxes are bins already without ``accept_prequantised``.
    """
    loaded = require(check_split(data, split, data_dir=data_dir, accept_prequantised=accept_prequantised))
    assert loaded is not None  # a missing file was a failure
    return loaded


def check_split(
    data: Data, split: Split, *, data_dir: Path, accept_prequantised: bool = False, max_images: int | None = None
) -> Check[SplitData | None]:
    """Look whether the files of a split are there, and read them; arguments and errors are those of ``load_split``.

    Of validation images ``max_images`` are chosen (``evaluation.max_images``).
    """
    check = f"{split} annotations"
    source = source_of(data, split, data_dir=data_dir, max_images=max_images)
    if split == "train" and (found := found_sentence(data)):
        yield ok("data", f"{data.path}: {found}")
    if source.generated is None:
        missing = [*missing_files(source.annotations, source.given_images, split)]
        if missing:
            yield from missing
            return None
    loaded = source.read(max_bad_fraction=data.max_bad_fraction, accept_prequantised=accept_prequantised)
    if split == "train" and data.max_train_images is not None:
        loaded = chosen_part(loaded, data.max_train_images, seed=data.train_subset_seed)
    if (error := _no_box(loaded, source.annotations, split)) is not None:
        yield failure(check, error)
        return None
    if split == "val":
        whole = source.whole if isinstance(source, ChosenSource) else source
        said = crowded_sentence(loaded.samples, limit=300 if isinstance(whole, LvisSource) else 100)
        said = said or ("" if loaded.counts["boxes"] else "there is no box in any image, so that AP is not defined")
        loaded = replace(loaded, warnings=(*loaded.warnings, said)) if said else loaded
    holds = [counted(len(loaded.samples), "image"), counted(loaded.counts["boxes"], "box")]
    holds += [counted(len(loaded.categories), "category")] if loaded.categories else []
    yield ok(check, f"{', '.join(holds)}, each checked")
    for sentence in loaded.notes:
        yield ok(check, sentence)
    for sentence in loaded.warnings:
        yield warning(check, sentence)
    if loaded.rejected:
        first = loaded.rejected[0]
        yield warning(
            check, f"{counted(len(loaded.rejected), 'record')} will be left out, e.g. {first.where}: {first.reason}"
        )
    return loaded


def _no_box(loaded: SplitData, annotations: Path, split: Split) -> DataError | None:
    """Return why a split cannot be trained or measured on: it has no box, or only crowds."""
    no_targets = loaded.counts.get("crowd", 0) + loaded.counts.get("ignored", 0)
    if loaded.counts["boxes"] or (split == "val" and not no_targets):
        return None
    why = f" ({no_targets:,} crowd or ignored boxes are no targets)" if no_targets else ""
    what, kind = ("to learn from", "training") if split == "train" else ("to measure AP on", "validation")
    return DataError(
        f"{annotations}: there is no box {what} in {len(loaded.samples):,} {kind} images{why}; set "
        f"data.{split}_annotations to a file with boxes"
    )


def crowded_sentence(samples: Sequence[Sample], *, limit: int) -> str:
    """Return a warning of images with more objects than AP counts boxes of an image; "" without any."""
    over = [len(sample.objects) for sample in samples if len(sample.objects) > limit]
    if not over:
        return ""
    return (
        f"{len(over):,} of {len(samples):,} validation images have more than {limit} objects, up to {max(over):,}: AP "
        f"counts the best {limit} boxes of an image, as COCO does, so that even perfect boxes stay below 1 (the codec "
        "ceiling says where)"
    )


def names_of(samples: Sequence[Sample]) -> set[str]:
    if isinstance(samples, Samples):
        return {samples.texts[at] for at in np.unique(samples.text_index)}
    return {desc for sample in samples for desc in sample.objects.descs}


def untrained_names(train: Iterable[str], val: Iterable[str]) -> str:
    """Return a warning of classes that are in validation and not in training, by their names; "" without any."""
    trained = {fold(name) for name in train}
    missing = sorted({fold(name): name for name in val if fold(name) not in trained}.values())
    if not missing:
        return ""
    more = f" and {len(missing) - _SHOWN_NAMES} more" if len(missing) > _SHOWN_NAMES else ""
    one = len(missing) == 1
    return (
        f"{len(missing):,} {'class is' if one else 'classes are'} in validation only, so that no run can learn "
        f"{'it' if one else 'them'}: {', '.join(missing[:_SHOWN_NAMES])}{more}"
    )


def between_splits(train: SplitData, val: SplitData) -> list[str]:
    said = untrained_names(names_of(train.samples), names_of(val.samples)), leak_sentence(train.samples, val.samples)
    return [sentence for sentence in said if sentence]


def missing_files(annotations: Path, images: Path, split: Split) -> Check[None]:
    """Look whether the annotation file and the image folder of a split are there; neither is read."""
    if not annotations.exists():
        missing = f"{annotations}: file not found; put the annotations there, or set data.{split}_annotations"
        yield failure(f"{split} annotations", DataError(missing))
    elif annotations.is_dir() and not images.is_relative_to(annotations) and not list(annotations.glob("*.xml")):
        error = DataError(f"{annotations}: that is a folder; data.path takes the folder of a data set in any format")
        yield failure(f"{split} annotations", error)
    if not images.is_dir() or next(images.iterdir(), None) is None:
        wrong = "the image folder is empty" if images.is_dir() else "no such image folder"
        error = DataError(f"{images}: {wrong}; put the images there, or set data.{split}_images")
        yield failure(f"{split} images", error)


def data_fingerprint(paths: Iterable[Path], *, known: Path, without: Path | None = None) -> str:
    """Return a SHA-256 over data: the bytes of files, and names, sizes and bytes of the files in folders.

    Give it annotation files and image folders. The hashes of a folder's files are kept, so that an image is read
    once and again only where it was written to: COCO's 19 GB cost the first command a reading, the next ones a look at
    the names. Of a folder above 64 GiB only every n-th file is read, 64 GiB in all: an added, lost, renamed or
    re-encoded picture is always noticed there, one changed to the same byte size only among those. Where the data lies
    does not matter, nor do hidden files and what else viewers and file systems leave beside pictures.

    The hashes are kept in the folder ``known``; the folder ``without`` changes while runs train, and counts for
    nothing where it lies below another.

    Raises:
        DataError: if a path does not exist.
    """
    digest = hashlib.sha256()
    for path in paths:
        if path.is_dir():
            lines = _folder_lines(path, known, without)
        elif path.is_file():
            lines = [sha256_of_file(path)]
        else:
            raise DataError(f"{path}: no such file or folder")
        digest.update(f"{len(lines)}\n".encode())
        digest.update("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _folder_lines(folder: Path, known: Path, without: Path | None) -> list[str]:
    files = sorted(_names_and_sizes(folder, without))
    total = sum(size for _, size in files)
    stride = max(1, -(-total // HASHED_BYTES))
    read = [folder / name for name, _ in files[::stride]]
    hashes = known_hashes(read, known / f"{sha256_of_text(str(folder.resolve()))[:16]}.json")
    return [f"{name}\0{size}" for name, size in files] + hashes


def _names_and_sizes(folder: Path, without: Path | None) -> Iterator[tuple[str, int]]:
    pending = [folder]
    left_out = None if without is None else without.resolve()
    while pending:
        current = pending.pop()
        with os.scandir(current) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name in _OF_VIEWERS:
                    continue
                if entry.is_dir():
                    if left_out is None or Path(entry.path).resolve() != left_out:
                        pending.append(Path(entry.path))
                else:
                    name = Path(entry.path).relative_to(folder).as_posix()
                    yield name, entry.stat().st_size


def stratified_subset(samples: Sequence[Sample], n: int) -> list[int]:
    """Choose ``n`` samples that look like all of them in number, size and category of their objects.

    Samples are sorted by their number of objects, then by a hash of the image id, and every
    ``len / n``-th is taken: the numbers of objects come out right by construction. Of 128 such draws,
    each with another hash, that one is kept whose shares of small, medium and large objects, and of
    categories, are closest to those of all samples (the two total variation distances added up).
    Within these bounds the choice is as good as random. No random state: the same images give the
    same choice everywhere, and in any order of the file.

    Returns:
        Indices in ascending order; all of them if there are no more than ``n``.
    """
    if len(samples) <= n:
        return list(range(len(samples)))
    if n == 0:
        return []
    counts = np.array([len(sample.objects) for sample in samples])
    hashes = np.array([int(sha256_of_text(str(sample.image_id))[:16], 16) for sample in samples], np.uint64)
    ranks = (2 * np.arange(n) + 1) * len(samples) // (2 * n)
    draws = [np.lexsort((_mixed(hashes, draw), counts))[ranks] for draw in range(_NUM_DRAWS)]
    features = _size_counts(samples), _category_counts(samples)
    best = min(draws, key=lambda chosen: sum(_distance(counts_NF, chosen) for counts_NF in features))
    return sorted(best.tolist())


def _distance(counts_NF: NDArray[np.float64], chosen: NDArray[np.int64]) -> float:
    whole, part = counts_NF.sum(axis=0), counts_NF[chosen].sum(axis=0)
    if not part.sum():
        return 0.0
    return float(np.abs(part / part.sum() - whole / whole.sum()).sum() / 2)


def _size_counts(samples: Sequence[Sample]) -> NDArray[np.float64]:
    counts = np.zeros((len(samples), len(SIZE_EDGES_PX2) + 1))
    for row, sample in enumerate(samples):
        x1, y1, x2, y2 = sample.objects.boxes_norm_xyxy.T
        areas = (x2 - x1) * sample.width * (y2 - y1) * sample.height
        np.add.at(counts[row], np.searchsorted(SIZE_EDGES_PX2, areas, side="right"), 1)
    return counts


def _category_counts(samples: Sequence[Sample]) -> NDArray[np.float64]:
    names = {name: at for at, name in enumerate(sorted({desc for one in samples for desc in one.objects.descs}))}
    counts = np.zeros((len(samples), len(names)))
    for row, sample in enumerate(samples):
        for name, count in Counter(sample.objects.descs).items():
            counts[row, names[name]] = count
    return counts


def _mixed(hashes: NDArray[np.uint64], draw: int) -> NDArray[np.uint64]:
    """Return other hashes for each draw (the finaliser of splitmix64)."""
    mixed = hashes + np.uint64((0x9E3779B97F4A7C15 * (draw + 1)) % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))

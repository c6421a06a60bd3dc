"""The splits of a set: load them, look whether a run can use them, choose a part that stands for the whole."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coordexp.config.schema.data import Data
from coordexp.data.chosen import chosen_for_evaluation, chosen_part
from coordexp.data.data_set import DataSet
from coordexp.data.leaks import leak_sentence
from coordexp.data.sample import SIZE_EDGES_PX2, Sample, Samples, Split, SplitData, fold
from coordexp.errors import DataError, counted
from coordexp.files import sha256_of_text
from coordexp.findings import Check, failure, ok, warning

_NUM_DRAWS = 128
_SHOWN_NAMES = 8


def check_loaded(
    loaded: SplitData,
    data: Data,
    split: Split,
    *,
    annotations: str,
    is_lvis: bool,
    max_images: int | None = None,
) -> Check[SplitData | None]:
    """Choose the part of a split that a run uses, and look whether it can; None, after a failure, if it cannot.

    Args:
        loaded: all of the split.
        data: the keys that choose a part of it.
        split: which one it is.
        annotations: what it was read from, for messages.
        is_lvis: its AP is LVIS's, which counts 300 boxes of an image where COCO's counts 100.
        max_images: how many validation images are chosen (``evaluation.max_images``); None for all.
    """
    check = f"{split} annotations"
    if split == "train" and data.max_train_images is not None:
        loaded = chosen_part(loaded, data.max_train_images, seed=data.train_subset_seed)
    if split == "val" and max_images is not None:
        loaded = chosen_for_evaluation(loaded, max_images, seed=data.split_seed)
    error = _no_box(loaded, annotations, split)
    if error is not None:
        yield failure(check, error)
        return None
    if split == "val":
        sentence = crowded_sentence(loaded.samples, limit=300 if is_lvis else 100)
        if not loaded.counts["boxes"]:
            sentence = sentence or "there is no box in any image, so that AP is not defined"
        if sentence:
            loaded = replace(loaded, warnings=(*loaded.warnings, sentence))
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


def check_split(
    data_set: DataSet, data: Data, split: Split, *, accept_prequantised: bool, max_images: int | None = None
) -> Check[SplitData | None]:
    """Load a split of a set for a run; arguments and errors are those of :func:`check_loaded`."""
    record = data_set.record.splits[split]
    if record.prequantised and not accept_prequantised:
        yield failure(f"{split} annotations", DataError(record.prequantised))
        return None
    return (
        yield from check_loaded(
            data_set.load(split),
            data,
            split,
            annotations=record.annotations,
            is_lvis=record.is_lvis,
            max_images=max_images,
        )
    )


def _no_box(loaded: SplitData, annotations: str, split: Split) -> DataError | None:
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

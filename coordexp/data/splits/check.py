"""Choose the part of a split that a run uses, and check whether the run can use it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from coordexp.config.schema.data import Data
from coordexp.data.sample import Sample, Samples, Split, fold
from coordexp.data.sets.data_set import DataSet
from coordexp.data.split_data import SplitData
from coordexp.data.splits.chosen import chosen_for_evaluation, chosen_part
from coordexp.data.splits.leaks import leak_sentence
from coordexp.errors import DataError, counted
from coordexp.findings import Check, failure, ok, warning

_MAX_BOXES_OF_COCO = 100
_MAX_BOXES_OF_LVIS = 300
"""Boxes of an image that AP counts."""
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
    """Choose the part of a split that a run uses, and yield what is to be said of it.

    Args:
        loaded: all of the split.
        data: the keys that choose a part of it.
        split: which one it is.
        annotations: what it was read from, for messages.
        is_lvis: whether its AP is LVIS's, which counts 300 boxes of an image; COCO's counts 100.
        max_images: how many validation images are chosen (``evaluation.max_images``); None for all.

    Returns:
        The part that a run uses; None, after a failure, if the run cannot use it.
    """
    check = f"{split} annotations"
    if split == "train" and data.max_train_images is not None:
        loaded = chosen_part(loaded, data.max_train_images, seed=data.train_subset_seed)
    if split == "val" and max_images is not None:
        loaded = chosen_for_evaluation(loaded, max_images, seed=data.split_seed)
    error = _no_box_error(loaded, annotations, split)
    if error is not None:
        yield failure(check, error)
        return None
    if split == "val":
        loaded = _with_val_warning(loaded, is_lvis=is_lvis)

    counts = [counted(len(loaded.samples), "image"), counted(loaded.counts["boxes"], "box")]
    if loaded.categories:
        counts.append(counted(len(loaded.categories), "category"))
    yield ok(check, f"{', '.join(counts)}, each checked")
    for sentence in loaded.notes:
        yield ok(check, sentence)
    for sentence in loaded.warnings:
        yield warning(check, sentence)
    if loaded.rejected:
        first = loaded.rejected[0]
        num_rejected = counted(len(loaded.rejected), "record")
        yield warning(check, f"{num_rejected} will be left out, e.g. {first.where}: {first.reason}")
    return loaded


def check_split(
    data_set: DataSet, data: Data, split: Split, *, accept_prequantised: bool, max_images: int | None = None
) -> Check[SplitData | None]:
    """Load a split of a set for a run, as :func:`check_loaded` does.

    Args:
        data_set: the set.
        data: the keys that choose a part of the split.
        split: which one.
        accept_prequantised: whether boxes may be bins already.
        max_images: how many validation images are chosen; None for all.
    """
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


def _no_box_error(loaded: SplitData, annotations: str, split: Split) -> DataError | None:
    """Return why a split cannot be trained or measured on: it has no box, or only crowds; None if it can."""
    num_no_targets = loaded.counts.get("crowd", 0) + loaded.counts.get("ignored", 0)
    # A validation split without any box is fine: it counts false positives.
    if loaded.counts["boxes"] or (split == "val" and not num_no_targets):
        return None
    why = f" ({num_no_targets:,} crowd or ignored boxes are no targets)" if num_no_targets else ""
    purpose, kind = ("to learn from", "training") if split == "train" else ("to measure AP on", "validation")
    return DataError(
        f"{annotations}: there is no box {purpose} in {len(loaded.samples):,} {kind} images{why}; set "
        f"data.{split}_annotations to a file with boxes"
    )


def _with_val_warning(loaded: SplitData, *, is_lvis: bool) -> SplitData:
    """Return a validation split with a warning if its AP is bounded by crowded images, or not defined."""
    sentence = crowded_sentence(loaded.samples, limit=_MAX_BOXES_OF_LVIS if is_lvis else _MAX_BOXES_OF_COCO)
    if not sentence and not loaded.counts["boxes"]:
        sentence = "there is no box in any image, so that AP is not defined"
    return replace(loaded, warnings=(*loaded.warnings, sentence)) if sentence else loaded


def crowded_sentence(samples: Sequence[Sample], *, limit: int) -> str:
    """Return a warning of images with more objects than AP counts boxes of an image; "" without any."""
    num_over = [len(sample.objects) for sample in samples if len(sample.objects) > limit]
    if not num_over:
        return ""
    return (
        f"{len(num_over):,} of {len(samples):,} validation images have more than {limit} objects, up to "
        f"{max(num_over):,}: AP counts the best {limit} boxes of an image, as COCO does, so that even perfect boxes "
        "stay below 1 (the codec ceiling says where)"
    )


def names_of(samples: Sequence[Sample]) -> set[str]:
    """Return the different descriptions of all objects."""
    if isinstance(samples, Samples):
        return {samples.texts[text] for text in np.unique(samples.text_index)}
    return {desc for sample in samples for desc in sample.objects.descs}


def untrained_names(train: Iterable[str], val: Iterable[str]) -> str:
    """Return a warning of classes that are in validation and not in training; "" without any.

    Args:
        train: names of the classes in training.
        val: names of the classes in validation.
    """
    trained = {fold(name) for name in train}
    missing = sorted({fold(name): name for name in val if fold(name) not in trained}.values())
    if not missing:
        return ""
    more = f" and {len(missing) - _SHOWN_NAMES} more" if len(missing) > _SHOWN_NAMES else ""
    is_single = len(missing) == 1
    return (
        f"{len(missing):,} {'class is' if is_single else 'classes are'} in validation only, so that no run can learn "
        f"{'it' if is_single else 'them'}: {', '.join(missing[:_SHOWN_NAMES])}{more}"
    )


def between_splits(train: SplitData, val: SplitData) -> list[str]:
    """Return warnings of what the two splits do, and do not, have in common."""
    sentences = [
        untrained_names(names_of(train.samples), names_of(val.samples)),
        leak_sentence(train.samples, val.samples),
    ]
    return [sentence for sentence in sentences if sentence]

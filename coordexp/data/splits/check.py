"""The splits of a set: load them, look whether a run can use them, choose a part that stands for the whole."""

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

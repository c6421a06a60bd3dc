"""How two sets of one experiment differ: the number of pictures that changed, and the first of them."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from coordexp.data.sample import SPLITS, Split
from coordexp.data.sets.data_set import DataSet

_FACTS_OF_AN_IMAGE = ("name", "size", "EXIF orientation", "image id", "descriptions", "boxes", "crowd and ignore flags")
"""The items of :meth:`coordexp.data.sets.split_arrays.SplitArrays.of_image`, in their order."""
_SPLIT_TITLES: dict[Split, str] = {"train": "training", "val": "validation"}


def changes_between(before: DataSet, now: DataSet) -> str:
    """Return how many pictures changed, and the first change, as the beginning of a sentence."""
    sentences: list[str] = []
    for split in SPLITS:
        changes = list(_changes(before, now, split))
        if changes:
            num_images = max(data_set.record.splits[split].num_images for data_set in (before, now))
            sentences.append(
                f"{len(changes):,} of {num_images:,} {_SPLIT_TITLES[split]} pictures of {now.folder(split)} "
                f"changed, the first one: {changes[0]}"
            )
    if not sentences:
        annotations = now.record.splits["val"].annotations
        sentences.append(f"{annotations}: categories, or what AP is measured on, changed, and no picture or box")
    return "; ".join(sentences)


def _changes(before: DataSet, now: DataSet, split: Split) -> Iterator[str]:
    """Yield a sentence for each picture of a split that is gone, has changed, or is new."""
    old, new = before.arrays(split), now.arrays(split)
    old_hashes, new_hashes = before.picture_hashes()[split], now.picture_hashes()[split]
    old_keys, new_keys = _keys(old.names), _keys(new.names)
    new_index_of = {key: index for index, key in enumerate(new_keys)}
    for old_index, key in enumerate(old_keys):
        name, _ = key
        new_index = new_index_of.get(key)
        if new_index is None:
            yield f"{name} is no longer there"
            continue
        facts = zip(_FACTS_OF_AN_IMAGE, old.of_image(old_index), new.of_image(new_index), strict=True)
        changed = [fact for fact, old_value, new_value in facts if old_value != new_value]
        old_hash, new_hash = old_hashes[old_index], new_hashes[new_index]
        # A hash of zeros stands for a picture that was not read.
        was_read_twice = old_hash.any() and new_hash.any()
        if was_read_twice and not np.array_equal(old_hash, new_hash):
            changed.append("bytes")
        if changed:
            yield f"{name} has other {' and '.join(changed)}"
    known_keys = set(old_keys)
    for key in new_keys:
        if key not in known_keys:
            yield f"{key[0]} is new"


def _keys(names: list[str]) -> list[tuple[str, int]]:
    """Return each name with its number among equal names: two images may name one picture."""
    num_before: Counter[str] = Counter()
    keys: list[tuple[str, int]] = []
    for name in names:
        keys.append((name, num_before[name]))
        num_before[name] += 1
    return keys

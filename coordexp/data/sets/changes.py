"""In what two sets of one experiment differ: how many pictures, and the first of them."""

import itertools
from collections.abc import Iterator

import numpy as np

from coordexp.data.sample import SPLITS, Split
from coordexp.data.sets.data_set import DataSet

_WHAT = ("name", "size", "EXIF orientation", "image id", "descriptions", "boxes", "crowd and ignore flags")
"""The parts of :meth:`coordexp.data.sets.split_arrays.SplitArrays.of_image`."""
_TITLES: dict[Split, str] = {"train": "training", "val": "validation"}


def changes_between(before: DataSet, now: DataSet) -> str:
    """Return how many pictures changed, and the first change, as the beginning of a sentence."""
    sentences: list[str] = []
    for split in SPLITS:
        changes = list(_changes(before, now, split))
        if changes:
            folder = now.folder(split)
            num_images = max(one.record.splits[split].num_images for one in (before, now))
            sentences.append(
                f"{len(changes):,} of {num_images:,} {_TITLES[split]} pictures of {folder} "
                f"changed, the first one: {changes[0]}"
            )
    if not sentences:
        where = now.record.splits["val"].annotations
        sentences.append(f"{where}: categories, or what AP is measured on, changed, and no picture or box")
    return "; ".join(sentences)


def _changes(before: DataSet, now: DataSet, split: Split) -> Iterator[str]:
    old, new = before.arrays(split), now.arrays(split)
    old_hashes, new_hashes = before.picture_hashes()[split], now.picture_hashes()[split]
    new_places = {key: place for place, key in enumerate(_keys(new.names))}
    old_keys = _keys(old.names)
    for old_place, key in enumerate(old_keys):
        place = new_places.get(key)
        if place is None:
            yield f"{key[0]} is no longer there"
            continue
        pairs = zip(_WHAT, old.of_image(old_place), new.of_image(place), strict=True)
        changed = [what for what, first, second in pairs if first != second]
        is_read = old_hashes[old_place].any() and new_hashes[place].any()
        if is_read and not np.array_equal(old_hashes[old_place], new_hashes[place]):
            changed.append("bytes")
        if changed:
            yield f"{key[0]} has other {' and '.join(changed)}"
    known = set(old_keys)
    for key in _keys(new.names):
        if key not in known:
            yield f"{key[0]} is new"


def _keys(names: list[str]) -> list[tuple[str, int]]:
    """Return each name with its number among equal ones: two images may name one picture."""
    counters: dict[str, itertools.count[int]] = {}
    return [(name, next(counters.setdefault(name, itertools.count()))) for name in names]

"""Training pictures in validation, whose AP is that of training data: by path, by bytes, or as copies of a picture."""

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from coordexp.data.images.pixels import read_image
from coordexp.data.sample import Sample
from coordexp.data.splits.originals import is_copy, original_name
from coordexp.errors import DataError
from coordexp.files import sha256_of_file

_SIDE_PX, _ALIKE = 16, 6.0  # of a thumbnail; its grey levels differ by no more on average
_SHOWN = 3


def leak_sentence(train: Sequence[Sample], val: Sequence[Sample]) -> str:
    """Return a warning where pictures are in both splits, with how many and why; "" without any."""
    in_training = {sample.image.resolve() for sample in train}
    same = shared_pictures(val, train)
    originals = {original_name(path.name) for path in in_training if is_copy(path.name)}
    names = {path.name.casefold(): path for path in in_training}
    copies: list[Path] = []
    alike: list[Path] = []
    for path in {sample.image.resolve() for sample in val} - same:
        other = names.get(path.name.casefold())
        if is_copy(path.name) and original_name(path.name) in originals:
            copies.append(path)
        elif other is not None and _look_alike(path, other):
            alike.append(path)
    kinds = {
        "byte for byte": same,
        "as copies that a tool made of one picture (.rf. in their names)": copies,
        "by name and look": alike,
    }
    parts = [f"{len(found):,} {what}" for what, found in kinds.items() if found]
    if not parts:
        return ""
    shown = ", ".join(sorted(path.name for path in (*same, *copies, *alike))[:_SHOWN])
    return (
        f"{len(same) + len(copies) + len(alike):,} of {len(val):,} validation pictures are training pictures too: "
        f"{'; '.join(parts)} ({shown}); their AP is that of training data"
    )


def shared_pictures(train: Sequence[Sample], final: Sequence[Sample]) -> set[Path]:
    """Return the resolved files of ``train`` that ``final`` holds too, under whatever name.

    Only files of equal size are compared byte for byte, so that a large data set is not read whole.
    """
    by_size: dict[int, set[Path]] = {}
    for sample in final:
        path = sample.image.resolve()
        by_size.setdefault(path.stat().st_size, set()).add(path)
    hash_of = functools.cache(sha256_of_file)
    shared: set[Path] = set()
    for path in {sample.image.resolve() for sample in train}:
        others = by_size.get(path.stat().st_size, set())
        if path in others or any(hash_of(path) == hash_of(other) for other in others):
            shared.add(path)
    return shared


def _look_alike(first: Path, second: Path) -> bool:
    """Return whether two pictures of one name show the same: many data sets begin to count anew in each split."""
    try:
        pictures = [read_image(path) for path in (first, second)]
    except DataError:  # said where it is used
        return False
    small = [np.asarray(one.convert("L").resize((_SIDE_PX, _SIDE_PX), Image.Resampling.BOX), float) for one in pictures]
    return float(np.abs(small[0] - small[1]).mean()) < _ALIKE

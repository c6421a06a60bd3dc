"""Training pictures in the validation split, whose AP is that of training data: by path, by bytes, or as copies."""

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

_THUMBNAIL_SIDE_PX = 16
_MAX_GREY_DIFFERENCE = 6.0
"""Of 256 levels, on average over a thumbnail: pictures that differ by less look alike."""
_SHOWN = 3


def leak_sentence(train: Sequence[Sample], val: Sequence[Sample]) -> str:
    """Return a warning if pictures are in both splits, with how many and why; "" without any."""
    train_paths = {sample.image.resolve() for sample in train}
    copied_originals = {original_name(path.name) for path in train_paths if is_copy(path.name)}
    train_path_of_name = {path.name.casefold(): path for path in train_paths}
    equal = shared_pictures(val, train)
    copies: list[Path] = []
    alike: list[Path] = []
    for path in {sample.image.resolve() for sample in val} - equal:
        same_name = train_path_of_name.get(path.name.casefold())
        if is_copy(path.name) and original_name(path.name) in copied_originals:
            copies.append(path)
        elif same_name is not None and _look_alike(path, same_name):
            alike.append(path)

    kinds = {
        "byte for byte": equal,
        "as copies that a tool made of one picture (.rf. in their names)": copies,
        "by name and look": alike,
    }
    counts = [f"{len(paths):,} {kind}" for kind, paths in kinds.items() if paths]
    if not counts:
        return ""
    leaks = (*equal, *copies, *alike)
    shown = ", ".join(sorted(path.name for path in leaks)[:_SHOWN])
    return (
        f"{len(leaks):,} of {len(val):,} validation pictures are training pictures too: "
        f"{'; '.join(counts)} ({shown}); their AP is that of training data"
    )


def shared_pictures(samples: Sequence[Sample], others: Sequence[Sample]) -> set[Path]:
    """Return the resolved files of ``samples`` that ``others`` hold too, under whatever name.

    Only files of equal size are compared byte for byte, so that a large data set is not read whole.
    """
    other_paths_of_size: dict[int, set[Path]] = {}
    for sample in others:
        path = sample.image.resolve()
        other_paths_of_size.setdefault(path.stat().st_size, set()).add(path)
    hash_of = functools.cache(sha256_of_file)
    shared: set[Path] = set()
    for path in {sample.image.resolve() for sample in samples}:
        same_size = other_paths_of_size.get(path.stat().st_size, set())
        if path in same_size or any(hash_of(path) == hash_of(other) for other in same_size):
            shared.add(path)
    return shared


def _look_alike(first: Path, second: Path) -> bool:
    """Return whether two pictures of one name show the same.

    The name alone says little: many data sets begin to count anew in each split.
    """
    try:
        pictures = [read_image(path) for path in (first, second)]
    except DataError:  # reported when the picture is used
        return False
    side = _THUMBNAIL_SIDE_PX
    thumbnails = [picture.convert("L").resize((side, side), Image.Resampling.BOX) for picture in pictures]
    first_grey, second_grey = (np.asarray(thumbnail, float) for thumbnail in thumbnails)
    return float(np.abs(first_grey - second_grey).mean()) < _MAX_GREY_DIFFERENCE

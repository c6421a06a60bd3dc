"""Pictures of one scene on both sides of a split, if nobody has said which belong together: frames and look-alikes.

:mod:`coordexp.data.splits.leaks` finds the same picture twice. This module finds neighbours in time and pictures that
look alike: their AP is nearly that of training data as well.
"""

import hashlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from coordexp.data.images.pixels import thumbnail
from coordexp.data.sample import Sample
from coordexp.errors import DataError

MAX_PICTURES = 5_000
"""Pictures of each split that are compared at most."""
MAX_SECONDS = 60.0

_SIDE = 16
# Two thumbnails are compared by hashes of 256 bits, and by their mean difference in grey, of 256 levels. Photographs
# of two different scenes differ in about 128 bits.
_LOOK_ALIKE_BITS = 16
_LOOK_ALIKE_GREY = 6.0
# Two frames that follow each other differ by more: the camera, or what it sees, has moved on.
_NEIGHBOUR_BITS = 80
_NEIGHBOUR_GREY = 24.0
_GAP_STEPS = 3
"""Frames of one clip are at most so many usual steps apart; often only every n-th frame was kept."""
# Fewer pictures than this are not worth a sentence: some look alike anywhere.
_FEWEST = 3
_FEWEST_SHARE = 0.03
_READERS = 4
_BATCH = 64
_FRAME = re.compile(r"^(?P<clip>.*?)(?P<number>\d+)(?P<end>\D*)$")
_KEY = "data.unit_by"
_Thumbnail: TypeAlias = NDArray[np.int16]
"""``[16, 17]`` grey levels."""


@dataclass(frozen=True)
class Frame:
    """A picture whose name holds a number: it may be a frame of a clip.

    Attributes:
        clip: folder, and name before the number.
        end: name after the number, with the ending of the file.
        number: of the frame.
    """

    clip: str
    end: str
    number: int

    @classmethod
    def of(cls, path: Path) -> "Frame | None":
        """Return a picture as a frame, by the last number in its name; None without a number."""
        match = _FRAME.match(path.stem)
        if match is None:
            return None
        return cls(f"{path.parent}/{match['clip']}", match["end"] + path.suffix.lower(), int(match["number"]))


def near_sentence(train: Sequence[Sample], val: Sequence[Sample], *, seconds: float = MAX_SECONDS) -> str:
    """Return a warning of validation pictures that are next to a training picture, or look like one; "" without any.

    At most ``MAX_PICTURES`` of each split are compared; the sentence says how many were.

    Args:
        train: samples of the training split.
        val: samples of the validation split.
        seconds: time for reading pictures.
    """
    started = time.monotonic()
    train_paths = {sample.image for sample in train}
    val_paths = {sample.image for sample in val}
    chosen_val = _chosen(val_paths)
    neighbours = _neighbours(chosen_val, train_paths, val_paths)
    all_neighbours = {path for paths in neighbours.values() for path in paths}
    chosen_train = _chosen(train_paths, first=all_neighbours)
    # Each split gets half of the time: without pictures of one of them there is nothing to compare.
    val_thumbnails = dict(_thumbnails(chosen_val, until=started + seconds / 2))
    train_thumbnails = dict(_thumbnails(chosen_train, until=started + seconds))
    if not val_thumbnails or not train_thumbnails:
        return ""

    frames = _alike_neighbours(neighbours, val_thumbnails, train_thumbnails)
    look_alikes = {
        path: train_path
        for path, train_path in _look_alikes(val_thumbnails, train_thumbnails).items()
        if path not in frames
    }
    fewest = max(_FEWEST, _FEWEST_SHARE * len(val_thumbnails))
    counts: list[str] = []
    for pairs, relation in ((frames, "are frames next to a training picture"), (look_alikes, "look like one")):
        if len(pairs) >= fewest:
            path, train_path = min(pairs.items())
            counts.append(f"{len(pairs):,} {relation} ({path.name} and {train_path.name})")
    if not counts:
        return ""
    return (
        f"of {len(val_thumbnails):,} of {len(val_paths):,} validation pictures, compared with "
        f"{len(train_thumbnails):,} of {len(train_paths):,} training pictures, {', and '.join(counts)}: their AP is "
        "partly that of training data. If pictures of one clip, patient or slide belong together, set "
        f"{_KEY} to what names it: a field of the images, or a pattern such as {_KEY}='^(.+)_' for clip7_0001.jpg"
    )


def _chosen(paths: set[Path], *, first: AbstractSet[Path] = frozenset()) -> list[Path]:
    """Choose pictures by a hash of their names; those in ``first`` come before all others."""
    ranked = sorted(paths, key=lambda path: (path not in first, hashlib.sha256(str(path).encode()).digest()))
    return ranked[:MAX_PICTURES]


def _neighbours(val: Sequence[Path], all_train: set[Path], all_val: set[Path]) -> dict[Path, list[Path]]:
    """Return the training pictures that come right before or after a validation picture in its clip.

    The pictures of a clip are sorted by number, of both splits together. Its neighbours are at most a few usual steps
    away; a picture behind a longer gap belongs to another scene.
    """
    by_clip: dict[tuple[str, str], dict[int, Path]] = {}
    for path in (*all_train, *all_val):
        frame = Frame.of(path)
        if frame is not None:
            by_clip.setdefault((frame.clip, frame.end), {})[frame.number] = path
    numbers_of = {clip: np.array(sorted(frames)) for clip, frames in by_clip.items() if len(frames) > 1}
    max_gap_of = {clip: _GAP_STEPS * float(np.median(np.diff(numbers))) for clip, numbers in numbers_of.items()}

    neighbours: dict[Path, list[Path]] = {}
    for path in val:
        frame = Frame.of(path)
        if frame is None or (frame.clip, frame.end) not in numbers_of:
            continue
        clip = (frame.clip, frame.end)
        index = int(np.searchsorted(numbers_of[clip], frame.number))
        near: list[Path] = []
        for number in numbers_of[clip][max(0, index - 1) : index + 2].tolist():
            if number != frame.number and abs(number - frame.number) <= max_gap_of[clip]:
                near.append(by_clip[clip][number])
        neighbours[path] = [neighbour for neighbour in near if neighbour in all_train]
    return neighbours


def _thumbnails(paths: Sequence[Path], *, until: float) -> Iterator[tuple[Path, _Thumbnail]]:
    """Yield thumbnails of pictures until the time is over; pictures without one are left out."""
    with ThreadPoolExecutor(_READERS) as pool:
        for start in range(0, len(paths), _BATCH):
            if time.monotonic() > until:
                return
            batch = paths[start : start + _BATCH]
            for path, grey in zip(batch, pool.map(_thumbnail, batch), strict=True):
                if grey is not None:
                    yield path, grey


def _thumbnail(path: Path) -> _Thumbnail | None:
    """Return 16 x 17 grey levels; None for a picture that does not decode, or is nearly of one colour."""
    try:
        grey = np.asarray(thumbnail(path, width=_SIDE + 1, height=_SIDE), np.int16)
    except DataError:  # reported when the picture is used
        return None
    is_plain = grey.max() - grey.min() < _SIDE
    return None if is_plain else grey  # a plain picture looks like many others


def _hash(grey: _Thumbnail) -> NDArray[np.uint64]:
    """Return a perceptual hash, 256 bits as ``[4]``: whether each cell is darker than the cell to its right."""
    return np.packbits((grey[:, :-1] < grey[:, 1:]).flatten()).view(np.uint64)


def _alike_neighbours(
    neighbours: Mapping[Path, Sequence[Path]], val: Mapping[Path, _Thumbnail], train: Mapping[Path, _Thumbnail]
) -> dict[Path, Path]:
    """Return validation pictures with a neighbour in training that shows nearly the same: numbers alone say little."""
    frames: dict[Path, Path] = {}
    for path, train_paths in neighbours.items():
        for train_path in train_paths:
            if path not in val or train_path not in train:
                continue
            num_bits = int(np.bitwise_count(_hash(val[path]) ^ _hash(train[train_path])).sum())
            grey_difference = _grey_difference(val[path], train[train_path])
            if num_bits <= _NEIGHBOUR_BITS and grey_difference <= _NEIGHBOUR_GREY:
                frames.setdefault(path, train_path)
    return frames


def _look_alikes(val: Mapping[Path, _Thumbnail], train: Mapping[Path, _Thumbnail]) -> dict[Path, Path]:
    """Return the validation pictures whose nearest training picture looks the same, with that picture."""
    train_paths = list(train)
    train_hashes = np.stack([_hash(grey) for grey in train.values()])
    alike: dict[Path, Path] = {}
    for path, grey in val.items():
        num_bits = np.bitwise_count(train_hashes ^ _hash(grey)).sum(axis=1)
        nearest = int(num_bits.argmin())
        if num_bits[nearest] > _LOOK_ALIKE_BITS:
            continue
        if _grey_difference(grey, train[train_paths[nearest]]) <= _LOOK_ALIKE_GREY:
            alike[path] = train_paths[nearest]
    return alike


def _grey_difference(first: _Thumbnail, second: _Thumbnail) -> float:
    return float(np.abs(first - second).mean())

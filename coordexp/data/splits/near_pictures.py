"""Pictures of one scene on both sides of a split, where nobody has said which belong together: frames and look-alikes.

What :mod:`coordexp.data.splits.leaks` finds is the same picture twice; here are neighbours in time, whose AP is nearly
that of training data as well.
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
"""Pictures of a split that are looked at."""
MAX_SECONDS = 60.0

_SIDE = 16
_LOOK_ALIKE_BITS, _LOOK_ALIKE_GREY = 16, 6.0
"""Of 256, and of 256 levels on average. Two photographs of different scenes differ in about 128 bits."""
_NEIGHBOUR_BITS, _NEIGHBOUR_GREY = 80, 24.0
"""Of two frames that follow each other: the camera or what it sees has moved on."""
_GAP_STEPS = 3
"""Frames of one clip are at most so many usual steps apart: often only every n-th frame is kept."""
_FEWEST, _FEWEST_SHARE = 3, 0.03
"""Pictures that are worth a sentence; some look alike anywhere."""
_READERS = 4
_BATCH = 64
_FRAME = re.compile(r"^(?P<clip>.*?)(?P<number>\d+)(?P<end>\D*)$")
_KEY = "data.unit_by"
_Look: TypeAlias = NDArray[np.int16]


@dataclass(frozen=True)
class Frame:
    """A picture whose name ends in a number: it may be a frame of a clip."""

    clip: str
    end: str
    number: int

    @classmethod
    def of(cls, path: Path) -> "Frame | None":
        match = _FRAME.match(path.stem)
        if match is None:
            return None
        return cls(f"{path.parent}/{match['clip']}", match["end"] + path.suffix.lower(), int(match["number"]))


def near_sentence(train: Sequence[Sample], val: Sequence[Sample], *, seconds: float = MAX_SECONDS) -> str:
    """Return a warning of validation pictures that are next to a training picture, or look like one; "" without any.

    Looked at are at most ``MAX_PICTURES`` of each split, for so many seconds; the sentence says how many.
    """
    started = time.monotonic()
    all_train, all_val = ({sample.image for sample in samples} for samples in (train, val))
    chosen_val = _chosen(all_val)
    neighbours = _neighbours(chosen_val, all_train, all_val)
    chosen_train = _chosen(all_train, first={other for others in neighbours.values() for other in others})
    # Half of the time each: without pictures of one split there is nothing to compare.
    val_looks = dict(_looks(chosen_val, until=started + seconds / 2))
    train_looks = dict(_looks(chosen_train, until=started + seconds))
    if not val_looks or not train_looks:
        return ""
    frames = _alike_neighbours(neighbours, val_looks, train_looks)
    look_alikes = {path: other for path, other in _look_alikes(val_looks, train_looks).items() if path not in frames}
    fewest = max(_FEWEST, _FEWEST_SHARE * len(val_looks))
    parts: list[str] = []
    for pairs, what in ((frames, "are frames next to a training picture"), (look_alikes, "look like one")):
        if len(pairs) >= fewest:
            path, other = min(pairs.items())
            parts.append(f"{len(pairs):,} {what} ({path.name} and {other.name})")
    if not parts:
        return ""
    return (
        f"of {len(val_looks):,} of {len(all_val):,} validation pictures, compared with {len(train_looks):,} of "
        f"{len(all_train):,} training pictures, {', and '.join(parts)}: their AP is partly that of training data. If "
        f"pictures of one clip, patient or slide belong together, set {_KEY} to what names it: a field of the images, "
        f"or a pattern such as {_KEY}='^(.+)_' for clip7_0001.jpg"
    )


def _chosen(paths: set[Path], *, first: AbstractSet[Path] = frozenset()) -> list[Path]:
    """Choose pictures by a hash of their names, those of ``first`` before all others."""
    ranked = sorted(paths, key=lambda path: (path not in first, hashlib.sha256(str(path).encode()).digest()))
    return ranked[:MAX_PICTURES]


def _neighbours(val: Sequence[Path], train: set[Path], all_val: set[Path]) -> dict[Path, list[Path]]:
    """Return the training pictures whose number is next to that of a validation picture, by at most a few steps."""
    by_clip: dict[tuple[str, str], dict[int, Path]] = {}
    for path in (*train, *all_val):
        frame = Frame.of(path)
        if frame is not None:
            by_clip.setdefault((frame.clip, frame.end), {})[frame.number] = path
    numbers = {clip: np.array(sorted(frames)) for clip, frames in by_clip.items() if len(frames) > 1}
    gaps = {clip: _GAP_STEPS * float(np.median(np.diff(of_clip))) for clip, of_clip in numbers.items()}
    neighbours: dict[Path, list[Path]] = {}
    for path in val:
        frame = Frame.of(path)
        clip = ("", "") if frame is None else (frame.clip, frame.end)
        if frame is None or clip not in numbers:
            continue
        place = int(np.searchsorted(numbers[clip], frame.number))
        around = [number for number in numbers[clip][max(0, place - 1) : place + 2].tolist() if number != frame.number]
        near = [by_clip[clip][number] for number in around if abs(number - frame.number) <= gaps[clip]]
        neighbours[path] = [other for other in near if other in train]
    return neighbours


def _looks(paths: Sequence[Path], *, until: float) -> Iterator[tuple[Path, _Look]]:
    """Yield thumbnails of pictures until the time is over; one of a single colour looks like many others."""
    with ThreadPoolExecutor(_READERS) as pool:
        for start in range(0, len(paths), _BATCH):
            if time.monotonic() > until:
                return
            batch = paths[start : start + _BATCH]
            for path, look in zip(batch, pool.map(_look, batch), strict=True):
                if look is not None:
                    yield path, look


def _look(path: Path) -> _Look | None:
    """Return 16 x 17 grey levels; a perceptual hash is made of which of two neighbours is darker."""
    try:
        grey = np.asarray(thumbnail(path, width=_SIDE + 1, height=_SIDE), np.int16)
    except DataError:  # said where the picture is used
        return None
    return None if grey.max() - grey.min() < _SIDE else grey


def _hash(look: _Look) -> NDArray[np.uint64]:
    """Return 256 bits as ``[4]``: whether each cell is darker than the one to its right."""
    return np.packbits((look[:, :-1] < look[:, 1:]).flatten()).view(np.uint64)


def _alike_neighbours(
    neighbours: Mapping[Path, Sequence[Path]], val: Mapping[Path, _Look], train: Mapping[Path, _Look]
) -> dict[Path, Path]:
    """Return validation pictures with a neighbour in training that shows nearly the same: numbers alone say little."""
    frames: dict[Path, Path] = {}
    for path, others in neighbours.items():
        for other in others:
            if path not in val or other not in train:
                continue
            bits = int(np.bitwise_count(_hash(val[path]) ^ _hash(train[other])).sum())
            if bits <= _NEIGHBOUR_BITS and _grey_difference(val[path], train[other]) <= _NEIGHBOUR_GREY:
                frames.setdefault(path, other)
    return frames


def _look_alikes(val: Mapping[Path, _Look], train: Mapping[Path, _Look]) -> dict[Path, Path]:
    paths = list(train)
    hashes = np.stack([_hash(look) for look in train.values()])
    alike: dict[Path, Path] = {}
    for path, look in val.items():
        distances = np.bitwise_count(hashes ^ _hash(look)).sum(axis=1)
        nearest = int(distances.argmin())
        is_near = distances[nearest] <= _LOOK_ALIKE_BITS
        if is_near and _grey_difference(look, train[paths[nearest]]) <= _LOOK_ALIKE_GREY:
            alike[path] = paths[nearest]
    return alike


def _grey_difference(first: _Look, second: _Look) -> float:
    return float(np.abs(first - second).mean())

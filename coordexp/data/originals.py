"""Pictures by their names: the original before a tool's suffix, and the part of them that belongs to a split."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from coordexp.files import sha256_of_text

# Roboflow writes NAME_jpg.rf.0123456789abcdef.jpg for each augmented copy of NAME.jpg.
_COPY = re.compile(r"(_(jpe?g|png|webp|bmp|tiff?))?\.rf\.[0-9A-Za-z]+$|[ _-]aug(mented)?[_-]?\w*$", re.IGNORECASE)


def original_name(name: str) -> str:
    """Return the stem of the picture that a name is a copy of; its own stem for one that no tool has copied."""
    return _COPY.sub("", PurePosixPath(name.replace("\\", "/")).stem)


def is_copy(name: str) -> bool:
    return _COPY.search(PurePosixPath(name.replace("\\", "/")).stem) is not None


@dataclass(frozen=True)
class Part:
    """A split's part of pictures without an official split; ``fraction`` of them are for validation."""

    is_val: bool
    fraction: float
    seed: int

    def choose(self, names: Iterable[str]) -> set[str]:
        """Return the names of the part: copies of one picture stay together, and no order or other key matters."""
        by_picture: dict[str, set[str]] = {}
        for name in names:
            key = original_name(name) if is_copy(name) else name.replace("\\", "/")
            by_picture.setdefault(key, set()).add(name)
        ranked = sorted(by_picture, key=lambda picture: sha256_of_text(f"{self.seed}/{picture}"))
        num_val = min(max(1, round(self.fraction * len(ranked))), len(ranked) - 1)
        chosen = ranked[:num_val] if self.is_val else ranked[num_val:]
        return set().union(*(by_picture[picture] for picture in chosen))

"""Pictures by their names: the original before a tool's suffix, and the part of them that belongs to a split."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
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

    def choose(self, names: Iterable[str], units: Mapping[str, str] | None = None) -> set[str]:
        """Return the names of the part: copies of one picture stay together, and no order or other key matters.

        Args:
            names: of all pictures.
            units: the unit of a picture by its name. A unit stays together as well, and the part is the one whose size
                is nearest to its share of the pictures. Without it, the share is one of pictures, copies as one.
        """
        by_unit: dict[str, set[str]] = {}
        for name in names:
            unit = original_name(name) if is_copy(name) else name.replace("\\", "/")
            if units and units.get(name):
                # A picture without a unit is one of its own, and must not join a unit that is called as it is.
                unit = f"unit {units[name]}"
            by_unit.setdefault(unit, set()).add(name)
        ranked = sorted(by_unit, key=lambda unit: sha256_of_text(f"{self.seed}/{unit}"))
        num_val = round(self.fraction * len(ranked))
        if units:
            num_val = nearest_number([len(by_unit[unit]) for unit in ranked], self.fraction)
        num_val = min(max(1, num_val), len(ranked) - 1)
        chosen = ranked[:num_val] if self.is_val else ranked[num_val:]
        return set().union(*(by_unit[unit] for unit in chosen))


def nearest_number(sizes: Sequence[int], fraction: float) -> int:
    """Return how many units, in their order, come nearest to a fraction of all; the smaller number of two as near."""
    wanted = fraction * sum(sizes)
    distances = [abs(total - wanted) for total in accumulate(sizes, initial=0)]
    return distances.index(min(distances))

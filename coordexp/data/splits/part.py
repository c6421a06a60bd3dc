"""A split's part of pictures without an official split."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from coordexp.data.splits.originals import is_copy, original_name
from coordexp.files import sha256_of_text


@dataclass(frozen=True)
class Part:
    """A split's part of pictures without an official split.

    Attributes:
        is_val: whether this is the validation part; else the training part.
        fraction: share of the pictures for validation.
        seed: of the choice.
    """

    is_val: bool
    fraction: float
    seed: int

    def choose(self, names: Iterable[str], units: Mapping[str, str] | None = None) -> set[str]:
        """Return the names of the part.

        Copies of one picture stay together. The names and the seed decide alone: neither their order nor another key
        matters.

        Args:
            names: of all pictures.
            units: the unit of a picture by its name. A unit stays together as well, and as many units are chosen as
                come nearest to the share of the pictures. Without units, the share counts pictures, and all copies of
                one picture as one.
        """
        members: dict[str, set[str]] = {}
        for name in names:
            key = original_name(name) if is_copy(name) else name.replace("\\", "/")
            if units and units.get(name):
                # The prefix keeps a unit apart from a picture without a unit that has the same name.
                key = f"unit {units[name]}"
            members.setdefault(key, set()).add(name)
        ranked = sorted(members, key=lambda key: sha256_of_text(f"{self.seed}/{key}"))
        if units:
            num_val = nearest_number([len(members[key]) for key in ranked], self.fraction)
        else:
            num_val = round(self.fraction * len(ranked))
        # Neither part is empty.
        num_val = min(max(1, num_val), len(ranked) - 1)
        chosen = ranked[:num_val] if self.is_val else ranked[num_val:]
        return set().union(*(members[key] for key in chosen))


def nearest_number(sizes: Sequence[int], fraction: float) -> int:
    """Return how many of the first units come nearest to a fraction of all images; the smaller of two numbers as near.

    Args:
        sizes: images of each unit, in the order in which units are taken.
        fraction: of all images.
    """
    wanted_images = fraction * sum(sizes)
    distances = [abs(total - wanted_images) for total in accumulate(sizes, initial=0)]
    return distances.index(min(distances))

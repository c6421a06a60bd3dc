"""What every target has: a good input, its damage, and what reads it."""

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coordexp.errors import CoordExpError
from tests.fuzz.mutations import misplace, mutate_json_file

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Target:
    """One kind of input.

    Attributes:
        make: writes a good input into an empty folder.
        damage: changes a copy of it.
        read: does what the product does with it.
        share: of all inputs, relative to the others; what takes seconds has less.
    """

    make: Callable[[Path], None]
    damage: Callable[[Path, random.Random], None]
    read: Callable[[Path], object]
    share: float = 1.0


def damage_json(*names: str, lines: tuple[str, ...] = ()) -> Callable[[Path, random.Random], None]:
    """Return what damages one of these files of JSON; those of ``lines`` have a value a line."""

    def damage(folder: Path, rng: random.Random) -> None:
        name = rng.choice((*names, *lines))
        if rng.random() < 0.04:
            misplace(folder / name, rng)
        else:
            mutate_json_file(folder / name, rng, each_line=name in lines)

    return damage


def tolerate(read: Callable[[], object]) -> None:
    """Read one of several files; a refusal of one must not keep the next from being read."""
    with contextlib.suppress(CoordExpError, OSError):
        read()

"""The entries of COCO's sections, as msgspec decodes them."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Generic, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from coordexp.data.coco.ids import MAX_ID, Id
from coordexp.errors import plain, show

Section = Literal["categories", "images", "annotations"]
SECTIONS: tuple[Section, ...] = get_args(Section)
Number: TypeAlias = int | float
_Side: TypeAlias = Annotated[Number | None, Meta(description="a positive whole number of pixels")]
_Flag: TypeAlias = Annotated[bool | int | float, Meta(description="0 or 1")]
Box: TypeAlias = Annotated[
    tuple[Number, Number, Number, Number], Meta(description="four numbers [x, y, width, height]")
]


class Category(Struct, gc=False):
    """An entry of ``categories``."""

    id: Id
    name: Annotated[str, Meta(description="text")]
    supercategory: object = None

    def __post_init__(self) -> None:
        # It is printed in a table, a chart and a page.
        name = self.name.strip()
        if plain(name) != name:
            raise ValueError(f"name is {show(self.name)}, expected text without control characters")

    def extras(self) -> dict[str, str]:
        """Return fields that a manifest keeps."""
        return {}


class Image(Struct, gc=False):
    """An entry of ``images``. Name and size may be missing: a ground truth needs neither."""

    id: Id
    file_name: Annotated[str | None, Meta(description="the name of a file")] = None
    width: _Side = None
    height: _Side = None

    def __post_init__(self) -> None:
        for name, side in (("width", self.width), ("height", self.height)):
            if side == 0:  # as some write it who do not know
                self.width = self.height = None
            elif side is not None and (side != side // 1 or not 0 < side <= MAX_ID):
                raise ValueError(f"{name} is {show(side)}, expected a positive whole number of pixels")

    def name_in(self, folder: Path) -> object:
        del folder
        return self.file_name

    def extras(self) -> dict[str, list[int]]:
        """Return fields that a JSONL record keeps."""
        return {}


class Annotation(Struct, gc=False):
    """An entry of ``annotations``. Its box may have no extent; the ground truth decides what ``area`` must be."""

    image_id: Id
    category_id: Id
    bbox: Box
    id: Id | None = None
    area: object = None
    iscrowd: _Flag = 0
    ignore: _Flag = 0
    was_swapped: bool = False  # no field of a file: whether its box had a negative width or height

    def __post_init__(self) -> None:
        if self.iscrowd not in (0, 1) or self.ignore not in (0, 1):
            name, value = ("ignore", self.ignore) if self.iscrowd in (0, 1) else ("iscrowd", self.iscrowd)
            raise ValueError(f"{name} is {show(value)}, expected 0 or 1")
        try:
            is_finite = math.isfinite(sum(map(float, self.bbox)))
        except OverflowError:
            is_finite = False
        if not is_finite:
            raise ValueError(f"bbox {show(list(self.bbox))} is not finite")


AnyEntry = TypeVar("AnyEntry", bound=Struct)


class BadEntry(NamedTuple):
    """An entry that cannot be used, and the ids it has, where they are ids."""

    place: int  # its index in the section
    shown_id: str  # its id as it may stand in a message, or an empty text
    reason: str
    key: int | None = None
    image_id: int | None = None
    category_id: int | None = None


@dataclass(frozen=True)
class Entries(Generic[AnyEntry]):
    """The entries of a section: the typed ones in file order with their places in it, and the others."""

    good: list[AnyEntry]
    bad: list[BadEntry]
    places: NDArray[np.int64]
    repairs: Counter[str] = field(default_factory=Counter)  # entries read as what they mean, by what was wrong

    @property
    def total(self) -> int:
        return len(self.good) + len(self.bad)

    def only(self, keep: Callable[[AnyEntry], bool], *, bad: Iterable[BadEntry]) -> "Entries[AnyEntry]":
        kept = np.flatnonzero([keep(entry) for entry in self.good])
        return Entries([self.good[at] for at in kept.tolist()], [*bad], self.places[kept], self.repairs)

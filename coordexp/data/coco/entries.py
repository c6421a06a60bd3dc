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
# The descriptions below end the messages on wrong fields: "width is 'x', expected a positive whole number of pixels".
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
        # The name is printed in tables, charts and pages, which control characters would break.
        name = self.name.strip()
        if plain(name) != name:
            raise ValueError(f"name is {show(self.name)}, expected text without control characters")

    def extras(self) -> dict[str, str]:
        """Return the fields that a manifest keeps."""
        return {}


class Image(Struct, gc=False):
    """An entry of ``images``. Name and size may be missing: a ground truth needs neither."""

    id: Id
    file_name: Annotated[str | None, Meta(description="the name of a file")] = None
    width: _Side = None
    height: _Side = None

    def __post_init__(self) -> None:
        for name, side in (("width", self.width), ("height", self.height)):
            if side == 0:
                # Tools that do not know the size write 0.
                self.width = self.height = None
            elif side is not None and (side != side // 1 or not 0 < side <= MAX_ID):
                raise ValueError(f"{name} is {show(side)}, expected a positive whole number of pixels")

    def name_in(self, folder: Path) -> object:
        """Return the name of the picture; formats that name it otherwise need to know the folder of the pictures."""
        del folder
        return self.file_name

    def extras(self) -> dict[str, list[int]]:
        """Return the fields that a JSONL record keeps."""
        return {}


class Annotation(Struct, gc=False):
    """An entry of ``annotations``. Its box may have no extent; the ground truth decides what ``area`` must be.

    ``was_swapped`` is no field of a file. The reader sets it if the box had a negative width or height.
    """

    image_id: Id
    category_id: Id
    bbox: Box
    id: Id | None = None
    area: object = None
    iscrowd: _Flag = 0
    ignore: _Flag = 0
    was_swapped: bool = False

    def __post_init__(self) -> None:
        if self.iscrowd not in (0, 1):
            raise ValueError(f"iscrowd is {show(self.iscrowd)}, expected 0 or 1")
        if self.ignore not in (0, 1):
            raise ValueError(f"ignore is {show(self.ignore)}, expected 0 or 1")
        try:
            is_finite = math.isfinite(sum(map(float, self.bbox)))
        except OverflowError:
            is_finite = False
        if not is_finite:
            raise ValueError(f"bbox {show(list(self.bbox))} is not finite")


AnyEntry = TypeVar("AnyEntry", bound=Struct)


class BadEntry(NamedTuple):
    """An entry that cannot be used, and those of its ids that are ids.

    Attributes:
        place: index of the entry in its section.
        shown_id: the entry's id as a message shows it; "" without one.
        reason: why the entry cannot be used.
        key: the entry's id.
        image_id: id of the image that it names.
        category_id: id of the category that it names.
    """

    place: int
    shown_id: str
    reason: str
    key: int | None = None
    image_id: int | None = None
    category_id: int | None = None


@dataclass(frozen=True)
class Entries(Generic[AnyEntry]):
    """The entries of a section.

    Attributes:
        good: the typed entries, in file order.
        bad: the entries that cannot be used.
        places: index in the section of each good entry.
        repairs: how many entries were read as what they mean, by what was wrong with them.
    """

    good: list[AnyEntry]
    bad: list[BadEntry]
    places: NDArray[np.int64]
    repairs: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return len(self.good) + len(self.bad)

    def only(self, keep: Callable[[AnyEntry], bool], *, bad: Iterable[BadEntry]) -> "Entries[AnyEntry]":
        """Return the good entries for which ``keep`` is true, with the ``bad`` entries that belong to them."""
        indices = np.flatnonzero([keep(entry) for entry in self.good])
        return Entries([self.good[index] for index in indices.tolist()], [*bad], self.places[indices], self.repairs)

"""Samples, whatever file format they came from: an image with its objects; and the records that give none.

Shapes: M objects of one image; I images and N objects of a split.
"""

import functools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from coordexp.coord_tokens.bins import NUM_BINS, quantise_boxes
from coordexp.errors import DataError, counted
from coordexp.files import LFS_POINTER

Ordering = Literal["top_left", "left_top", "random", "size", "centre"]
Split = Literal["train", "val"]
SPLITS: tuple[Split, ...] = ("train", "val")
SIZE_EDGES_PX2 = (32.0**2, 96.0**2)
"""Areas between COCO's small, medium and large objects."""
_NUM_REJECTED_SHOWN = 5


@functools.lru_cache(maxsize=65_536)
def fold(text: str) -> str:
    """Return the form that two spellings of one name share: NFKC, casefold, single spaces."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(folded.split())


@dataclass(frozen=True, slots=True, eq=False)
class Objects:
    """Objects of an image, in the order in which a reader found them.

    Attributes:
        descs: free-form description of each, not empty.
        boxes_norm_xyxy: ``[M, 4]`` float64, corners as fractions of image width and height, inside [0, 1].
    """

    descs: tuple[str, ...]
    boxes_norm_xyxy: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.descs)

    def take(self, indices: NDArray[np.int64]) -> "Objects":
        return Objects(tuple(self.descs[i] for i in indices.tolist()), self.boxes_norm_xyxy[indices])

    def ordered(self, ordering: Ordering = "top_left", *, seed: Sequence[int] = (0,)) -> "Objects":
        """Order them by y1, then x1, then as they are; or ``random``: a shuffle that depends on ``seed`` alone.

        ``left_top`` is by x1, then y1. ``size`` begins with the largest box, ``centre`` with the one whose centre is
        nearest to that of the image; equal ones go by y1 and x1. All of it is in bins, what a sequence holds of them:
        data in numbers and the same data in bins have one order.
        In pictures of less than 1,000 pixels a side, boxes of whole pixels have the order of :meth:`by_corner`.
        """
        if ordering == "random":
            return self.take(np.random.default_rng(list(seed)).permutation(len(self)))
        x1, y1, x2, y2 = quantise_boxes(self.boxes_norm_xyxy).T
        # The last key of each is the primary one, as lexsort has it.
        sort_keys = {
            "top_left": (x1, y1),
            "left_top": (y1, x1),
            "size": (x1, y1, -(x2 - x1) * (y2 - y1)),
            "centre": (x1, y1, (x1 + x2 - NUM_BINS) ** 2 + (y1 + y2 - NUM_BINS) ** 2),
        }
        return self.take(np.lexsort(sort_keys[ordering]))

    def by_corner(self, ordering: Literal["top_left", "left_top"] = "top_left") -> "Objects":
        """Order them by their corner, unrounded, then as they are: for a file whose reader may not round."""
        x1, y1 = self.boxes_norm_xyxy[:, 0], self.boxes_norm_xyxy[:, 1]
        sort_keys = {"top_left": (x1, y1), "left_top": (y1, x1)}  # the last key is the primary one
        return self.take(np.lexsort(sort_keys[ordering]))

    def largest(self, num: int) -> "Objects":
        """Keep the ``num`` largest boxes in bins (earlier ones among equals), in their given order."""
        if len(self) <= num:
            return self
        x1, y1, x2, y2 = quantise_boxes(self.boxes_norm_xyxy).T
        return self.take(np.sort(np.argsort(-((x2 - x1) * (y2 - y1)), kind="stable")[:num]))


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """An image file, its size in pixels, its id in the annotation file, and its targets: no crowd is among them."""

    image: Path
    width: int
    height: int
    image_id: int
    objects: Objects


@dataclass(frozen=True, eq=False)
class Samples(Sequence[Sample]):
    """Many samples as arrays; each access makes a :class:`Sample`.

    Loader processes are forked. They share the memory of their parent until one of them writes to it, and
    in Python reading an object writes its reference count: of a list of samples each process would come to
    own a copy over an epoch. Of arrays nothing is written but one count each: measured on 118,000 samples, a
    process owns 19 MiB after an epoch, and 270 MiB of a list.

    Attributes:
        names: ``I`` file names in ``folder``.
        sizes_px: ``[I, 2]`` width and height.
        image_ids: ``[I]``.
        first: ``[I + 1]``; the objects of image ``i`` are ``first[i] .. first[i + 1]``.
        texts: the different descriptions.
        text_index: ``[N]``, which of them each object has.
        boxes_norm_xyxy: ``[N, 4]``.
    """

    folder: Path
    names: list[str]
    sizes_px: NDArray[np.int64]
    image_ids: NDArray[np.int64]
    first: NDArray[np.int64]
    texts: tuple[str, ...]
    text_index: NDArray[np.int64]
    boxes_norm_xyxy: NDArray[np.float64]

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> "Samples":
        samples = list(samples)
        descs = [desc for sample in samples for desc in sample.objects.descs]
        place = {text: at for at, text in enumerate(dict.fromkeys(descs))}
        boxes = [sample.objects.boxes_norm_xyxy for sample in samples]
        return cls(
            folder=Path(),
            names=[str(sample.image) for sample in samples],
            sizes_px=np.array([(sample.width, sample.height) for sample in samples], np.int64).reshape(-1, 2),
            image_ids=np.array([sample.image_id for sample in samples], np.int64),
            first=np.cumsum([0, *(len(sample.objects) for sample in samples)]),
            texts=tuple(place),
            text_index=np.array([place[desc] for desc in descs], np.int64),
            boxes_norm_xyxy=np.concatenate([np.zeros((0, 4)), *boxes]),
        )

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...

    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        at = index % len(self)
        rows = slice(int(self.first[at]), int(self.first[at + 1]))
        width, height = self.sizes_px[at].tolist()
        descs = tuple(self.texts[i] for i in self.text_index[rows].tolist())
        return Sample(
            image=self.folder / self.names[at],
            width=width,
            height=height,
            image_id=int(self.image_ids[at]),
            objects=Objects(descs, self.boxes_norm_xyxy[rows]),
        )


@dataclass(frozen=True)
class Generated:
    """What a split will hold that coordexp generates: images, the sizes they have, and objects of these names."""

    num_images: int
    sizes_px: frozenset[tuple[int, int]]
    max_objects: int
    descs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """One record that was left out, and why; ``where`` is such as ``a.json: annotations[17] (id 23)``."""

    where: str
    reason: str


@dataclass(frozen=True)
class SplitData:
    """What the annotation file of a split holds.

    Attributes:
        samples: one for each usable image of the file, in its order, also for images without objects.
        counts: numbers of records of the file and of ``rejected_...`` ones by kind; ``boxes`` that became targets;
            ``crowd`` and ``ignored`` boxes, which are no targets; ``clipped`` targets, cut at the image border;
            ``no_extent`` boxes, which are no targets, and ``swapped`` ones, put in order;
            ``thin`` targets, widened to one bin when they are quantised; ``images_without_objects``;
            ``not_chosen`` and ``held_out``, images that a part of a split leaves out, whose boxes and images without
            objects are then those of the part; ``of_rejected_images``, annotations lost with their image;
            ``repeated_file_names``, images whose file an earlier image names too. A format counts only what it knows.
        categories: name of each category id; empty where the format has no categories.
        warnings: what looks wrong with the file as a whole, and stops nothing.
        notes: what was read as it was meant though it was written otherwise, a sentence with a number each.
    """

    samples: Sequence[Sample]
    rejected: tuple[Rejected, ...]
    counts: dict[str, int]
    categories: dict[int, str]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Rejections:
    """The bad records of the file ``source``, by kind (image, annotation, line, ...)."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._found: list[tuple[str, str, str]] = []

    def add(self, kind: str, entry: str, reason: str) -> None:
        self._found.append((kind, entry, reason))

    def count(self, kind: str) -> int:
        return sum(1 for found, _, _ in self._found if found == kind)

    def accept(self, totals: Mapping[str, int], *, max_bad_fraction: float, cause: str = "") -> tuple[Rejected, ...]:
        """Return the bad records, unless they are too many of ``totals``, the good and the bad ones of each kind.

        The fraction is taken for each kind on its own: 100 missing images of 100 are all of them, however many
        annotations the file has. ``cause`` is what they have in common, with the cure, where that is known.

        Raises:
            DataError: if there are more; it shows the first few, or the cause and the first one.
        """
        bad = Counter(kind for kind, _, _ in self._found)
        over = [kind for kind in bad if bad[kind] > max_bad_fraction * totals[kind]]
        if not over:
            return self.all()
        counts = ", ".join(f"{bad[kind]} of {totals[kind]} {kind}" for kind in over)
        pointers = [reason for kind, _, reason in self._found if kind in over and LFS_POINTER in reason]
        if pointers:  # of a whole clone, mostly: one cure for all of them
            raise DataError(f"{pointers[0]}; {counted(len(pointers), 'file')} of {self._source} are such pointers")
        found = [f"{entry}: {reason}" for kind, entry, reason in self._found if kind in over]
        why = f"{cause}; " if cause else ""
        num_shown = 1 if cause else _NUM_REJECTED_SHOWN
        shown = "; ".join(found[:num_shown])
        more = f"; and {len(found) - num_shown} more" if len(found) > num_shown else ""
        raise DataError(
            f"{self._source}: {why}{counts} cannot be used (data.max_bad_fraction accepts {max_bad_fraction:g}): "
            f"{shown}{more}. Correct them, or raise data.max_bad_fraction (prepare, evaluate: --max-bad-fraction) to "
            "leave them out"
        )

    def all(self) -> tuple[Rejected, ...]:
        return tuple(Rejected(where=f"{self._source}: {entry}", reason=reason) for _, entry, reason in self._found)

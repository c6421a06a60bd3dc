"""What the annotation file of a split holds: samples, counts, and the records that were left out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordexp.data.sample import Sample
from coordexp.errors import DataError, counted
from coordexp.files import LFS_POINTER

_NUM_REJECTED_SHOWN = 5


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

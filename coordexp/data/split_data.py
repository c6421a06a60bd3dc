"""What the annotation file of a split holds: samples, counts, and the records that were left out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from coordexp.data.sample import Sample
from coordexp.errors import DataError, counted
from coordexp.files import LFS_POINTER

_NUM_REJECTED_SHOWN = 5


@dataclass(frozen=True)
class Generated:
    """What a generated split will hold: the number of images, their possible sizes, and the names of its objects."""

    num_images: int
    sizes_px: frozenset[tuple[int, int]]
    max_objects: int
    descs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """One record that was left out, and why; ``where`` reads like ``a.json: annotations[17] (id 23)``."""

    where: str
    reason: str


@dataclass(frozen=True)
class SplitData:
    """What the annotation file of a split holds.

    Attributes:
        samples: one sample for each usable image of the file, in the file's order; images without objects included.
        counts: numbers of records. A format counts only what it knows:

            - its own kinds of records, and ``rejected_...`` ones of each kind;
            - ``boxes`` that became targets; ``crowd`` and ``ignored`` boxes, which are no targets;
            - ``clipped`` targets, cut at the image border; ``swapped`` boxes, whose corners were put in order;
              ``no_extent`` boxes, which are no targets;
            - ``thin`` targets, widened to one bin when they are quantised;
            - ``images_without_objects``;
            - ``not_chosen`` and ``held_out``, images that a part of a split leaves out (``boxes`` and
              ``images_without_objects`` then count the part);
            - ``of_rejected_images``, annotations lost with their image;
            - ``repeated_file_names``, images whose file an earlier image names too.
        categories: name of each category id; empty if the format has no categories.
        warnings: what looks wrong with the file as a whole, and stops nothing.
        notes: what was repaired because its meaning is clear, a sentence with a number each.
    """

    samples: Sequence[Sample]
    rejected: tuple[Rejected, ...]
    counts: dict[str, int]
    categories: dict[int, str]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class _BadRecord(NamedTuple):
    kind: str
    entry: str
    reason: str


class Rejections:
    """The bad records of the file ``source``, by kind (images, annotations, records, ...)."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._bad_records: list[_BadRecord] = []

    def add(self, kind: str, entry: str, reason: str) -> None:
        self._bad_records.append(_BadRecord(kind, entry, reason))

    def count(self, kind: str) -> int:
        return sum(1 for record in self._bad_records if record.kind == kind)

    def accept(self, totals: Mapping[str, int], *, max_bad_fraction: float, cause: str = "") -> tuple[Rejected, ...]:
        """Return the bad records, unless there are too many of a kind.

        The fraction is taken for each kind on its own: 100 missing images of 100 are all of them, however many
        annotations the file has.

        Args:
            totals: number of records of each kind, good and bad.
            max_bad_fraction: largest accepted fraction of bad records of a kind.
            cause: what the bad records have in common, with the cure, if that is known.

        Raises:
            DataError: if there are too many; it shows the first few, or the cause and the first one.
        """
        num_bad = Counter(record.kind for record in self._bad_records)
        kinds = [kind for kind in num_bad if num_bad[kind] > max_bad_fraction * totals[kind]]
        if not kinds:
            return self.all()
        refused = [record for record in self._bad_records if record.kind in kinds]
        self._refuse_lfs_pointers(refused)
        counts = ", ".join(f"{num_bad[kind]} of {totals[kind]} {kind}" for kind in kinds)
        why = f"{cause}; " if cause else ""
        num_shown = 1 if cause else _NUM_REJECTED_SHOWN
        shown = "; ".join(f"{record.entry}: {record.reason}" for record in refused[:num_shown])
        more = f"; and {len(refused) - num_shown} more" if len(refused) > num_shown else ""
        raise DataError(
            f"{self._source}: {why}{counts} cannot be used (data.max_bad_fraction accepts {max_bad_fraction:g}): "
            f"{shown}{more}. Correct them, or raise data.max_bad_fraction (prepare, evaluate: --max-bad-fraction) to "
            "leave them out"
        )

    def all(self) -> tuple[Rejected, ...]:
        return tuple(
            Rejected(where=f"{self._source}: {record.entry}", reason=record.reason) for record in self._bad_records
        )

    def _refuse_lfs_pointers(self, refused: Sequence[_BadRecord]) -> None:
        """Raise one error for all Git LFS pointers: usually a whole clone lacks its files, and one cure fetches all."""
        reasons = [record.reason for record in refused if LFS_POINTER in record.reason]
        if reasons:
            raise DataError(f"{reasons[0]}; {counted(len(reasons), 'file')} of {self._source} are such pointers")

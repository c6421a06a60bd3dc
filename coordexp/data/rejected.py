"""Records a reader cannot use: collect them, and stop when there are too many."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coordexp.errors import DataError

_NUM_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Rejected:
    """One record that was left out.

    Attributes:
        where: file and entry, such as ``a.json: annotations[17] (id 23)``.
        reason: what is wrong with it.
    """

    where: str
    reason: str


class Rejections:
    """The bad records of the file ``source``, by kind (image, annotation, line, ...)."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._found: list[tuple[str, str, str]] = []

    def add(self, kind: str, entry: str, reason: str) -> None:
        """Add a bad record of ``kind``."""
        self._found.append((kind, entry, reason))

    def count(self, kind: str) -> int:
        """Return how many records of ``kind`` are bad."""
        return sum(1 for found, _, _ in self._found if found == kind)

    def accept(self, totals: Mapping[str, int], *, max_bad_fraction: float) -> tuple[Rejected, ...]:
        """Return the bad records, unless they are too many.

        The fraction is taken for each kind on its own: 100 missing images of 100 are all of them,
        however many annotations the file has.

        Args:
            totals: number of records of each kind, good and bad.
            max_bad_fraction: largest accepted fraction of bad records; 0 accepts none.

        Raises:
            DataError: if there are more; it shows the first few.
        """
        bad = Counter(kind for kind, _, _ in self._found)
        over = [kind for kind in bad if bad[kind] > max_bad_fraction * totals[kind]]
        if over:
            raise DataError(self._message(over, bad, totals, max_bad_fraction))
        return self.all()

    def all(self) -> tuple[Rejected, ...]:
        """Return the bad records, in the order in which they were added."""
        return tuple(Rejected(where=f"{self._source}: {entry}", reason=reason) for _, entry, reason in self._found)

    def _message(
        self, over: list[str], bad: Mapping[str, int], totals: Mapping[str, int], max_bad_fraction: float
    ) -> str:
        counts = ", ".join(f"{bad[kind]} of {totals[kind]} {kind}" for kind in over)
        found = [f"{entry}: {reason}" for kind, entry, reason in self._found if kind in over]
        shown = "; ".join(found[:_NUM_SHOWN])
        more = f"; and {len(found) - _NUM_SHOWN} more" if len(found) > _NUM_SHOWN else ""
        return (
            f"{self._source}: {counts} cannot be used (data.max_bad_fraction accepts {max_bad_fraction:g}): "
            f"{shown}{more}. Correct them, or raise data.max_bad_fraction (prepare: --max-bad-fraction) to leave them "
            "out"
        )

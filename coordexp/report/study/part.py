"""A part of a report: one function that computes it, one that says how it is shown, one line where it is listed.

The list is ``PARTS`` in ``coordexp/report/parts/listed.py``. Every format of a report goes through it: the page, text,
LaTeX, plots, JSON and CSV know no part by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from coordexp.report.figures import Chart, Look
from coordexp.report.study.inputs import Outcome, StudyInputs, attempt
from coordexp.report.text.tables import Table

if TYPE_CHECKING:
    from coordexp.report.study.study import Study

T = TypeVar("T")
CsvLine = Mapping[str, str | int | float | None]
"""Column of the CSV -> cell; columns without one are empty."""


@dataclass(frozen=True)
class Rendered:
    """What a part shows, in every format."""

    title: str  # above its sentences in text
    sentences: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    looks: Mapping[str, Look] = field(default_factory=dict[str, Look])  # the legend of the charts, where they are files
    tables: tuple[Table, ...] = ()
    on_screen: str = ""  # what the one screen of a terminal says of it
    record: object = None  # as JSON
    csv_lines: tuple[CsvLine, ...] = ()


class MeasuredPart(Protocol):
    """A part of one study with its value."""

    @property
    def name(self) -> str:
        """The part's name: its key in JSON, the stem of its plots, its place on the page."""
        ...

    def rendered(self, study: "Study") -> Rendered:
        """Return what the part shows; pairs of groups stand as in the study's comparison."""
        ...


class ListedPart(Protocol):
    """A part of the list, whatever its value is."""

    def measured(self, inputs: StudyInputs) -> Outcome[MeasuredPart | None]:
        """Compute the part; a file that is wrong costs the part and is said, not the report."""
        ...


@dataclass(frozen=True)
class Part(Generic[T]):
    """A part that a report may have."""

    name: str
    compute: Callable[[StudyInputs], Outcome[T | None]]  # None: this study has nothing to show of it
    render: "Callable[[T, Study], Rendered]"

    def measured(self, inputs: StudyInputs) -> Outcome[MeasuredPart | None]:
        outcome = attempt(self.name, lambda: self.compute(inputs))
        measured: MeasuredPart | None = None if outcome.value is None else _WithValue(self, outcome.value)
        return Outcome(measured, outcome.missing)


@dataclass(frozen=True)
class _WithValue(Generic[T]):
    part: Part[T]
    value: T

    @property
    def name(self) -> str:
        return self.part.name

    def rendered(self, study: "Study") -> Rendered:
        return self.part.render(self.value, study)

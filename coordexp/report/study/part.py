"""A part of a report: one function that computes it, one that says how it is shown, one line where it is listed.

The list is ``PARTS`` in ``coordexp/report/parts/listed.py``. Every format of a report goes through it: the page, text,
LaTeX, plots, JSON and CSV know no part by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from coordexp.report.rendered import Rendered
from coordexp.report.study.inputs import Outcome, StudyInputs, attempt
from coordexp.report.study.study import MeasuredPart, Study

T = TypeVar("T")


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
    render: Callable[[T, Study], Rendered]

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

    def rendered(self, study: Study) -> Rendered:
        return self.part.render(self.value, study)

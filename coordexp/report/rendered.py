"""What a part of a report shows, in every format."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordexp.report.figures import Chart, Look
from coordexp.report.table import Table

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

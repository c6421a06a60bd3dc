"""Every part of a report that is a file of this folder, in the order in which reports show them."""

from collections.abc import Sequence

from coordexp.report.parts.slices import SLICES
from coordexp.report.parts.tuning import TUNING
from coordexp.report.study.part import ListedPart

PARTS: Sequence[ListedPart] = (TUNING, SLICES)

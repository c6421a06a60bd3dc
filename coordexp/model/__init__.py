"""Models: load, adapt, merge; and the small base that ships with the package."""

from coordexp.model.load import LoadedModel, load
from coordexp.model.merge.merge import MergeReport, merge

__all__ = ["LoadedModel", "MergeReport", "load", "merge"]

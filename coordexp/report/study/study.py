"""A study: the one object that holds every number of a report."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from coordexp.data.units import UnitNames
from coordexp.report.records.data import ExperimentData
from coordexp.report.rendered import Rendered
from coordexp.report.study.about import About, Fairness
from coordexp.report.study.boxes import Breakdown
from coordexp.report.study.examples import EdgeDistributions, GalleryImage
from coordexp.statistics.protocols import Protocols
from coordexp.statistics.readings import ReadingName
from coordexp.statistics.results import Comparison, Convergence, CurvePair, Decomposition, PairParts, PairResult
from coordexp.statistics.slices import SlicePair

Pair = TypeVar("Pair", PairResult, PairParts, CurvePair, SlicePair)


class MeasuredPart(Protocol):
    """A part of one study with its value."""

    @property
    def name(self) -> str:
        """The part's name: its key in JSON, the stem of its plots, its place on the page."""
        ...

    def rendered(self, study: "Study") -> Rendered:
        """Return what the part shows; pairs of groups stand as in the study's comparison."""
        ...


@dataclass(frozen=True)
class Study:
    """An experiment and what was found out about it; every part but the runs may be absent."""

    data: ExperimentData
    verdict: str = ""  # what the comparison says, in a sentence
    fairness: Fairness | None = None  # what differs between the runs
    comparison: Comparison | None = None  # groups and pairs with intervals, each group by its own reading
    readings: Mapping[ReadingName, Comparison] = field(default_factory=dict[ReadingName, Comparison])  # own first
    convergence: Convergence | None = None  # how fast groups get better
    decomposition: Decomposition | None = None  # what groups lose AP50 to, each by its own reading
    breakdowns: Mapping[str, Breakdown] = field(default_factory=dict[str, Breakdown])  # parts of AP, by group
    gallery: tuple[GalleryImage, ...] = ()
    coord_curves: tuple[EdgeDistributions, ...] = ()  # coord distributions of chosen boxes
    num_images: int = 0  # of the split the gallery was chosen from
    missing: tuple[str, ...] = ()  # what is not here and why, a sentence each
    about: About | None = None  # what the groups are and how they were made
    cautions: tuple[str, ...] = ()  # what may decide the comparison beside the detectors; the verdict begins so
    units: UnitNames | None = None  # what is drawn and swapped in the place of images
    protocols: Protocols | None = None  # the same detections as published tables measure them
    parts: tuple[MeasuredPart, ...] = ()  # the listed ones (``coordexp/report/parts``) that have something to show


def better_first(study: Study) -> Study:
    """Return the study in reading order: the better group of each pair first, and the best group's pairs first.

    Which group is better is decided once, by the pair's difference under each group's own reading: a pair has the
    same name in every table, and a negative difference there says that it comes out the other way round. Files for
    programs keep the experiment's order.
    """
    if study.comparison is None:
        return study
    by_ap = {group: -estimate.value for group, estimate in study.comparison.value.items()}
    pairs = [pair if pair.difference.value >= 0 else pair.reversed() for pair in study.comparison.pairs]
    pairs.sort(key=lambda pair: (by_ap[pair.a], by_ap[pair.b]))
    ordered = replace(study, comparison=replace(study.comparison, pairs=tuple(pairs)))

    readings = {
        name: replace(comparison, pairs=in_order_of(ordered, comparison.pairs))
        for name, comparison in study.readings.items()
    }
    decomposition, curves = study.decomposition, study.convergence
    if decomposition is not None:
        decomposition = replace(decomposition, pairs=in_order_of(ordered, decomposition.pairs))
    if curves is not None:
        curves = replace(curves, pairs=in_order_of(ordered, curves.pairs))
    return replace(ordered, readings=readings, decomposition=decomposition, convergence=curves)


def rendered_parts(study: Study) -> list[tuple[MeasuredPart, Rendered]]:
    """Return the listed parts that the study has, each with what it shows."""
    return [(listed_part, listed_part.rendered(study)) for listed_part in study.parts]


def in_order_of(study: Study, pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
    """Return pairs of groups in the order and direction of the study's comparison; one that it lacks is left out.

    Without a comparison they are returned as they are.
    """
    if study.comparison is None:
        return pairs
    pair_by_couple = {(pair.b, pair.a): pair.reversed() for pair in pairs} | {(pair.a, pair.b): pair for pair in pairs}
    couples = [(pair.a, pair.b) for pair in study.comparison.pairs]
    return tuple(pair_by_couple[couple] for couple in couples if couple in pair_by_couple)

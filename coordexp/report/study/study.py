"""Everything a report shows, as one frozen object: runs, statistics on their detections, pictures, what is missing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordexp.report.study.boxes import Breakdown
from coordexp.report.study.data import ExperimentData
from coordexp.report.study.distributions import EdgeDistributions
from coordexp.report.study.fairness import Fairness
from coordexp.report.study.gallery import GalleryImage
from coordexp.statistics.results import Comparison, Convergence


@dataclass(frozen=True)
class Study:
    """An experiment and what was found out about it; every part but the runs may be absent.

    Attributes:
        data: the runs.
        verdict: what the comparison says, in a sentence; "" if there is none.
        fairness: what differs between the runs.
        comparison: groups and pairs with intervals.
        convergence: how fast groups get better.
        breakdowns: histograms, calibration and AP by category, size and crowding, by group.
        gallery: pictures with boxes.
        coord_curves: coord distributions of chosen boxes.
        num_images: images of the split the gallery was chosen from.
        missing: what is not here and why, a sentence each.
    """

    data: ExperimentData
    verdict: str = ""
    fairness: Fairness | None = None
    comparison: Comparison | None = None
    convergence: Convergence | None = None
    breakdowns: Mapping[str, Breakdown] = field(default_factory=dict[str, Breakdown])
    gallery: tuple[GalleryImage, ...] = ()
    coord_curves: tuple[EdgeDistributions, ...] = ()
    num_images: int = 0
    missing: tuple[str, ...] = ()

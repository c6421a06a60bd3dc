"""Where the difference comes from: the measures of a decomposition with paired bootstrap intervals over images.

Legend of shapes: ``N`` images, ``R`` resamples, ``M`` measures.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from coordexp.data.units import UnitNames, Units
from coordexp.detection.decomposition import MEASURES, Decomposed
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.precision.average_precision import unit_weights
from coordexp.detection.precision.fair_order import in_fair_order
from coordexp.errors import ComparisonError
from coordexp.statistics.bootstrap import FilePath, check_groups, numbered_units
from coordexp.statistics.intervals import FEWEST_IMAGES, Drawn, Total, difference_total, group_total
from coordexp.statistics.resampling import OnProgress, blocks_of, image_weights
from coordexp.statistics.results import Decomposition, Estimate, PairParts


def decompose(
    annotations_json: FilePath,
    detections: Mapping[str, Mapping[int, FilePath]],
    *,
    families: Mapping[str, str] | None = None,
    resamples: int = 500,
    seed: int = 0,
    units: UnitNames | None = None,
    on_progress: OnProgress | None = None,
) -> Decomposition:
    """Measure what groups lose AP50 to, and how they differ in it, on the same resamples as their AP.

    Arguments and errors are those of :func:`coordexp.statistics.comparison.compare_readings`, for one reading. With the
    same ``seed``, the resamples are the first ones of the comparison of AP.
    """
    check_groups(detections)
    truth = read_ground_truth(Path(annotations_json))
    if truth.is_crowd.all():
        raise ComparisonError(f"{truth.path}: AP50 is undefined, because no object there counts for it")
    paths = {(group, number): seeds[number] for group, seeds in detections.items() for number in sorted(seeds)}
    files = {
        run: Decomposed(truth, in_fair_order(truth, read_detections(Path(path), truth))) for run, path in paths.items()
    }
    draws = {run: np.full((resamples, len(MEASURES)), np.nan) for run in files}
    drawn_units = numbered_units(annotations_json, units, None) or Units.single(len(truth.sizes_px))
    if drawn_units.num_units >= FEWEST_IMAGES:
        weights = drawn_units.spread(image_weights(drawn_units.num_units, resamples=resamples, seed=seed))
        for block in blocks_of(resamples, on_progress):
            for run, file in files.items():
                draws[run][block] = file.measure(weights[block])
    # Group -> for each measure: training seed -> its value with its draws.
    num_units = drawn_units.num_units if drawn_units.has_several else None
    drawn: dict[str, list[dict[int, Drawn]]] = {group: [{} for _ in MEASURES] for group in detections}
    for (group, number), file in files.items():
        (values,) = file.measure(unit_weights(file.num_images)[None])
        for at, (value, own) in enumerate(zip(values.tolist(), draws[group, number].T, strict=True)):
            drawn[group][at][number] = Drawn(value, own, num_units)

    def differ(a: str, b: str) -> PairParts:
        both, paired = zip(drawn[a], drawn[b], strict=True), (families or {}).get(a) == (families or {}).get(b)
        return PairParts(a, b, _estimates([difference_total(*two, paired=paired) for two in both], of_two=True))

    return Decomposition(
        value={group: _estimates([group_total(one) for one in own], of_two=False) for group, own in drawn.items()},
        pairs=tuple(differ(a, b) for a, b in combinations(drawn, 2)),
        resamples=resamples,
        seed=seed,
    )


def _estimates(totals: Sequence[Total], *, of_two: bool) -> dict[str, Estimate]:
    """Return each measure with its interval, as far as it is defined in all runs."""
    found: dict[str, Estimate] = {}
    for measure, total in zip(MEASURES, totals, strict=True):
        low, high = measure.ends
        if not np.isnan(total.value):
            ends = (low - high, high - low) if of_two else (low, high)
            found[measure.name] = total.estimate.within(*ends)
    return found

"""Where the difference comes from: what groups lose AP50 to, with paired bootstrap intervals over images.

Legend of shapes: ``N`` images, ``R`` resamples, ``M`` measures.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from coordexp.data.units import UnitNames, Units
from coordexp.detection.decomposition import MEASURES, Decomposed
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import GroundTruth, read_ground_truth
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

    With the same ``seed``, the resamples are the first ones of the comparison of AP.

    Args:
        annotations_json: ground truth in COCO format.
        detections: group -> training seed -> detections in COCO's results format.
        families: as of :func:`coordexp.statistics.comparison.compare_readings`.
        resamples: number of resamples.
        seed: of the resamples.
        units: which images are not independent; units are then drawn in the place of images.
        on_progress: called with the number of resamples done and their total.

    Raises:
        DataError: if a file or an entry is malformed.
        ComparisonError: if there is nothing to compare, or no object counts for AP50.
    """
    check_groups(detections)
    truth = read_ground_truth(Path(annotations_json))
    if truth.is_crowd.all():
        raise ComparisonError(f"{truth.path}: AP50 is undefined, because no object there counts for it")
    decomposed = _decompose_files(truth, detections)
    draws = {run: np.full((resamples, len(MEASURES)), np.nan) for run in decomposed}
    drawn_units = numbered_units(annotations_json, units, None) or Units.single(len(truth.sizes_px))
    if drawn_units.num_units >= FEWEST_IMAGES:
        weights = drawn_units.spread(image_weights(drawn_units.num_units, resamples=resamples, seed=seed))
        for block in blocks_of(resamples, on_progress):
            for run, decomposed_run in decomposed.items():
                draws[run][block] = decomposed_run.measure(weights[block])

    # Group -> for each measure: training seed -> its value with its draws.
    num_units = drawn_units.num_units if drawn_units.has_several else None
    drawn: dict[str, list[dict[int, Drawn]]] = {group: [{} for _ in MEASURES] for group in detections}
    for (group, number), decomposed_run in decomposed.items():
        (values_M,) = decomposed_run.measure(unit_weights(decomposed_run.num_images)[None])
        draws_MR = draws[group, number].T
        for runs_of_measure, value, draws_R in zip(drawn[group], values_M.tolist(), draws_MR, strict=True):
            runs_of_measure[number] = Drawn(value, draws_R, num_units)

    values: dict[str, dict[str, Estimate]] = {}
    for group, measures in drawn.items():
        totals = [group_total(runs_of_measure) for runs_of_measure in measures]
        values[group] = _estimates(totals, are_differences=False)
    return Decomposition(value=values, pairs=_pairs(drawn, families or {}), resamples=resamples, seed=seed)


def _decompose_files(
    truth: GroundTruth, detections: Mapping[str, Mapping[int, FilePath]]
) -> dict[tuple[str, int], Decomposed]:
    """Return group and training seed -> what its detections are decomposed into."""
    decomposed: dict[tuple[str, int], Decomposed] = {}
    for group, seeds in detections.items():
        for number, path in sorted(seeds.items()):
            written = read_detections(Path(path), truth)
            decomposed[group, number] = Decomposed(truth, in_fair_order(truth, written))
    return decomposed


def _pairs(drawn: Mapping[str, Sequence[Mapping[int, Drawn]]], families: Mapping[str, str]) -> tuple[PairParts, ...]:
    """Return how the groups of every pair differ in each measure."""
    pairs: list[PairParts] = []
    for a, b in combinations(drawn, 2):
        is_one_family = families.get(a) == families.get(b)
        differences = [
            difference_total(runs_of_a, runs_of_b, paired=is_one_family)
            for runs_of_a, runs_of_b in zip(drawn[a], drawn[b], strict=True)
        ]
        pairs.append(PairParts(a, b, _estimates(differences, are_differences=True)))
    return tuple(pairs)


def _estimates(totals: Sequence[Total], *, are_differences: bool) -> dict[str, Estimate]:
    """Return each measure with its interval, as far as it is defined in all runs.

    Args:
        totals: of :data:`MEASURES`, in their order.
        are_differences: whether they are differences of two groups; a difference can be below the smallest value.
    """
    estimates: dict[str, Estimate] = {}
    for measure, total in zip(MEASURES, totals, strict=True):
        if np.isnan(total.value):
            continue
        lowest, highest = measure.ends
        if are_differences:
            lowest, highest = lowest - highest, highest - lowest
        estimates[measure.name] = total.estimate.within(lowest, highest)
    return estimates

"""Where the difference comes from: the measures of a decomposition with paired bootstrap intervals over images.

Legend of shapes: ``N`` images, ``R`` resamples, ``M`` measures.
"""

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import numpy as np

from coordexp.detection.average_precision import unit_weights
from coordexp.detection.boxes import Floats
from coordexp.detection.decomposition import MEASURES, Decomposed
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.statistics.bootstrap import Drawn, FilePath, check_groups
from coordexp.statistics.resampling import OnProgress, check_plan, for_each_draw, image_weights
from coordexp.statistics.results import Decomposition, Estimate, PairParts
from coordexp.statistics.seeds import Part, difference_parts, group_part, total

_Runs = Mapping[int, list[Drawn]]
"""Training seed -> measures."""


def decompose(
    annotations_json: FilePath,
    detections: Mapping[str, Mapping[int, FilePath]],
    *,
    resamples: int = 500,
    seed: int = 0,
    threads: int | None = None,
    on_progress: OnProgress | None = None,
) -> Decomposition:
    """Measure what groups lose AP50 to, and how they differ in it, on the same resamples as their AP.

    Args:
        annotations_json: ground truth in COCO or LVIS format.
        detections: group -> training seed -> detections in COCO's results format.
        resamples: number of resamples of images (and seeds), the same for all groups.
        seed: of the resamples: with the same one, the first resamples of the comparison of AP.
        threads: number of threads; None for one per usable core.
        on_progress: called with the number of resamples done and their total.

    Raises:
        DataError: if a file or an entry is malformed, or an image id is unknown.
        ComparisonError: if there is nothing to compare, or nothing to resample.
    """
    check_groups(detections)
    check_plan(resamples=resamples, seed=seed)
    truth = read_ground_truth(Path(annotations_json))
    files = {
        (group, number): Decomposed(truth, read_detections(Path(path), truth))
        for group, seeds in detections.items()
        for number, path in sorted(seeds.items())
    }
    num_images = len(truth.sizes_px)
    draws = np.empty((len(files), resamples, len(MEASURES)))

    def draw(index: int) -> None:
        weights = image_weights(num_images, seed=seed, index=index)
        for row, file in enumerate(files.values()):
            draws[row, index] = file.measure(weights)

    for_each_draw(draw, num_draws=resamples, threads=threads, on_progress=on_progress)
    runs: dict[str, dict[int, list[Drawn]]] = {group: {} for group in detections}
    for row, ((group, number), file) in enumerate(files.items()):
        values: Floats = file.measure(unit_weights(num_images))
        runs[group][number] = [Drawn(float(value), draws[row, :, at]) for at, value in enumerate(values)]
    return Decomposition(
        value={
            group: _estimates([[group_part(one)] for one in _by_measure(own)], seed=seed) for group, own in runs.items()
        },
        pairs=tuple(
            PairParts(
                a,
                b,
                _estimates(
                    [difference_parts(*two) for two in zip(_by_measure(runs[a]), _by_measure(runs[b]), strict=True)],
                    seed=seed,
                ),
            )
            for a, b in combinations(runs, 2)
        ),
        resamples=resamples,
        seed=seed,
    )


def _by_measure(runs: _Runs) -> list[dict[int, Drawn]]:
    return [{number: drawn[at] for number, drawn in runs.items()} for at in range(len(MEASURES))]


def _estimates(parts: list[list[Part]], *, seed: int) -> dict[str, Estimate]:
    """Return each measure that is defined in all its runs."""
    found = {measure.name: total(part, seed=seed).estimate for measure, part in zip(MEASURES, parts, strict=True)}
    return {name: estimate for name, estimate in found.items() if not np.isnan(estimate.value)}

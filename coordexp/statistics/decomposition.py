"""Where the difference comes from: the measures of a decomposition with paired bootstrap intervals over images.

Legend of shapes: ``N`` images, ``R`` resamples, ``M`` measures, of which the last ``X`` are shares.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from coordexp.detection.kernels import Weights

Shares = Mapping[str, tuple[Floats, Floats]]
"""More measures of one file by name: ``[N]`` parts and ``[N]`` wholes of the images by id, for a sum over a sum."""


def decompose(
    annotations_json: FilePath,
    detections: Mapping[str, Mapping[int, FilePath]],
    *,
    shares: Mapping[str, Mapping[int, Shares]] | None = None,
    resamples: int = 500,
    seed: int = 0,
    threads: int | None = None,
    on_progress: OnProgress | None = None,
) -> Decomposition:
    """Measure what groups lose AP50 to, and how they differ in it, on the same resamples as their AP.

    Args:
        annotations_json: ground truth in COCO or LVIS format.
        detections: group -> training seed -> detections in COCO's results format.
        shares: group -> training seed -> what else is measured on its images; a group of which one run lacks a
            measure does not have it.
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
    paths = {(group, number): path for group, seeds in detections.items() for number, path in sorted(seeds.items())}

    def decomposed(path: FilePath) -> Decomposed:
        return Decomposed(truth, read_detections(Path(path), truth))

    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:  # matching leaves the interpreter's lock
        files = dict(zip(paths, pool.map(decomposed, paths.values()), strict=True))
    num_images = len(truth.sizes_px)
    shares = shares or {}
    more = {key: shares.get(key[0], {}).get(key[1], {}) for key in files}
    names = [m.name for m in MEASURES]
    names += list(dict.fromkeys(name for found in more.values() for name in found))
    sums = {key: _columns(found, names[len(MEASURES) :], num_images) for key, found in more.items()}

    def measure(key: tuple[str, int], weights: "Weights") -> Floats:
        parts, wholes = (weights @ counts for counts in sums[key])
        ratios = np.divide(parts, wholes, out=np.full(len(parts), np.nan), where=wholes > 0)
        return np.concatenate([files[key].measure(weights), ratios])

    draws = np.empty((len(files), resamples, len(names)))

    def draw(index: int) -> None:
        weights = image_weights(num_images, seed=seed, index=index)
        for row, key in enumerate(files):
            draws[row, index] = measure(key, weights)

    for_each_draw(draw, num_draws=resamples, threads=threads, on_progress=on_progress)
    runs: dict[str, dict[int, list[Drawn]]] = {group: {} for group in detections}
    for row, (group, number) in enumerate(files):
        values = measure((group, number), unit_weights(num_images))
        runs[group][number] = [Drawn(float(value), draws[row, :, at]) for at, value in enumerate(values)]
    by_measure = {
        group: [{number: drawn[at] for number, drawn in own.items()} for at in range(len(names))]
        for group, own in runs.items()
    }

    def estimates(parts: list[list[Part]]) -> dict[str, Estimate]:
        """Return each measure that is defined in all its runs."""
        found = {name: total(part, seed=seed).estimate for name, part in zip(names, parts, strict=True)}
        return {name: estimate for name, estimate in found.items() if not np.isnan(estimate.value)}

    return Decomposition(
        value={group: estimates([[group_part(one)] for one in own]) for group, own in by_measure.items()},
        pairs=tuple(
            PairParts(
                a, b, estimates([difference_parts(*two) for two in zip(by_measure[a], by_measure[b], strict=True)])
            )
            for a, b in combinations(runs, 2)
        ),
        resamples=resamples,
        seed=seed,
    )


def _columns(found: Shares, names: Sequence[str], num_images: int) -> tuple[Floats, Floats]:
    """Return ``[N, X]`` parts and wholes of the measures called so; nothing of nothing where there is none."""
    nothing = np.zeros(num_images)
    columns = [found.get(name, (nothing, nothing)) for name in names]
    parts, wholes = (np.array([pair[which] for pair in columns]).reshape(-1, num_images).T for which in range(2))
    return parts, wholes

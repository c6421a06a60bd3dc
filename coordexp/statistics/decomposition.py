"""Where the difference comes from: the measures of a decomposition with paired bootstrap intervals over images.

Legend of shapes: ``N`` images, ``R`` resamples, ``M`` measures, of which the last ``X`` are shares.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coordexp.detection.average_precision import unit_weights
from coordexp.detection.boxes import Floats
from coordexp.detection.decomposition import ERRORS, MEASURES, Decomposed
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import ComparisonError
from coordexp.statistics.bootstrap import Drawn, FilePath, check_groups
from coordexp.statistics.rarity import FEWEST_IMAGES, corrected, images_a_category
from coordexp.statistics.resampling import OnProgress, blocks_of, check_plan, image_weights
from coordexp.statistics.results import Decomposition, Estimate, PairParts
from coordexp.statistics.seeds import Part, difference_parts, group_part, total

if TYPE_CHECKING:
    from coordexp.detection.kernels import Weights

Shares = Mapping[str, tuple[Floats, Floats]]
"""More measures of one file by name: ``[N]`` parts and ``[N]`` wholes of the images by id, for a sum over a sum."""
Ends = tuple[float, float]
_Run = tuple[str, int]
"""Group and training seed."""
_ByMeasure = dict[str, list[dict[int, Drawn]]]
"""Group -> for each measure: training seed -> its value with its draws."""


def decompose(
    annotations_json: FilePath,
    detections: Mapping[str, Mapping[int, FilePath]],
    *,
    shares: Mapping[str, Mapping[int, Shares]] | None = None,
    ends: Mapping[str, Ends | None] | None = None,
    families: Mapping[str, str] | None = None,
    resamples: int = 500,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Decomposition:
    """Measure what groups lose AP50 to, and how they differ in it, on the same resamples as their AP.

    Args:
        annotations_json: ground truth in COCO or LVIS format.
        detections: group -> training seed -> detections in COCO's results format.
        shares: group -> training seed -> what else is measured on its images; a group of which one run lacks a
            measure does not have it.
        ends: where what else is measured lies whatever the images, by name; None, or no entry: anywhere.
        families: as of :func:`coordexp.statistics.comparison.compare_readings`.
        resamples: number of resamples of images (and seeds), the same for all groups.
        seed: of the resamples: with the same one, the first resamples of the comparison of AP.
        on_progress: called with the number of resamples done and their total.

    Raises:
        DataError: if a file or an entry is malformed, or an image id is unknown.
        ComparisonError: if there is nothing to compare, or nothing to resample.
    """
    check_groups(detections)
    check_plan(resamples=resamples, seed=seed)
    truth = read_ground_truth(Path(annotations_json))
    if truth.is_crowd.all():
        raise ComparisonError(f"{truth.path}: AP50 is undefined, because no object there counts for it")
    paths = {(group, number): path for group, seeds in detections.items() for number, path in sorted(seeds.items())}
    more: dict[_Run, Shares] = {run: (shares or {}).get(run[0], {}).get(run[1], {}) for run in paths}
    own_names = list(dict.fromkeys(name for found in more.values() for name in found))

    files: dict[_Run, _Measured] = {}
    for run, path in paths.items():
        made = Decomposed(truth, read_detections(Path(path), truth))
        files[run] = _Measured(made, *_columns(more[run], own_names, made.num_images))
        if on_progress is not None:
            on_progress(0, 1)
    names = [*(measure.name for measure in MEASURES), *own_names]
    every_image = unit_weights(len(truth.sizes_px))[None]
    weights = image_weights(len(truth.sizes_px), resamples=resamples, seed=seed)
    is_enough = len(truth.sizes_px) >= FEWEST_IMAGES
    draws = {run: np.empty((resamples, len(names))) for run in files}
    for block in blocks_of(resamples, on_progress):
        for run, file in files.items():
            draws[run][block] = file.measure(weights[block]) if is_enough else np.nan
    drawn: _ByMeasure = {group: [{} for _ in names] for group in detections}
    for (group, number), file in files.items():
        (values,), images = file.measure(every_image), images_a_category(file.decomposed.fixes)
        for at, (value, own) in enumerate(zip(values.tolist(), draws[group, number].T, strict=True)):
            is_of_ap = at <= len(ERRORS)
            drawn[group][at][number] = Drawn(value, corrected(value, own, images) if is_of_ap else own)
    known = {measure.name: measure.ends for measure in MEASURES} | dict(ends or {})
    estimates, pairs = _estimated(drawn, {name: known.get(name) for name in names}, families or {}, seed=seed)
    return Decomposition(value=estimates, pairs=pairs, resamples=resamples, seed=seed)


@dataclass(frozen=True, eq=False)
class _Measured:
    """A file with all that is measured of it; ``parts_NX`` and ``wholes_NX`` are of its shares."""

    decomposed: Decomposed
    parts_NX: Floats
    wholes_NX: Floats

    def measure(self, weights_RN: "Weights") -> Floats:
        """Return ``[R, M]`` values under ``[R, N]`` copies of each image; NaN where undefined."""
        weights = weights_RN.astype(np.float64)
        parts, wholes = weights @ self.parts_NX, weights @ self.wholes_NX
        shares = np.divide(parts, wholes, out=np.full(parts.shape, np.nan), where=wholes > 0)
        return np.hstack([self.decomposed.measure(weights_RN), shares])


def _columns(found: Shares, names: Sequence[str], num_images: int) -> tuple[Floats, Floats]:
    """Return ``[N, X]`` parts and wholes of the measures called so; nothing of nothing where there is none."""
    nothing = np.zeros(num_images)
    columns = [found.get(name, (nothing, nothing)) for name in names]
    parts, wholes = (np.array([pair[which] for pair in columns]).reshape(-1, num_images).T for which in range(2))
    return parts, wholes


def _estimated(
    drawn: _ByMeasure, ends: Mapping[str, Ends | None], families: Mapping[str, str], *, seed: int
) -> tuple[dict[str, dict[str, Estimate]], tuple[PairParts, ...]]:
    """Return the measures of each group, and their differences, as far as they are defined in all runs.

    ``ends`` has each measure's name, in order, and where it lies.
    """

    def estimates(parts: list[list[Part]], within: Sequence[Ends | None]) -> dict[str, Estimate]:
        found = {name: total(part, seed=seed).estimate for name, part in zip(ends, parts, strict=True)}
        return {
            name: estimate if own is None else estimate.within(*own)
            for (name, estimate), own in zip(found.items(), within, strict=True)
            if not np.isnan(estimate.value)
        }

    of_one = list(ends.values())
    of_two = [None if own is None else (own[0] - own[1], own[1] - own[0]) for own in of_one]

    def difference(a: str, b: str) -> PairParts:
        both, paired = zip(drawn[a], drawn[b], strict=True), families.get(a) == families.get(b)
        return PairParts(a, b, estimates([difference_parts(*two, paired=paired) for two in both], of_two))

    values = {group: estimates([[group_part(one)] for one in own], of_one) for group, own in drawn.items()}
    return values, tuple(difference(a, b) for a, b in combinations(drawn, 2))

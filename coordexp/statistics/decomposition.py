"""Where the difference comes from: the measures of a decomposition with paired bootstrap intervals over images.

Legend of shapes: ``N`` images, ``R`` resamples, ``M`` measures, of which the last ``X`` are shares.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coordexp.detection.average_precision import Weightings, unit_weights
from coordexp.detection.boxes import Floats
from coordexp.detection.decomposition import ERRORS, MEASURES, Decomposed
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import ComparisonError
from coordexp.statistics.bootstrap import Drawn, FilePath, check_groups
from coordexp.statistics.rarity import FEWEST_IMAGES, corrected, images_a_category
from coordexp.statistics.resampling import OnProgress, check_plan, each_read, for_each_block, image_weights
from coordexp.statistics.results import Decomposition, Estimate, PairParts
from coordexp.statistics.seeds import Part, difference_parts, group_part, total

if TYPE_CHECKING:
    from coordexp.detection.kernels import Weights

Shares = Mapping[str, tuple[Floats, Floats]]
"""More measures of one file by name: ``[N]`` parts and ``[N]`` wholes of the images by id, for a sum over a sum."""
Ends = tuple[float, float]
_FILES_AT_ONCE = 8
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
    threads: int | None = None,
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
        threads: number of threads; None for one per usable core.
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

    def measured(run: _Run) -> _Measured:
        made = Decomposed(truth, read_detections(Path(paths[run]), truth))
        return _Measured(made, *_columns(more[run], own_names, made.num_images))

    files = each_read(measured, paths, threads=threads, on_progress=on_progress)
    names = [*(measure.name for measure in MEASURES), *own_names]
    num_images = len(truth.sizes_px)
    weights = np.stack([image_weights(num_images, seed=seed, index=index) for index in range(resamples)], axis=1)
    costs = np.empty((len(files), resamples, 1 + len(ERRORS)))

    def draw(first: int, last: int) -> None:
        weightings = Weightings.of(weights[:, first:last])
        for row, file in enumerate(files.values()):
            costs[row, first:last] = file.decomposed.costs(weightings)

    for_each_block(draw, num_draws=resamples, threads=threads, on_progress=on_progress)
    every_image = unit_weights(num_images)
    ratios = _ratios(list(files.values()), weights.T.astype(np.float64))
    drawn: _ByMeasure = {group: [{} for _ in names] for group in detections}
    for ((group, number), file), own_costs, own_ratios in zip(files.items(), costs, ratios, strict=True):
        draws, images = np.hstack([own_costs, own_ratios]), images_a_category(file.decomposed.fixes)
        for at, value in enumerate(file.measure(every_image)):
            own = corrected(float(value), draws[:, at], images) if at <= len(ERRORS) else draws[:, at]
            own = own if num_images >= FEWEST_IMAGES else np.full(resamples, np.nan)
            drawn[group][at][number] = Drawn(float(value), own)
    known = {measure.name: measure.ends for measure in MEASURES} | dict(ends or {})
    values, pairs = _estimated(drawn, {name: known.get(name) for name in names}, families or {}, seed=seed)
    return Decomposition(value=values, pairs=pairs, resamples=resamples, seed=seed)


@dataclass(frozen=True, eq=False)
class _Measured:
    """A file with all that is measured of it; ``parts_NX`` and ``wholes_NX`` are of its shares."""

    decomposed: Decomposed
    parts_NX: Floats
    wholes_NX: Floats

    def measure(self, weights: "Weights") -> Floats:
        """Return ``[M]`` values under ``[N]`` copies of each image; NaN where undefined."""
        sums = [weights[None].astype(np.float64) @ columns for columns in self.columns]
        costs = self.decomposed.costs(Weightings.of(weights[:, None]))
        return np.concatenate([costs[0], self.ratios(np.hstack(sums))[0]])

    @property
    def columns(self) -> tuple[Floats, Floats, Floats]:
        """What is added up over images, each ``[N, ...]``."""
        return self.decomposed.counts, self.parts_NX, self.wholes_NX

    def ratios(self, sums_RC: Floats) -> Floats:
        """Return ``[R, M - 7]`` what is behind the errors, and the shares, from sums of the columns."""
        num_counts, num_shares = self.decomposed.counts.shape[1], self.parts_NX.shape[1]
        counts, parts, wholes = np.split(sums_RC, [num_counts, num_counts + num_shares], axis=1)
        shares = np.divide(parts, wholes, out=np.full(parts.shape, np.nan), where=wholes > 0)
        return np.hstack([self.decomposed.ratios(counts), shares])


def _ratios(files: Sequence[_Measured], weights_RN: Floats) -> Iterator[Floats]:
    """Yield of each file ``[R, M - 7]`` what is behind the errors, and the shares, under each of many weightings.

    Several files share a product of matrices: for one alone, reading the weights takes longer than to multiply, and
    after each product the threads of the library wait awake for the next.
    """
    for first in range(0, len(files), _FILES_AT_ONCE):
        some = files[first : first + _FILES_AT_ONCE]
        columns = [np.hstack(file.columns) for file in some]
        ends = np.cumsum([own.shape[1] for own in columns])
        sums = np.split(weights_RN @ np.hstack(columns), ends[:-1], axis=1)
        yield from (file.ratios(own) for file, own in zip(some, sums, strict=True))


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

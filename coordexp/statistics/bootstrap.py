"""Paired bootstrap of AP over images, or units of them: each file is matched once, and all see the same resamples.

Legend of shapes: ``N`` images, ``R`` resamples.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import TypeVar

import numpy as np

from coordexp.data.units import UnitNames, Units
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.matching.matcher import Matcher
from coordexp.detection.matching.matches import Matches
from coordexp.detection.precision.average_precision import (
    AVERAGE_PRECISIONS,
    AveragePrecision,
    mean_precisions,
    unit_weights,
)
from coordexp.detection.precision.fair_order import in_fair_order
from coordexp.errors import ComparisonError
from coordexp.statistics.intervals import FEWEST_IMAGES, Drawn, difference_total, group_total
from coordexp.statistics.resampling import OnProgress, blocks_of, check_plan, image_weights
from coordexp.statistics.results import BootstrapReport, Difference

FilePath = str | Path
K = TypeVar("K")


def paired_bootstrap(
    annotations_json: FilePath,
    detections: Mapping[str, FilePath],
    *,
    resamples: int = 2000,
    seed: int = 0,
    metric: str = "AP",
    image_ids: Collection[int] | None = None,
    units: UnitNames | None = None,
) -> BootstrapReport:
    """Compare groups, one file of detections each, on the same images.

    Args:
        annotations_json: ground truth in COCO format.
        detections: name -> detections in COCO's results format.
        resamples: number of resamples.
        seed: of the resamples; the same seed gives the same numbers.
        metric: AP, AP50, AP75, AP_small, AP_medium or AP_large.
        image_ids: only these images; None for every image of the annotation file.
        units: which images are not independent; units are then drawn in the place of images.

    Returns:
        Values, intervals and differences; every pair in both orders.

    Raises:
        DataError: if a file or an entry is malformed, or an image id is unknown.
        ComparisonError: if there is nothing to compare or to resample, the metric is unknown or undefined for this
            ground truth, or a detection lies in an image outside the chosen ones.
    """
    check_groups({name: [path] for name, path in detections.items()})
    check_plan(resamples=resamples, seed=seed)
    matches = read_matches(annotations_json, detections, metric=metric, image_ids=image_ids)
    numbered = numbered_units(annotations_json, units, image_ids)
    drawn = resampled(matches, metric, resamples=resamples, seed=seed, units=numbered)
    runs = {name: {0: own} for name, own in drawn.items()}
    intervals = {name: group_total(own).estimate.of_precision() for name, own in runs.items()}
    differences: dict[tuple[str, str], Difference] = {}
    for a, b in combinations(runs, 2):
        total = difference_total(runs[a], runs[b])
        ends = total.estimate.of_difference()
        differences[a, b] = Difference(total.value, ends.low, ends.high, total.p)
        differences[b, a] = differences[a, b].reversed()
    return BootstrapReport(
        ap={name: found.value for name, found in intervals.items()},
        interval={name: (found.low, found.high) for name, found in intervals.items()},
        difference=differences,
    )


def read_matches(
    annotations_json: FilePath,
    files: Mapping[K, FilePath],
    *,
    metric: str,
    image_ids: Collection[int] | None = None,
    on_progress: OnProgress | None = None,
) -> dict[K, Matches]:
    """Match files of detections to one annotation file, in the area range of a metric."""
    area = known_metric(metric).area
    whole = read_ground_truth(Path(annotations_json))
    truth = whole if image_ids is None else whole.on_images(image_ids)
    if len(truth.sizes_px) < 2:
        raise ComparisonError(f"{truth.path}: statistics need at least 2 images, got {len(truth.sizes_px)}")

    found: dict[K, Matches] = {}
    compared = np.array(list(truth.sizes_px), np.int64)
    for key, path in files.items():
        detections = read_detections(Path(path), whole)
        others = detections.image_ids[~np.isin(detections.image_ids, compared)]
        if len(others):
            raise ComparisonError(
                f"{path}: there are detections in image {others.min()}, which is not among the {len(compared)} images "
                "compared; expected detections of the same images in every file"
            )
        found[key] = Matcher(truth, in_fair_order(truth, detections)).matches(area)
        if not len(found[key].gt_image):
            raise ComparisonError(f"{truth.path}: {metric} is undefined, because no object there counts for it")
        if on_progress is not None:
            on_progress(0, 1)
    return found


def numbered_units(
    annotations_json: FilePath, units: UnitNames | None, image_ids: Collection[int] | None
) -> Units | None:
    """Return the units of the images compared, in the order in which a matcher has them; None without units."""
    if units is None:
        return None
    compared = read_ground_truth(Path(annotations_json)).sizes_px if image_ids is None else image_ids
    return units.numbered(sorted(set(compared)))


def resampled(
    matches: Mapping[K, Matches],
    metric: str,
    *,
    resamples: int,
    seed: int,
    units: Units | None = None,
    on_progress: OnProgress | None = None,
) -> dict[K, Drawn]:
    """Evaluate files of the same images as they are and on the same resamples of them, or of their units.

    Returns:
        A value and its draws for each file; NaN where no image with ground truth was drawn, and all of them where
        there are fewer units than :data:`FEWEST_IMAGES`.
    """
    which, num_images = known_metric(metric), next(iter(matches.values())).num_images
    units = units or Units.single(num_images)
    is_enough = units.num_units >= FEWEST_IMAGES
    weights = units.spread(image_weights(units.num_units, resamples=resamples, seed=seed))
    draws = {key: np.empty(resamples) for key in matches}
    for block in blocks_of(resamples, on_progress):
        for key, file in matches.items():
            draws[key][block] = mean_precisions(file, which, weights[block]) if is_enough else np.nan
    num_units = units.num_units if units.has_several else None
    return {
        key: Drawn(float(mean_precisions(file, which, unit_weights(num_images)[None])[0]), draws[key], num_units)
        for key, file in matches.items()
    }


def images_a_category(matches: Matches, units: Units | None = None) -> float:
    """Return in how many images, or units, a category is: the harmonic mean over the categories that are in any."""
    category = np.repeat(np.arange(len(matches.gt_start) - 1), np.diff(matches.gt_start))
    place = matches.gt_image if units is None else units.of_image[matches.gt_image]
    categories, _ = np.unique(np.column_stack([category, place]), axis=0).T
    _, places = np.unique(categories, return_counts=True)
    return float(1 / np.mean(1 / places))


def known_metric(name: str) -> AveragePrecision:
    """Return the metric of a name, or raise a ComparisonError that lists them."""
    if name not in AVERAGE_PRECISIONS:
        raise ComparisonError(f"unknown metric {name!r}; expected one of {', '.join(AVERAGE_PRECISIONS)}")
    return AVERAGE_PRECISIONS[name]


def check_groups(groups: Mapping[str, Iterable[object]]) -> None:
    """Raise a ComparisonError if there are no groups, or one has no detections."""
    if not groups:
        raise ComparisonError("there are no groups to compare; expected at least one with detections")
    for name, members in groups.items():
        if not list(members):
            raise ComparisonError(f"group {name!r} has no detections to compare; expected one file for each seed")

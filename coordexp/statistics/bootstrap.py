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
    """Compare groups, one file of detections each, on the same images: what ``coordexp compare`` does.

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
    runs = {name: {0: run} for name, run in drawn.items()}  # as of one training seed
    estimates = {name: group_total(run).estimate.of_precision() for name, run in runs.items()}
    differences: dict[tuple[str, str], Difference] = {}
    for a, b in combinations(runs, 2):
        total = difference_total(runs[a], runs[b])
        estimate = total.estimate.of_difference()
        differences[a, b] = Difference(total.value, estimate.low, estimate.high, total.p)
        differences[b, a] = differences[a, b].reversed()
    return BootstrapReport(
        ap={name: estimate.value for name, estimate in estimates.items()},
        interval={name: (estimate.low, estimate.high) for name, estimate in estimates.items()},
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
    """Match files of detections to one annotation file, in the area range of a metric.

    Args:
        annotations_json: ground truth in COCO format.
        files: by any key.
        metric: AP, AP50, AP75, AP_small, AP_medium or AP_large.
        image_ids: only these images; None for every image of the annotation file.
        on_progress: called after each file with "0 of 1 done", so that an interrupted command can end here.

    Raises:
        DataError: if a file or an entry is malformed, or an image id is unknown.
        ComparisonError: if there are too few images, a detection lies in an image outside the chosen ones, or no object
            counts for the metric.
    """
    area = known_metric(metric).area
    whole_truth = read_ground_truth(Path(annotations_json))
    truth = whole_truth if image_ids is None else whole_truth.on_images(image_ids)
    num_images = len(truth.sizes_px)
    if num_images < 2:
        raise ComparisonError(f"{truth.path}: statistics need at least 2 images, got {num_images}")

    matches_of_files: dict[K, Matches] = {}
    compared_ids = np.array(list(truth.sizes_px), np.int64)
    for key, path in files.items():
        detections = read_detections(Path(path), whole_truth)
        ids_outside = detections.image_ids[~np.isin(detections.image_ids, compared_ids)]
        if len(ids_outside):
            raise ComparisonError(
                f"{path}: there are detections in image {ids_outside.min()}, which is not among the {num_images} "
                "images compared; expected detections of the same images in every file"
            )
        matches = Matcher(truth, in_fair_order(truth, detections)).matches(area)
        if not len(matches.gt_image):
            raise ComparisonError(f"{truth.path}: {metric} is undefined, because no object there counts for it")
        matches_of_files[key] = matches
        if on_progress is not None:
            on_progress(0, 1)
    return matches_of_files


def numbered_units(
    annotations_json: FilePath, units: UnitNames | None, image_ids: Collection[int] | None
) -> Units | None:
    """Return the units of the images compared, in the order in which a matcher has the images; None without units."""
    if units is None:
        return None
    if image_ids is None:
        image_ids = read_ground_truth(Path(annotations_json)).sizes_px.keys()
    return units.numbered(sorted(set(image_ids)))


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

    Args:
        matches: of each file, in the area range of the metric.
        metric: AP, AP50, AP75, AP_small, AP_medium or AP_large.
        resamples: how many.
        seed: of the resamples.
        units: which images belong together; None takes each image by itself.
        on_progress: called with the number of resamples done and their total.

    Returns:
        A value and its draws for each file. A draw is NaN if no image with ground truth was drawn. All draws are NaN if
        there are fewer units than :data:`FEWEST_IMAGES`.
    """
    which = known_metric(metric)
    num_images = next(iter(matches.values())).num_images
    drawn_units = units or Units.single(num_images)
    has_enough_units = drawn_units.num_units >= FEWEST_IMAGES
    weights = drawn_units.spread(image_weights(drawn_units.num_units, resamples=resamples, seed=seed))
    draws = {key: np.full(resamples, np.nan) for key in matches}
    for block in blocks_of(resamples, on_progress):
        if has_enough_units:
            for key, matches_of_file in matches.items():
                draws[key][block] = mean_precisions(matches_of_file, which, weights[block])

    num_units = drawn_units.num_units if drawn_units.has_several else None
    drawn: dict[K, Drawn] = {}
    for key, matches_of_file in matches.items():
        (value,) = mean_precisions(matches_of_file, which, unit_weights(num_images)[None]).tolist()
        drawn[key] = Drawn(value, draws[key], num_units)
    return drawn


def images_a_category(matches: Matches, units: Units | None = None) -> float:
    """Return in how many images, or units, a category is: the harmonic mean over the categories that are in any.

    The harmonic mean, because AP averages over categories, and the variance of a category's AP goes as one over the
    number of its images.
    """
    category = np.repeat(np.arange(len(matches.gt_start) - 1), np.diff(matches.gt_start))
    unit = matches.gt_image if units is None else units.of_image[matches.gt_image]
    category_of_cell, _ = np.unique(np.column_stack([category, unit]), axis=0).T
    _, num_units = np.unique(category_of_cell, return_counts=True)
    return float(1 / np.mean(1 / num_units))


def known_metric(name: str) -> AveragePrecision:
    """Return the metric of a name.

    Raises:
        ComparisonError: if there is no such metric, listing all of them.
    """
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

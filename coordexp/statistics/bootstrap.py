"""Paired bootstrap of AP over images: each file is matched once, and every group sees the same resamples.

Legend of shapes: ``N`` images, ``R`` resamples.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from coordexp.detection.average_precision import (
    AVERAGE_PRECISIONS,
    AveragePrecision,
    mean_precision,
    mean_precisions,
    unit_weights,
)
from coordexp.detection.boxes import Floats
from coordexp.detection.detections import Detections, read_detections
from coordexp.detection.ground_truth import GroundTruth, read_ground_truth
from coordexp.detection.matching import Matcher
from coordexp.errors import ComparisonError
from coordexp.statistics.intervals import estimate, p_of_zero
from coordexp.statistics.rarity import FEWEST_IMAGES, corrected, images_a_category
from coordexp.statistics.resampling import OnProgress, check_plan, each_read, for_each_block, image_weights
from coordexp.statistics.results import BootstrapReport, Difference

if TYPE_CHECKING:
    from coordexp.detection.kernels import Matches

FilePath = str | Path
K = TypeVar("K")


@dataclass(frozen=True)
class Drawn:
    """A number measured on one checkpoint.

    Attributes:
        value: on the images as they are.
        draws: ``[R]`` on resampled images.
    """

    value: float
    draws: Floats


def paired_bootstrap(
    annotations_json: FilePath,
    detections: Mapping[str, FilePath],
    *,
    resamples: int = 2000,
    seed: int = 0,
    metric: str = "AP",
    image_ids: Collection[int] | None = None,
    threads: int | None = None,
) -> BootstrapReport:
    """Compare groups, one file of detections each, on the same images.

    Args:
        annotations_json: ground truth in COCO format.
        detections: name -> detections in COCO's results format.
        resamples: number of resamples.
        seed: of the resamples; the same seed gives the same numbers, whatever the number of threads.
        metric: AP, AP50, AP75, AP_small, AP_medium or AP_large.
        image_ids: only these images; None for every image of the annotation file.
        threads: number of threads; None for one per usable core.

    Returns:
        Values, intervals and differences; every pair in both orders.

    Raises:
        DataError: if a file or an entry is malformed, or an image id is unknown.
        ComparisonError: if there is nothing to compare, or nothing to resample.
    """
    check_groups({name: [path] for name, path in detections.items()})
    check_plan(resamples=resamples, seed=seed)
    matches = read_matches(annotations_json, detections, metric=metric, image_ids=image_ids)
    drawn = resampled(matches, metric, resamples=resamples, seed=seed, threads=threads)
    intervals = {name: estimate(own.value, own.draws).of_precision() for name, own in drawn.items()}
    return BootstrapReport(
        ap={name: found.value for name, found in intervals.items()},
        interval={name: (found.low, found.high) for name, found in intervals.items()},
        difference=_differences(drawn),
    )


def read_matches(
    annotations_json: FilePath,
    files: Mapping[K, FilePath],
    *,
    metric: str,
    image_ids: Collection[int] | None = None,
    on_progress: OnProgress | None = None,
) -> "dict[K, Matches]":
    """Match files of detections to one annotation file, in the area range of a metric.

    Args:
        annotations_json: ground truth in COCO format.
        files: files of detections in COCO's results format, by any key.
        metric: a key of :data:`~coordexp.detection.average_precision.AVERAGE_PRECISIONS`.
        image_ids: only these images; None for all.
        on_progress: called after each file, with no draw done.

    Raises:
        DataError: if a file or an entry is malformed, or an image id is unknown.
        ComparisonError: if the metric is unknown or undefined for this ground truth, there are fewer than two
            images, or a detection lies in an image outside the chosen ones.
    """
    area = known_metric(metric).area
    whole = read_ground_truth(Path(annotations_json))
    truth = whole if image_ids is None else whole.on_images(image_ids)
    if len(truth.sizes_px) < 2:
        raise ComparisonError(f"{truth.path}: statistics need at least 2 images, got {len(truth.sizes_px)}")

    def matched(key: K) -> "Matches":
        detections = read_detections(Path(files[key]), whole)
        _refuse_other_images(detections, truth, files[key])
        matches = Matcher(truth, detections).matches(area)
        if not len(matches.gt_image):
            raise ComparisonError(f"{truth.path}: {metric} is undefined, because no object there counts for it")
        return matches

    return each_read(matched, files, threads=None, on_progress=on_progress)


def resampled(
    matches: "Mapping[K, Matches]",
    metric: str,
    *,
    resamples: int,
    seed: int,
    threads: int | None = None,
    on_progress: OnProgress | None = None,
) -> dict[K, Drawn]:
    """Evaluate files of the same images as they are and on the same resamples of them.

    Args:
        matches: from :func:`read_matches`, by any key.
        metric: the metric they were matched for.
        resamples: ``R``.
        seed: of the resamples.
        threads: number of threads; None for one per usable core.
        on_progress: called with the number of resamples done and their total.

    Returns:
        A value and its draws for each file, corrected where categories are in few images; NaN where no image with
        ground truth was drawn, and all of them where there are fewer than :data:`FEWEST_IMAGES`.
    """
    found, files = known_metric(metric), list(matches.values())
    num_images = files[0].num_images
    draws = np.empty((resamples, len(files)))

    def draw(first: int, last: int) -> None:
        weights = [image_weights(num_images, seed=seed, index=index) for index in range(first, last)]
        draws[first:last] = mean_precisions(files, found, np.stack(weights, axis=1))

    for_each_block(draw, num_draws=resamples, threads=threads, on_progress=on_progress)
    if num_images < FEWEST_IMAGES:
        draws[:] = np.nan
    every_image, images = unit_weights(num_images), images_a_category(files[0])
    values = {key: mean_precision(file, found, every_image) for key, file in matches.items()}
    return {
        key: Drawn(value, corrected(value, draws[:, column], images))
        for column, (key, value) in enumerate(values.items())
    }


def known_metric(name: str) -> AveragePrecision:
    """Return a metric.

    Raises:
        ComparisonError: if there is none of this name.
    """
    if name not in AVERAGE_PRECISIONS:
        raise ComparisonError(f"unknown metric {name!r}; expected one of {', '.join(AVERAGE_PRECISIONS)}")
    return AVERAGE_PRECISIONS[name]


def check_groups(groups: Mapping[str, Iterable[object]]) -> None:
    """Refuse a comparison without groups, or with a group that has no detections.

    Raises:
        ComparisonError: naming the group.
    """
    if not groups:
        raise ComparisonError("there are no groups to compare; expected at least one with detections")
    for name, members in groups.items():
        if not list(members):
            raise ComparisonError(f"group {name!r} has no detections to compare; expected one file for each seed")


def _refuse_other_images(detections: Detections, truth: GroundTruth, path: FilePath) -> None:
    is_outside = ~np.isin(detections.image_ids, np.array(list(truth.sizes_px), np.int64))
    for image_id in np.sort(detections.image_ids[is_outside])[:1].tolist():
        raise ComparisonError(
            f"{path}: there are detections in image {image_id}, which is not among the {len(truth.sizes_px)} images "
            "compared; expected detections of the same images in every file"
        )


def _differences(drawn: Mapping[str, Drawn]) -> dict[tuple[str, str], Difference]:
    found: dict[tuple[str, str], Difference] = {}
    for i, a in enumerate(drawn):
        for b in list(drawn)[:i]:
            value, change = drawn[a].value - drawn[b].value, drawn[a].draws - drawn[b].draws
            interval = estimate(value, change).of_difference()
            forth = Difference(value=value, low=interval.low, high=interval.high, p=p_of_zero(value, change))
            found[(a, b)], found[(b, a)] = forth, forth.reversed()
    return found

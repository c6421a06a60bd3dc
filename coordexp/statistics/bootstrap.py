"""Paired bootstrap of AP over images: every group sees the same resamples.

Legend of shapes: ``N`` images, ``R`` resamples, ``F`` files of detections.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from coordexp.detection.average_precision import AveragePrecision, mean_precision, unit_weights
from coordexp.detection.boxes import Floats
from coordexp.detection.kernels import Matches
from coordexp.statistics.intervals import estimate, p_of_zero
from coordexp.statistics.load import FilePath, check_groups, known_metric, read_matches
from coordexp.statistics.resampling import OnProgress, check_plan, for_each_draw, image_weights
from coordexp.statistics.results import BootstrapReport, Difference


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
    names, files = list(matches), list(matches.values())
    values = metric_values(files, known_metric(metric))
    draws = resampled_values(files, known_metric(metric), resamples=resamples, seed=seed, threads=threads)
    intervals = [estimate(float(values[i]), draws[:, i]) for i in range(len(names))]
    return BootstrapReport(
        ap={name: found.value for name, found in zip(names, intervals, strict=True)},
        interval={name: (found.low, found.high) for name, found in zip(names, intervals, strict=True)},
        difference=_differences(names, values, draws),
    )


def metric_values(matches: Sequence[Matches], metric: AveragePrecision) -> Floats:
    """Return ``[F]`` the metric of each file on the images as they are."""
    return np.array([mean_precision(m, metric, unit_weights(m.num_images)) for m in matches])


def resampled_values(
    matches: Sequence[Matches],
    metric: AveragePrecision,
    *,
    resamples: int,
    seed: int,
    threads: int | None = None,
    on_progress: OnProgress | None = None,
) -> Floats:
    """Evaluate files of the same images on the same resamples of them.

    Args:
        matches: ``F`` files, matched in the metric's area range.
        metric: what to count.
        resamples: ``R``.
        seed: of the resamples.
        threads: number of threads; None for one per usable core.
        on_progress: called with the number of resamples done and their total.

    Returns:
        ``[R, F]``; NaN where no image with ground truth was drawn.
    """
    num_images = matches[0].num_images
    draws = np.empty((resamples, len(matches)))

    def draw(index: int) -> None:
        weights = image_weights(num_images, seed=seed, index=index)
        for column, file in enumerate(matches):
            draws[index, column] = mean_precision(file, metric, weights)

    for_each_draw(draw, num_draws=resamples, threads=threads, on_progress=on_progress)
    return draws


def _differences(names: Sequence[str], values: Floats, draws: Floats) -> dict[tuple[str, str], Difference]:
    found: dict[tuple[str, str], Difference] = {}
    for i, a in enumerate(names):
        for j, b in enumerate(names[:i]):
            value, change = float(values[i] - values[j]), draws[:, i] - draws[:, j]
            interval = estimate(value, change)
            forth = Difference(value=value, low=interval.low, high=interval.high, p=p_of_zero(value, change))
            found[(a, b)], found[(b, a)] = forth, forth.reversed()
    return found

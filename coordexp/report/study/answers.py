"""What models write, image by image: answers cut off, the stop margin, and what sampled answers find beyond one."""

from pathlib import Path

import numpy as np

from coordexp.detection.boxes import IOU_THRESHOLDS, Floats
from coordexp.detection.decomposition import Measure
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.matching import Matcher
from coordexp.evaluate.objects import read_objects
from coordexp.metrics import STOP_MARGINS
from coordexp.statistics.decomposition import Shares

CUT_OFF = Measure("cut_off_fraction", "answers cut off", "share of answers that reach the token limit before their end")
MARGINS = tuple(
    Measure(
        name.replace("/", "_"),
        f"stop margin {(after := name.rpartition('/')[2].replace('_', ' '))}",
        f"mean log-odds of another object against the end, {after} objects",
        "none",
    )
    for name in STOP_MARGINS
)
SAMPLED = tuple(
    Measure(f"{name}50", head, f"{description}, at IoU .50", "higher")
    for name, head, description in (
        ("plain_recall", "found by one answer", "share of objects that the one answer finds"),
        ("oracle_recall", "found by any sample", "share of objects that any of the sampled answers finds"),
        ("unsaid_recall", "seen but not said", "the second minus the first"),
    )
)


def answer_shares(truth: GroundTruth, detections: Path, *, objects: Path | None, samples: Path | None) -> Shares:
    """Return the measures of one run's answers as sums over each image; those whose files are absent are left out.

    Args:
        truth: of the images evaluated.
        detections: of the run's one answer to each image.
        objects: its ``objects.jsonl``.
        samples: the detections of all sampled answers together.

    Raises:
        DataError: if a file is malformed.
    """
    found = {} if objects is None else _of_objects(truth, objects)
    if samples is None:
        return found
    (said, objects_N), (seen, _) = (_found(truth, path) for path in (detections, samples))
    parts = (said, seen, seen - said)
    return found | {measure.name: (part, objects_N) for measure, part in zip(SAMPLED, parts, strict=True)}


def _of_objects(truth: GroundTruth, path: Path) -> dict[str, tuple[Floats, Floats]]:
    row = {image_id: at for at, image_id in enumerate(sorted(truth.sizes_px))}
    num_images = len(row)
    names = [measure.name for measure in (CUT_OFF, *MARGINS)]
    parts, wholes = (np.zeros((len(names), num_images)) for _ in range(2))
    for line in read_objects(path):
        at = row[line.image_id]
        parts[0, at], wholes[0, at] = line.truncated, 1.0
        for which, (first, last) in enumerate(STOP_MARGINS.values(), start=1):
            margins = line.stop_margins[first:last]
            parts[which, at], wholes[which, at] = sum(margins), len(margins)
    return {name: (part, whole) for name, part, whole in zip(names, parts, wholes, strict=True)}


def _found(truth: GroundTruth, path: Path) -> tuple[Floats, Floats]:
    """Return ``[N]`` objects found at IoU .50 by boxes of their category, however many, and ``[N]`` objects."""
    matcher = Matcher(truth, read_detections(path, truth))
    gt_of_dt = matcher.pairs(float(IOU_THRESHOLDS[0])).gt_of_dt
    is_found = np.zeros(len(truth.image_ids), np.bool_)
    is_found[gt_of_dt[gt_of_dt >= 0]] = True
    image = np.searchsorted(matcher.image_ids, truth.image_ids)
    counts = (np.bincount(image, weights=w, minlength=matcher.num_images) for w in (is_found, ~truth.is_crowd))
    found, objects = (np.asarray(count, np.float64) for count in counts)
    return found, objects

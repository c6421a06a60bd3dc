"""Records of all processes -> files and metrics of one decoding."""

import itertools
from collections.abc import Collection, Sequence
from pathlib import Path

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.detection.coco_files import GroundTruth
from coordexp.detection.quality import BoxRun
from coordexp.errors import DataError
from coordexp.evaluate.analysis import analyse_runs
from coordexp.evaluate.distributions import UNITS, Distributions, ImageCurves
from coordexp.evaluate.records import ImageRecord, Scorer, record_counts, write_records
from coordexp.metrics import BOX_KINDS, BoxKind


def finish_decoding(
    folder: Path,
    parts: Sequence[Sequence[ImageRecord]],
    *,
    scorer: Scorer,
    ground_truth: GroundTruth,
    num_samples: int,
    subset: bool,
    details: bool,
) -> dict[str, float]:
    """Write the files of one decoding and return its metrics.

    Args:
        folder: ``.../constrained`` or ``.../free``.
        parts: the records of each process; in the files they are ordered by image id.
        scorer: how objects become detections.
        ground_truth: the split's annotations.
        num_samples: images that were to be evaluated.
        subset: AP over the evaluated images only; otherwise over all images of the annotations.
        details: also write ``analysis.json`` and ``distributions.json``.

    Returns:
        ``{box}/AP`` and so on, and the counts; undefined values are absent.

    Raises:
        DataError: if an image is missing, there twice or unknown.
    """
    records = merge_records(parts, ground_truth, num_samples=num_samples)
    write_records(folder, records, scorer)
    image_ids: Collection[int] | None = [record.image_id for record in records] if subset else None
    runs: dict[BoxKind, BoxRun] = {
        kind: BoxRun(ground_truth, list(scorer.detections(records, kind)), image_ids=image_ids) for kind in BOX_KINDS
    }
    metrics = record_counts(records, scorer)
    for kind, run in runs.items():
        metrics |= {f"{kind}/{name}": value for name, value in run.metrics().items()}
    if details:
        analyse_runs(runs, scorer.objects(records)).write(folder)
        curves = [ImageCurves(record.image_id, record.curves) for record in records if record.curves is not None]
        Distributions(NUM_BINS, 1 / UNITS, tuple(curves)).write(folder)
    return metrics


def merge_records(
    parts: Sequence[Sequence[ImageRecord]], ground_truth: GroundTruth, *, num_samples: int
) -> list[ImageRecord]:
    """Order the records of all processes by image id: the files do not depend on who made them.

    Raises:
        DataError: if an image is missing, there twice or unknown.
    """
    records = sorted((record for part in parts for record in part), key=lambda record: record.image_id)
    ids = [record.image_id for record in records]
    repeated = {a for a, b in itertools.pairwise(ids) if a == b}
    if repeated:
        raise DataError(f"image {min(repeated)} is evaluated twice; expected each image once")
    unknown = set(ids) - ground_truth.sizes_px.keys()
    if unknown:
        raise DataError(f"{ground_truth.path}: no image has id {min(unknown)}, but it was evaluated")
    if len(records) != num_samples:
        raise DataError(f"evaluation returned {len(records)} of {num_samples} images; expected each once")
    return records

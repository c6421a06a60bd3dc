"""Makes the analysis of one evaluation, from its folder or from what is still in memory."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.detection.coco_files import GtBox, read_detections, read_ground_truth
from coordexp.detection.overlaps import Matching
from coordexp.detection.quality import BoxRun
from coordexp.errors import DataError
from coordexp.evaluate.analysis_file import (
    Analysis,
    BoxAnalysis,
    CategoryResult,
    CoordinateMap,
    CountResult,
    Histogram,
    SizeResult,
    WidthByError,
)
from coordexp.evaluate.object_table import ObjectTable, read_objects
from coordexp.metrics import BOX_KINDS, BoxKind
from coordexp.runs.folder import DecodingFolder

MIN_IOU = 0.1
_IOU_EDGES = np.linspace(0.0, 1.0, 21)
_COORDINATE_EDGES = np.linspace(0.0, 1.0, 41)
_COORDINATES = ("x1", "y1", "x2", "y2")
_ERROR_EDGES = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, float(NUM_BINS))
_OBJECT_COUNTS: tuple[tuple[int, int | None], ...] = ((1, 1), (2, 3), (4, 7), (8, None))
_SIZES_PX2 = {"small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}

_Floats = NDArray[np.float64]


def analyse(annotations_json: Path, folder: Path) -> Analysis:
    """Analyse the folder of one decoding, such as ``eval/final/constrained``, over all images of the split.

    Args:
        annotations_json: the split's annotation file, with image sizes.
        folder: holds ``detections.argmax.json``, ``detections.expected.json`` and ``objects.jsonl``.

    Raises:
        DataError: if a file is missing or malformed, or they do not belong together.
    """
    ground_truth, files = read_ground_truth(annotations_json), DecodingFolder(folder)
    runs: dict[BoxKind, BoxRun] = {
        kind: BoxRun(ground_truth, read_detections(files.detections(kind), ground_truth)) for kind in BOX_KINDS
    }
    return analyse_runs(runs, read_objects(files.objects))


def analyse_runs(runs: Mapping[BoxKind, BoxRun], objects: ObjectTable) -> Analysis:
    """Analyse matched detections of each box kind.

    Args:
        runs: by box kind, over the same images.
        objects: the object behind each detection, in the same order.

    Raises:
        DataError: if objects and detections do not belong together, or an image has no size.
    """
    for kind, run in runs.items():
        if objects.image_ids.tolist() != [dt.image_id for dt in run.detections]:
            raise DataError(
                f"{run.ground_truth.path}: {len(run.detections)} {kind} detections do not belong to the "
                f"{len(objects.image_ids)} objects of known categories beside them; expected files of one evaluation"
            )
    first = next(iter(runs.values()))
    return Analysis(
        num_images=len(first.image_ids),
        num_gt=first.overlaps.num_gt,
        min_iou=MIN_IOU,
        coordinate_edges=tuple(_COORDINATE_EDGES.tolist()),
        boxes={kind: _analyse_boxes(run, objects.ordered_width(kind)) for kind, run in runs.items()},
    )


def _analyse_boxes(run: BoxRun, width_D4: _Floats | None) -> BoxAnalysis:
    matching = run.overlaps.match(MIN_IOU)
    dt = np.flatnonzero(matching.matched)
    predicted = _norm([run.detections[at].box_px_xywh for at in dt.tolist()], run, dt)
    true = _norm([run.overlaps.gt[at].box_px_xywh for at in matching.gt_of_dt[dt].tolist()], run, dt)
    return BoxAnalysis(
        num_matched=len(dt),
        num_unmatched=int((~matching.matched & ~matching.ignored).sum()),
        num_missed=matching.num_gt - len(dt),
        matched_iou=_iou_histogram(matching),
        coordinates={name: _map(true[:, at], predicted[:, at]) for at, name in enumerate(_COORDINATES)},
        width_by_error=() if width_D4 is None else _width_by_error(np.abs(predicted - true), width_D4[dt]),
        categories=_categories(run),
        sizes=_sizes(run),
        object_counts=_object_counts(run),
        score_bins=run.score_bins(),
    )


def _norm(boxes_px_xywh: Sequence[Sequence[float]], run: BoxRun, dt: NDArray[np.int64]) -> _Floats:
    """Return the corners of matched boxes as fractions of their image, ``[M, 4]``."""
    ids = [run.detections[at].image_id for at in dt.tolist()]
    sizes: list[tuple[int, int]] = []
    for image_id in ids:
        size = run.ground_truth.sizes_px[image_id]
        if size is None:
            raise DataError(f"{run.ground_truth.path}: image {image_id} has no width and height")
        sizes.append(size)
    boxes = np.array(boxes_px_xywh, np.float64).reshape(-1, 4)
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    return corners / np.tile(np.array(sizes, np.float64).reshape(-1, 2), 2)


def _iou_histogram(matching: Matching) -> Histogram:
    counts, _ = np.histogram(matching.iou_of_dt[matching.matched], _IOU_EDGES)
    return Histogram(edges=tuple(_IOU_EDGES.tolist()), counts=tuple(counts.tolist()))


def _map(true_M: _Floats, predicted_M: _Floats) -> CoordinateMap:
    clipped = np.clip(true_M, 0.0, 1.0), np.clip(predicted_M, 0.0, 1.0)
    counts, _, _ = np.histogram2d(*clipped, bins=(_COORDINATE_EDGES, _COORDINATE_EDGES))
    error = predicted_M - true_M
    return CoordinateMap(
        counts=tuple(tuple(row) for row in counts.astype(np.int64).tolist()),
        mean_error=float(error.mean()) if error.size else None,
        mean_abs_error=float(np.abs(error).mean()) if error.size else None,
    )


def _width_by_error(error_M4: _Floats, width_M4: _Floats) -> tuple[WidthByError, ...]:
    # The last bin is open: ground truth may reach beyond its image.
    place = np.digitize(error_M4.ravel() * NUM_BINS, _ERROR_EDGES[1:-1])
    found: list[WidthByError] = []
    for at, (low, high) in enumerate(pairwise(_ERROR_EDGES)):
        width = width_M4.ravel()[place == at]
        mean, median = (float(np.mean(width)), float(np.median(width))) if width.size else (None, None)
        found.append(WidthByError(low, high, count=int(width.size), mean_width=mean, median_width=median))
    return tuple(found)


def _categories(run: BoxRun) -> tuple[CategoryResult, ...]:
    num_gt = Counter(box.category_id for box in _ordinary(run))
    num_dt = Counter(dt.category_id for dt in run.detections)
    names = run.ground_truth.categories
    return tuple(
        CategoryResult(key, names[key], num_gt[key], num_dt[key], AP=found.AP, AP50=found.AP50)
        for key, found in run.coco.by_category().items()
    )


def _sizes(run: BoxRun) -> tuple[SizeResult, ...]:
    values = run.summary.as_dict()
    areas = [box.area_px for box in _ordinary(run)]
    return tuple(
        SizeResult(name, sum(low <= area <= high for area in areas), AP=values[f"AP_{name}"])
        for name, (low, high) in _SIZES_PX2.items()
    )


def _object_counts(run: BoxRun) -> tuple[CountResult, ...]:
    num_objects = Counter(box.image_id for box in _ordinary(run))
    found: list[CountResult] = []
    for low, high in _OBJECT_COUNTS:
        chosen = {key: n for key, n in num_objects.items() if n >= low and (high is None or n <= high)}
        ap = run.coco.on_images(chosen.keys()).average_precision() if chosen else None
        found.append(CountResult(low, high, num_images=len(chosen), num_gt=sum(chosen.values()), AP=ap))
    return tuple(found)


def _ordinary(run: BoxRun) -> list[GtBox]:
    return [box for box in run.overlaps.gt if not box.is_crowd]

"""What stands behind the numbers of one evaluation: ``analysis.json``, as frozen objects.

``{"num_images": 300, "num_gt": 702, "min_iou": 0.1, "coordinate_edges": [0.0, 0.025, ..., 1.0],
"boxes": {"argmax": BoxAnalysis, "expected": BoxAnalysis}}``. Every object is written with its
attributes as keys. ``null`` stands for what is undefined.

Legend of shapes: ``D`` detections, ``M`` pairs of detections and ground truth.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from coordexp.coord_tokens.bins import NUM_BINS
from coordexp.detection.box_evaluation import BoxEvaluation
from coordexp.detection.boxes import AREA_RANGES_PX2, OBJECT_COUNTS, Floats, to_boxes_norm_xyxy
from coordexp.detection.metrics.calibration import ScoreBin, score_bins
from coordexp.detection.precision.average_precision import AVERAGE_PRECISIONS
from coordexp.errors import DataError
from coordexp.evaluate.answers import Objects
from coordexp.files import read_model, write_json
from coordexp.metrics import BoxKind
from coordexp.runs.folder import DecodingFolder

MIN_IOU = 0.1
_IOU_EDGES = np.linspace(0.0, 1.0, 21)
_COORDINATE_EDGES = np.linspace(0.0, 1.0, 41)
_COORDINATES = ("x1", "y1", "x2", "y2")
_ERROR_EDGES = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, float(NUM_BINS))


@dataclass(frozen=True)
class IouHistogram:
    """Counts between edges: ``{"edges": [n + 1], "counts": [n]}``; the last bin holds its upper edge."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


CoordinateMap = tuple[tuple[int, ...], ...]
"""One coordinate of matched pairs: counts by the true one (rows) and the predicted one (columns), as fractions of the
side between ``coordinate_edges``; what lies outside is put at the border."""


@dataclass(frozen=True)
class WidthByError:
    """Coordinates of matched pairs whose error lies in ``[low, high)``: the standard deviations of their distributions.

    All in bins (1/1000 of the image side).
    """

    low: float
    high: float
    count: int
    mean_width: float | None


@dataclass(frozen=True)
class CategoryResult:
    """One category of the annotation file; ``num_gt`` is without crowds."""

    category_id: int
    name: str
    num_gt: int
    num_detections: int
    AP: float | None
    AP50: float | None


@dataclass(frozen=True)
class SizeResult:
    """COCO's ``small``, ``medium`` or ``large`` boxes; ``num_gt`` is without crowds."""

    name: str
    num_gt: int
    AP: float | None


@dataclass(frozen=True)
class CountResult:
    """Images with ``low`` to ``high`` (null: any more) ground-truth objects, at least one; crowds not counted."""

    low: int
    high: int | None
    num_images: int
    num_gt: int
    AP: float | None


@dataclass(frozen=True)
class BoxAnalysis:
    """The analysis of one box kind.

    Pairs are made greedily by score within image and category, at an IoU of ``min_iou`` or more.

    Attributes:
        num_matched: pairs.
        num_unmatched: detections without a pair, those on crowds not counted.
        num_missed: ground truth without a pair.
        matched_iou: histogram of the pairs' IoU, 20 bins from 0 to 1.
        coordinates: a map of each coordinate: ``x1``, ``y1``, ``x2``, ``y2`` (ordered corners).
        width_by_error: of all four coordinates together; empty where boxes have no widths, as in the text arm.
        categories: every category, in the order of their ids.
        object_counts: by the number of objects in the image: 1, 2-3, 4-7, 8 and more.
        score_bins: reliability diagram, 10 bins of the score; correct is a match at IoU .5. Empty where scores are no
            probabilities.
    """

    num_matched: int
    num_unmatched: int
    num_missed: int
    matched_iou: IouHistogram
    coordinates: Mapping[str, CoordinateMap]
    width_by_error: tuple[WidthByError, ...]
    categories: tuple[CategoryResult, ...]
    sizes: tuple[SizeResult, ...]
    object_counts: tuple[CountResult, ...]
    score_bins: tuple[ScoreBin, ...]


@dataclass(frozen=True)
class Analysis:
    """The analysis of one decoding.

    Attributes:
        num_gt: ground-truth boxes of the evaluated images that are not crowds.
        min_iou: smallest IoU of a pair.
        coordinate_edges: edges of both axes of every :class:`CoordinateMap`.
    """

    num_images: int
    num_gt: int
    min_iou: float
    coordinate_edges: tuple[float, ...]
    boxes: Mapping[BoxKind, BoxAnalysis]

    def write(self, folder: Path) -> None:
        """Write ``folder/analysis.json``."""
        write_json(DecodingFolder(folder).analysis, asdict(self))

    @classmethod
    def read(cls, path: Path) -> "Analysis":
        """Read what :meth:`write` wrote; a DataError names a file that is missing or holds something else."""
        return read_model(cls, path, what="an analysis")


def analyse_boxes(evaluated: Mapping[BoxKind, BoxEvaluation], objects: Objects | None) -> Analysis:
    """Analyse matched detections of each box kind, over the same images.

    ``objects``: the one behind each detection, in the same order; None for detections alone, of any detector.

    Raises:
        DataError: if objects and detections do not belong together, or an image has no size.
    """
    for kind, boxes in evaluated.items():
        if objects is not None and not np.array_equal(objects.image_ids, boxes.detections.image_ids):
            raise DataError(
                f"{boxes.truth.path}: {len(boxes.detections)} {kind} detections do not belong to the "
                f"{len(objects.image_ids)} objects of known categories beside them; expected files of one evaluation"
            )
    first = next(iter(evaluated.values()))
    return Analysis(
        num_images=len(first.truth.sizes_px),
        num_gt=first.pairs(MIN_IOU).num_gt,
        min_iou=MIN_IOU,
        coordinate_edges=tuple(_COORDINATE_EDGES.tolist()),
        boxes={
            kind: _analyse_boxes(boxes, None if objects is None else objects.ordered_width(kind))
            for kind, boxes in evaluated.items()
        },
    )


def _analyse_boxes(boxes: BoxEvaluation, width_D4: Floats | None) -> BoxAnalysis:
    pairs, truth = boxes.pairs(MIN_IOU), boxes.truth
    dt = np.flatnonzero(pairs.matched)
    maps: dict[str, CoordinateMap] = {}
    widths: tuple[WidthByError, ...] = ()
    if width_D4 is not None or None not in truth.sizes_px.values():  # a ground truth of others may lack sizes
        sizes_px = truth.sizes_of(boxes.detections.image_ids[dt])
        predicted = to_boxes_norm_xyxy(boxes.detections.boxes_px_xywh[dt], sizes_px)
        true = to_boxes_norm_xyxy(truth.boxes_px_xywh[pairs.gt_of_dt[dt]], sizes_px)
        maps = {name: _map(true[:, at], predicted[:, at]) for at, name in enumerate(_COORDINATES)}
        widths = () if width_D4 is None else _width_by_error(np.abs(predicted - true), width_D4[dt])
    iou_counts, _ = np.histogram(pairs.iou[dt], _IOU_EDGES)
    gt_ids, gt_areas = truth.category_ids[~truth.is_crowd], truth.areas_px2[~truth.is_crowd]
    return BoxAnalysis(
        num_matched=len(dt),
        num_unmatched=int(np.count_nonzero(~pairs.matched & ~pairs.ignored)),
        num_missed=pairs.num_gt - len(dt),
        matched_iou=IouHistogram(edges=tuple(_IOU_EDGES.tolist()), counts=tuple(iou_counts.tolist())),
        coordinates=maps,
        width_by_error=widths,
        categories=tuple(
            CategoryResult(
                key,
                truth.categories[key],
                num_gt=int(np.count_nonzero(gt_ids == key)),
                num_detections=int(np.count_nonzero(boxes.detections.category_ids == key)),
                AP=boxes.average_precision("AP", category_id=key),
                AP50=boxes.average_precision("AP50", category_id=key),
            )
            for key in sorted(truth.categories)
        ),
        sizes=tuple(
            SizeResult(
                name,
                num_gt=int(np.count_nonzero((low <= gt_areas) & (gt_areas <= high))),
                AP=boxes.average_precision(f"AP_{name}"),
            )
            for name, (low, high) in AREA_RANGES_PX2.items()
            if name != "all"
        ),
        object_counts=tuple(_on_images_with(low, high, boxes) for low, high in OBJECT_COUNTS),
        score_bins=score_bins(boxes),
    )


def _map(true_M: Floats, predicted_M: Floats) -> CoordinateMap:
    clipped = np.clip(true_M, 0.0, 1.0), np.clip(predicted_M, 0.0, 1.0)
    counts, _, _ = np.histogram2d(*clipped, bins=(_COORDINATE_EDGES, _COORDINATE_EDGES))
    return tuple(tuple(row) for row in counts.astype(np.int64).tolist())


def _width_by_error(error_M4: Floats, width_M4: Floats) -> tuple[WidthByError, ...]:
    if width_M4.size and not width_M4.any():
        return ()  # digits, which have no distribution over bins
    # The last bin is open: ground truth may reach beyond its image.
    place = np.digitize(error_M4.ravel() * NUM_BINS, _ERROR_EDGES[1:-1])
    found: list[WidthByError] = []
    for at, (low, high) in enumerate(pairwise(_ERROR_EDGES)):
        width = width_M4.ravel()[place == at]
        mean = float(np.mean(width)) if width.size else None
        found.append(WidthByError(low, high, count=int(width.size), mean_width=mean))
    return tuple(found)


def _on_images_with(low: int, high: int | None, boxes: BoxEvaluation) -> CountResult:
    image_ids, num_objects = np.unique(boxes.truth.image_ids[~boxes.truth.is_crowd], return_counts=True)
    chosen = (num_objects >= low) & (num_objects <= (np.inf if high is None else high))
    table = boxes.table_on_images(image_ids[chosen].tolist())
    num_images, num_gt = int(np.count_nonzero(chosen)), int(num_objects[chosen].sum())
    return CountResult(low, high, num_images, num_gt, AP=table.average_precision(AVERAGE_PRECISIONS["AP"]))

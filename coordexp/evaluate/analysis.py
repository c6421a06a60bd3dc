"""The details behind the numbers of one evaluation: ``analysis.json``, as frozen objects.

``{"num_images": 300, "num_gt": 702, "min_iou": 0.1, "coordinate_edges": [0.0, 0.025, ..., 1.0],
"boxes": {"argmax": BoxAnalysis, "expected": BoxAnalysis}}``. Every object is written with its
attributes as keys. An undefined value is ``null``.

Shapes: ``D`` detections, ``M`` pairs of a detection and ground truth.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from coordexp.coord_tokens.bins import NUM_BINS
from coordexp.detection.box_evaluation import MatchedBoxes
from coordexp.detection.boxes import AREA_RANGES_PX2, OBJECT_COUNTS, Floats, to_boxes_norm_xyxy
from coordexp.detection.metrics.calibration import ScoreBin, score_bins
from coordexp.detection.precision.average_precision import AVERAGE_PRECISIONS
from coordexp.errors import DataError
from coordexp.evaluate.answers import Objects
from coordexp.files import read_model, write_json
from coordexp.metrics import BoxKind
from coordexp.runs.folder import DecodingFolder

MIN_IOU = 0.1  # of a pair: low, so that badly placed boxes are analysed too
_IOU_EDGES = np.linspace(0.0, 1.0, 21)
_COORDINATE_EDGES = np.linspace(0.0, 1.0, 41)
_COORDINATES = ("x1", "y1", "x2", "y2")
_ERROR_EDGES = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, float(NUM_BINS))  # in bins


@dataclass(frozen=True)
class IouHistogram:
    """Counts between edges: ``{"edges": [n + 1], "counts": [n]}``; the last bin holds its upper edge."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


CoordinateMap = tuple[tuple[int, ...], ...]
"""One coordinate of matched pairs: counts by its true value (rows) and its predicted value (columns), as fractions of
the side between ``coordinate_edges``. A coordinate outside the image is counted at the border."""


@dataclass(frozen=True)
class WidthByError:
    """Mean standard deviation of the distributions of coordinates whose error is in ``[low, high)``.

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
    """Images with ``low`` to ``high`` ground-truth objects (null: no upper limit), without crowds."""

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
        num_matched: number of pairs.
        num_unmatched: detections without a pair; detections on crowds do not count.
        num_missed: ground truth without a pair.
        matched_iou: histogram of the pairs' IoU, 20 bins from 0 to 1.
        coordinates: a map for each coordinate: ``x1``, ``y1``, ``x2``, ``y2`` (ordered corners).
        width_by_error: over all four coordinates together; empty if boxes have no widths, as in the text arm.
        categories: every category, in the order of their ids.
        object_counts: by the number of objects in the image: 1, 2-3, 4-7, 8 and more.
        score_bins: reliability diagram, 10 bins of the score; correct is a match at IoU .5. Empty if scores are no
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
        """Read what :meth:`write` wrote.

        Raises:
            DataError: if the file is missing or holds something else.
        """
        return read_model(cls, path, what="an analysis")


def analyse_boxes(evaluated: Mapping[BoxKind, MatchedBoxes], objects: Objects | None) -> Analysis:
    """Analyse matched detections of each box kind, over the same images.

    Args:
        evaluated: detections and ground truth by box kind.
        objects: the object behind each detection, in the same order; None for a file of detections alone.

    Raises:
        DataError: if objects and detections do not belong together, or an image has no size.
    """
    for kind, boxes in evaluated.items():
        if objects is not None and not np.array_equal(objects.image_ids, boxes.detections.image_ids):
            raise DataError(
                f"{boxes.truth.path}: {len(boxes.detections)} {kind} detections do not belong to the "
                f"{len(objects.image_ids)} objects of known categories beside them; expected files of one evaluation"
            )
    analyses: dict[BoxKind, BoxAnalysis] = {}
    for kind, boxes in evaluated.items():
        width_D4 = None if objects is None else objects.ordered_width(kind)
        analyses[kind] = _analyse_boxes(boxes, width_D4)
    first = next(iter(evaluated.values()))
    return Analysis(
        num_images=len(first.truth.sizes_px),
        num_gt=first.pairs(MIN_IOU).num_gt,
        min_iou=MIN_IOU,
        coordinate_edges=tuple(_COORDINATE_EDGES.tolist()),
        boxes=analyses,
    )


def _analyse_boxes(boxes: MatchedBoxes, width_D4: Floats | None) -> BoxAnalysis:
    truth = boxes.truth
    pairs = boxes.pairs(MIN_IOU)
    matched = np.flatnonzero(pairs.matched)
    maps: dict[str, CoordinateMap] = {}
    widths: tuple[WidthByError, ...] = ()
    has_sizes = None not in truth.sizes_px.values()  # a user's own ground truth may lack them
    if width_D4 is not None or has_sizes:
        sizes_px = truth.sizes_of(boxes.detections.image_ids[matched])
        predicted_M4 = to_boxes_norm_xyxy(boxes.detections.boxes_px_xywh[matched], sizes_px)
        true_M4 = to_boxes_norm_xyxy(truth.boxes_px_xywh[pairs.gt_of_dt[matched]], sizes_px)
        maps = {name: _map(true_M4[:, axis], predicted_M4[:, axis]) for axis, name in enumerate(_COORDINATES)}
        if width_D4 is not None:
            widths = _width_by_error(np.abs(predicted_M4 - true_M4), width_D4[matched])
    iou_counts, _ = np.histogram(pairs.iou[matched], _IOU_EDGES)
    return BoxAnalysis(
        num_matched=len(matched),
        num_unmatched=int(np.count_nonzero(~pairs.matched & ~pairs.ignored)),
        num_missed=pairs.num_gt - len(matched),
        matched_iou=IouHistogram(edges=tuple(_IOU_EDGES.tolist()), counts=tuple(iou_counts.tolist())),
        coordinates=maps,
        width_by_error=widths,
        categories=_by_category(boxes),
        sizes=_by_size(boxes),
        object_counts=tuple(_on_images_with(low, high, boxes) for low, high in OBJECT_COUNTS),
        score_bins=score_bins(boxes),
    )


def _by_category(boxes: MatchedBoxes) -> tuple[CategoryResult, ...]:
    truth = boxes.truth
    gt_categories = truth.category_ids[~truth.is_crowd]
    results: list[CategoryResult] = []
    for category_id in sorted(truth.categories):
        result = CategoryResult(
            category_id,
            truth.categories[category_id],
            num_gt=int(np.count_nonzero(gt_categories == category_id)),
            num_detections=int(np.count_nonzero(boxes.detections.category_ids == category_id)),
            AP=boxes.average_precision("AP", category_id=category_id),
            AP50=boxes.average_precision("AP50", category_id=category_id),
        )
        results.append(result)
    return tuple(results)


def _by_size(boxes: MatchedBoxes) -> tuple[SizeResult, ...]:
    gt_areas = boxes.truth.areas_px2[~boxes.truth.is_crowd]
    results: list[SizeResult] = []
    for name, (low, high) in AREA_RANGES_PX2.items():
        if name == "all":
            continue
        num_gt = int(np.count_nonzero((low <= gt_areas) & (gt_areas <= high)))
        results.append(SizeResult(name, num_gt, AP=boxes.average_precision(f"AP_{name}")))
    return tuple(results)


def _map(true_M: Floats, predicted_M: Floats) -> CoordinateMap:
    counts, _, _ = np.histogram2d(
        np.clip(true_M, 0.0, 1.0), np.clip(predicted_M, 0.0, 1.0), bins=(_COORDINATE_EDGES, _COORDINATE_EDGES)
    )
    return tuple(tuple(row) for row in counts.astype(np.int64).tolist())


def _width_by_error(error_M4: Floats, width_M4: Floats) -> tuple[WidthByError, ...]:
    if width_M4.size and not width_M4.any():
        return ()  # written in digits, which have no distribution over bins
    # The last bin is open: ground truth may reach beyond its image.
    error_bins = np.digitize(error_M4.ravel() * NUM_BINS, _ERROR_EDGES[1:-1])
    results: list[WidthByError] = []
    for number, (low, high) in enumerate(pairwise(_ERROR_EDGES)):
        widths = width_M4.ravel()[error_bins == number]
        mean_width = float(np.mean(widths)) if widths.size else None
        results.append(WidthByError(low, high, count=int(widths.size), mean_width=mean_width))
    return tuple(results)


def _on_images_with(low: int, high: int | None, boxes: MatchedBoxes) -> CountResult:
    """Measure AP on the images with ``low`` to ``high`` ground-truth objects; None for no upper limit."""
    image_ids, num_objects = np.unique(boxes.truth.image_ids[~boxes.truth.is_crowd], return_counts=True)
    is_chosen = num_objects >= low
    if high is not None:
        is_chosen &= num_objects <= high
    table = boxes.table_on_images(image_ids[is_chosen].tolist())
    return CountResult(
        low,
        high,
        num_images=int(np.count_nonzero(is_chosen)),
        num_gt=int(num_objects[is_chosen].sum()),
        AP=table.average_precision(AVERAGE_PRECISIONS["AP"]),
    )

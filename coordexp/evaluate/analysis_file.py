"""What stands behind the numbers of one evaluation: ``analysis.json``, as frozen objects.

``{"num_images": 300, "num_gt": 702, "min_iou": 0.1, "coordinate_edges": [0.0, 0.025, ..., 1.0],
"boxes": {"argmax": BoxAnalysis, "expected": BoxAnalysis}}``. Every object is written with its
attributes as keys. ``null`` stands for what is undefined. The file is made from the annotation file
and the folder of an evaluation alone; :func:`coordexp.evaluate.analysis.analyse` makes it again.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from coordexp.detection.metrics.calibration import ScoreBin
from coordexp.files import read_model, write_json
from coordexp.metrics import BoxKind
from coordexp.runs.folder import DecodingFolder


@dataclass(frozen=True)
class IouHistogram:
    """Counts between edges: ``{"edges": [n + 1], "counts": [n]}``; the last bin holds its upper edge."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class CoordinateMap:
    """One coordinate of matched pairs, predicted against true.

    Attributes:
        counts: rows by the true coordinate, columns by the predicted one, both between
            ``coordinate_edges`` (fractions of the image side; what lies outside is put at the border).
        mean_error: mean of predicted - true, as a fraction of the image side.
        mean_abs_error: mean of its absolute value.
    """

    counts: tuple[tuple[int, ...], ...]
    mean_error: float | None
    mean_abs_error: float | None


@dataclass(frozen=True)
class WidthByError:
    """Coordinates of matched pairs whose error lies in ``[low, high)`` bins (1/1000 of the image side).

    Attributes:
        low: lower end, in bins.
        high: upper end, in bins.
        count: coordinates.
        mean_width: mean standard deviation of their distributions, in bins.
        median_width: median of the same.
    """

    low: float
    high: float
    count: int
    mean_width: float | None
    median_width: float | None


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
    """Images with ``low`` to ``high`` (null: any more) ground-truth objects, crowds not counted.

    Images without any object are in none of them.
    """

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
        width_by_error: of all four coordinates together.
        categories: every category, in the order of their ids.
        sizes: small, medium, large.
        object_counts: by the number of objects in the image: 1, 2-3, 4-7, 8 and more.
        score_bins: reliability diagram, 10 bins of the score; correct is a match at IoU .5.
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
        num_images: evaluated images.
        num_gt: their ground-truth boxes that are not crowds.
        min_iou: smallest IoU of a pair.
        coordinate_edges: edges of both axes of every :class:`CoordinateMap`.
        boxes: ``argmax`` and ``expected``.
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

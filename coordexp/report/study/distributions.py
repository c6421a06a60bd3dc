"""Distributions over the coord bins of chosen objects, as curves: what each loss makes of the same edge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coordexp.coord_tokens.bins import NUM_BINS, encode_array
from coordexp.detection.categories import CategoryIndex
from coordexp.detection.coco_files import BoxPxXywh, GroundTruth, GtBox, read_ground_truth
from coordexp.detection.overlap_score import iou

if TYPE_CHECKING:
    from coordexp.evaluate.distributions import Distributions, ObjectCurves

COORDINATES = ("x1", "y1", "x2", "y2")
_MIN_IOU = 0.3


@dataclass(frozen=True)
class CoordCurve:
    """One coordinate of one object in one group.

    Attributes:
        bins: bins in ascending order; what is left out has no probability worth drawing.
        probabilities: of those bins, within the coord vocabulary; at least one.
        expected: mean of the distribution, in bins.
    """

    bins: tuple[int, ...]
    probabilities: tuple[float, ...]
    expected: float

    @property
    def mode(self) -> int:
        """The most probable bin."""
        return self.bins[self.probabilities.index(max(self.probabilities))]


@dataclass(frozen=True)
class CoordCurves:
    """One coordinate of one object in every group.

    Attributes:
        image_id: the image.
        desc: the object's category.
        coordinate: ``x1``, ``y1``, ``x2`` or ``y2``.
        true_bin: where the ground truth is.
        by_group: a curve for each group.
    """

    image_id: int
    desc: str
    coordinate: str
    true_bin: int
    by_group: Mapping[str, CoordCurve]

    @property
    def distance(self) -> float:
        """Largest total variation distance between two groups, in [0, 1]."""
        curves = [dict(zip(curve.bins, curve.probabilities, strict=True)) for curve in self.by_group.values()]
        return max(
            (
                sum(abs(a.get(k, 0.0) - b.get(k, 0.0)) for k in a.keys() | b.keys()) / 2
                for i, a in enumerate(curves)
                for b in curves[:i]
            ),
            default=0.0,
        )


def choose_curves(
    annotations: Path, files: Mapping[str, Path], *, aliases: Mapping[str, str], count: int = 6
) -> tuple[CoordCurves, ...]:
    """Choose edges of objects that every group found, from where groups differ most to where they differ least.

    Of every object the edge is taken on which the groups differ most; of every image one object at most.

    Args:
        annotations: the split's annotation file, with image sizes.
        files: ``distributions.json`` by group.
        aliases: further descriptions -> category names, as in the evaluation.
        count: how many at most.

    Raises:
        DataError: if a file is malformed.
    """
    if not files:
        return ()
    # Here: it brings torch and transformers, which a report from its cache does without.
    from coordexp.evaluate.distributions import Distributions

    truth = read_ground_truth(annotations)
    categories = CategoryIndex(truth.categories, aliases=aliases)
    found = {group: _by_image(Distributions.read(path)) for group, path in files.items()}
    shared = set[int].intersection(*(set(images) for images in found.values()))
    best: dict[int, CoordCurves] = {}
    for gt in truth.boxes:
        if gt.image_id not in shared or gt.is_crowd:
            continue
        objects = {group: _object_on(gt, images[gt.image_id], truth, categories) for group, images in found.items()}
        there = {group: item for group, item in objects.items() if item is not None}
        if len(there) < len(files):
            continue
        for edge in _edges(gt, there, truth):
            if gt.image_id not in best or edge.distance > best[gt.image_id].distance:
                best[gt.image_id] = edge
    ranked = sorted(best.values(), key=lambda edge: (-edge.distance, edge.image_id))
    return tuple(_spread(ranked, count))


def _by_image(distributions: "Distributions") -> "dict[int, Sequence[ObjectCurves]]":
    return {image.image_id: image.objects for image in distributions.images}


def _object_on(
    gt: GtBox, objects: "Sequence[ObjectCurves]", truth: GroundTruth, categories: CategoryIndex
) -> "ObjectCurves | None":
    """Return the object of the same category that overlaps a ground-truth box most, if it does at all."""
    size = truth.sizes_px[gt.image_id]
    if size is None:
        return None
    scored = [
        (iou(gt.box_px_xywh, _box_px(item, size)), -index)
        for index, item in enumerate(objects)
        if categories.find(item.desc) == gt.category_id and all(curve.units for curve in item.curves)
    ]
    overlap, index = max(scored, default=(0.0, 0))
    return objects[-index] if overlap >= _MIN_IOU else None


def _edges(gt: GtBox, objects: "Mapping[str, ObjectCurves]", truth: GroundTruth) -> list[CoordCurves]:
    size = truth.sizes_px[gt.image_id]
    assert size is not None
    x, y, w, h = gt.box_px_xywh
    corners = [x / size[0], y / size[1], (x + w) / size[0], (y + h) / size[1]]
    true_bins = encode_array([min(max(corner, 0.0), 1.0) for corner in corners]).tolist()
    return [
        CoordCurves(
            image_id=gt.image_id,
            desc=truth.categories[gt.category_id],
            coordinate=name,
            true_bin=true_bins[at],
            by_group={group: _curve(item, at) for group, item in objects.items()},
        )
        for at, name in enumerate(COORDINATES)
    ]


def _curve(item: "ObjectCurves", at: int) -> CoordCurve:
    curve = item.curves[at]
    total = sum(curve.units)
    return CoordCurve(
        bins=tuple(range(curve.start, curve.start + len(curve.units))),
        probabilities=tuple(unit / total for unit in curve.units),
        expected=item.expected[at] * NUM_BINS,
    )


def _box_px(item: "ObjectCurves", size_px: tuple[int, int]) -> BoxPxXywh:
    x1, y1, x2, y2 = item.expected
    width, height = size_px
    return min(x1, x2) * width, min(y1, y2) * height, abs(x2 - x1) * width, abs(y2 - y1) * height


def _spread(ranked: Sequence[CoordCurves], count: int) -> list[CoordCurves]:
    """Take some evenly, the first and the last among them."""
    if len(ranked) <= count:
        return list(ranked)
    return [ranked[round(index * (len(ranked) - 1) / (count - 1))] for index in range(count)]

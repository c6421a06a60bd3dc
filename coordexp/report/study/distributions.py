"""Distributions over the coord bins of chosen objects, as curves: what each loss makes of the same edge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from coordexp.config.trees import value_at
from coordexp.coord_tokens.bins import NUM_BINS, encode_array
from coordexp.detection.boxes import iou_table, to_boxes_norm_xyxy, to_boxes_px_xywh
from coordexp.detection.categories import CategoryIndex
from coordexp.detection.ground_truth import GroundTruth, read_ground_truth
from coordexp.evaluate.distributions import Distributions, ObjectCurves
from coordexp.report.study.about import writes_digits
from coordexp.report.study.artifacts import FINAL_CONSTRAINED, Artifacts
from coordexp.report.study.cache import StatisticsCache, content_key
from coordexp.report.study.data import RunData, by_group

COORDINATES = ("x1", "y1", "x2", "y2")
_MIN_IOU = 0.3


@dataclass(frozen=True)
class BinProbabilities:
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
class EdgeDistributions:
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
    by_group: Mapping[str, BinProbabilities]

    @property
    def distance(self) -> float:
        """Largest total variation distance between two groups, in [0, 1]."""
        dense = np.zeros((len(self.by_group), NUM_BINS))
        for row, curve in zip(dense, self.by_group.values(), strict=True):
            row[list(curve.bins)] = curve.probabilities
        return max((float(np.abs(a - b).sum()) / 2 for a, b in combinations(dense, 2)), default=0.0)


_CURVES = TypeAdapter(tuple[EdgeDistributions, ...])


def group_curves(
    runs: Sequence[RunData], annotations: Path, *, artifacts: Artifacts, cache: StatisticsCache
) -> tuple[tuple[EdgeDistributions, ...], list[str]]:
    """Return coord distributions of chosen edges, and a sentence on groups that have none.

    Each group's first run is shown. A text arm has no distribution over bins.

    Raises:
        DataError: if a file is malformed.
    """
    every = {group: members[0] for group, members in by_group(runs).items()}
    first = {group: run for group, run in every.items() if not writes_digits(run, artifacts)}
    files = {
        group: path
        for group, run in first.items()
        if (path := artifacts.file(run, FINAL_CONSTRAINED.distributions)) is not None
    }
    lacking = [group for group in first if group not in files]
    missing = (
        [f"Coordinate distributions of {', '.join(lacking)}: their first runs have not kept any."] if lacking else []
    )
    given = value_at(artifacts.config(runs[0]), "evaluation.aliases") if runs else None
    aliases = {str(key): str(value) for key, value in given.items()} if isinstance(given, dict) else {}
    key = content_key([("annotations", annotations), *files.items()], aliases)
    return cache.get("curves", key, _CURVES, lambda: choose_curves(annotations, files, aliases=aliases)), missing


def choose_curves(
    annotations: Path, files: Mapping[str, Path], *, aliases: Mapping[str, str], count: int = 6
) -> tuple[EdgeDistributions, ...]:
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
    truth = read_ground_truth(annotations)
    categories = CategoryIndex(truth.categories, aliases=aliases)
    found = {
        group: {image.image_id: image.objects for image in Distributions.read(path).images}
        for group, path in files.items()
    }
    shared = set[int].intersection(*(set(images) for images in found.values()))
    best: dict[int, EdgeDistributions] = {}
    for row in np.flatnonzero(~truth.is_crowd).tolist():
        image_id = int(truth.image_ids[row])
        if image_id not in shared:
            continue
        objects = {group: _object_on(row, images[image_id], truth, categories) for group, images in found.items()}
        there = {group: item for group, item in objects.items() if item is not None}
        if len(there) < len(files):
            continue
        for edge in _edges(row, there, truth):
            if image_id not in best or edge.distance > best[image_id].distance:
                best[image_id] = edge
    ranked = sorted(best.values(), key=lambda edge: (-edge.distance, edge.image_id))
    if len(ranked) <= count:
        return tuple(ranked)
    return tuple(ranked[round(at * (len(ranked) - 1) / (count - 1))] for at in range(count))


def _object_on(
    row: int, objects: Sequence[ObjectCurves], truth: GroundTruth, categories: CategoryIndex
) -> ObjectCurves | None:
    """Return the object of the same category that overlaps a ground-truth box most, if it does at all."""
    size = truth.sizes_px[int(truth.image_ids[row])]
    if size is None:
        return None
    alike = [
        item
        for item in objects
        if categories.find(item.desc) == truth.category_ids[row] and all(curve.units for curve in item.curves)
    ]
    if not alike:
        return None
    boxes = to_boxes_px_xywh(np.array([item.expected for item in alike]), np.array([size], np.float64))
    overlaps = iou_table(truth.boxes_px_xywh[row : row + 1], boxes)[0]
    best = int(overlaps.argmax())
    return alike[best] if overlaps[best] >= _MIN_IOU else None


def _edges(row: int, objects: Mapping[str, ObjectCurves], truth: GroundTruth) -> list[EdgeDistributions]:
    image_id = int(truth.image_ids[row])
    sizes_px = truth.sizes_of(truth.image_ids[row : row + 1])
    corners = to_boxes_norm_xyxy(truth.boxes_px_xywh[row : row + 1], sizes_px)[0]
    true_bins = encode_array(np.clip(corners, 0.0, 1.0)).tolist()
    found: list[EdgeDistributions] = []
    for at, name in enumerate(COORDINATES):
        by_group: dict[str, BinProbabilities] = {}
        for group, item in objects.items():
            curve, total = item.curves[at], sum(item.curves[at].units)
            bins = tuple(range(curve.start, curve.start + len(curve.units)))
            probabilities = tuple(unit / total for unit in curve.units)
            by_group[group] = BinProbabilities(bins, probabilities, expected=item.expected[at] * NUM_BINS)
        category = truth.categories[int(truth.category_ids[row])]
        found.append(EdgeDistributions(image_id, category, name, true_bins[at], by_group))
    return found

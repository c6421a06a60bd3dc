"""Examples: pictures with boxes where groups differ most, and edges of objects with each group's distribution."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from PIL import Image

from coordexp.coord_tokens.bins import NUM_BINS, encode_array
from coordexp.data.images.pixels import read_image
from coordexp.detection.boxes import iou_table, to_boxes_norm_xyxy, to_boxes_px_xywh
from coordexp.detection.detections import Detections, read_detections
from coordexp.detection.ground_truth import BoxPxXywh, GroundTruth, read_ground_truth
from coordexp.detection.matching.overlap import overlap_scores
from coordexp.detection.names.categories import CategoryIndex
from coordexp.errors import DataError
from coordexp.evaluate.distributions import Distributions, ObjectCurves

MAX_SIDE_PX = 448
_JPEG_QUALITY = 72
_MAX_BOXES = 100
_MIN_IOU = 0.3


@dataclass(frozen=True)
class GalleryBox:
    """A box as it is drawn; ``score`` is None for ground truth."""

    box_px_xywh: BoxPxXywh
    category: str
    score: float | None = None


@dataclass(frozen=True)
class GalleryImage:
    """One picture; boxes are in pixels of the original, as are its sides."""

    image_id: int
    width: int
    height: int
    picture: str  # as a data URI, or "" where the file is not on this machine
    truth: tuple[GalleryBox, ...]
    boxes: Mapping[str, tuple[GalleryBox, ...]]  # by group, highest score first
    overlap: Mapping[str, float]  # by group, :func:`coordexp.detection.matching.overlap.overlap_scores`


def make_gallery(
    annotations: Path, detections: Mapping[str, Path], images: Mapping[int, Path], *, count: int = 24
) -> tuple[GalleryImage, ...]:
    """Choose and draw images: the largest change between groups first, then the lower image id.

    ``detections`` are a file by group; an image file (by id) that is missing or broken gives boxes without a picture.
    """
    if not detections:
        return ()
    truth = read_ground_truth(annotations)
    found = {group: read_detections(path, truth) for group, path in detections.items()}
    scores = {group: overlap_scores(truth, boxes) for group, boxes in found.items()}
    overlaps = {image_id: {group: scores[group][image_id] for group in found} for image_id in truth.sizes_px}
    ranked = sorted(overlaps, key=lambda at: (min(overlaps[at].values()) - max(overlaps[at].values()), at))
    gallery: list[GalleryImage] = []
    for image_id in ranked[:count]:
        picture, size = _picture(images.get(image_id))
        width, height = truth.sizes_px[image_id] or size
        own = truth.on_images([image_id])
        objects = zip(own.boxes_px_xywh.tolist(), own.category_ids.tolist(), own.is_crowd.tolist(), strict=True)
        true = tuple(
            GalleryBox((x, y, w, h), truth.categories[key]) for (x, y, w, h), key, crowd in objects if not crowd
        )
        drawn = {group: _drawn(boxes.on_images([image_id]), truth.categories) for group, boxes in found.items()}
        gallery.append(GalleryImage(image_id, width, height, picture, true, drawn, overlaps[image_id]))
    return tuple(gallery)


def _drawn(boxes: Detections, names: Mapping[int, str]) -> tuple[GalleryBox, ...]:
    best = boxes.rows(np.argsort(-boxes.scores, kind="stable")[:_MAX_BOXES])
    rows = zip(best.boxes_px_xywh.tolist(), best.category_ids.tolist(), best.scores.tolist(), strict=True)
    return tuple(GalleryBox((x, y, w, h), names[category_id], score) for (x, y, w, h), category_id, score in rows)


def _picture(path: Path | None) -> tuple[str, tuple[int, int]]:
    """Return a data URI and the original's size; "" and a unit square where there is no picture."""
    if path is None:
        return "", (1, 1)
    try:
        image = read_image(path)
    except DataError:
        return "", (1, 1)
    size = image.size
    image.thumbnail((MAX_SIDE_PX, MAX_SIDE_PX), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, format="JPEG", quality=_JPEG_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii"), size


@dataclass(frozen=True)
class BinProbabilities:
    """One coordinate of one object in one group."""

    bins: tuple[int, ...]  # ascending; what is left out has no probability worth drawing
    probabilities: tuple[float, ...]  # of those bins, within the coord vocabulary; at least one
    expected: float  # mean of the distribution, in bins

    @property
    def mode(self) -> int:
        return self.bins[self.probabilities.index(max(self.probabilities))]


@dataclass(frozen=True)
class EdgeDistributions:
    """One coordinate (``x1``, ``y1``, ``x2`` or ``y2``) of one object in every group."""

    image_id: int
    desc: str  # the object's category
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


def choose_curves(
    annotations: Path, files: Mapping[str, Path], *, aliases: Mapping[str, str], count: int = 6
) -> tuple[EdgeDistributions, ...]:
    """Choose edges of objects that every group found, from where groups differ most to where they differ least.

    Of every object the edge is taken on which the groups differ most; of every image one object at most. ``files`` are
    ``distributions.json`` by group, ``aliases`` further descriptions -> category names, as in the evaluation.
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
    size, category = truth.sizes_px[int(truth.image_ids[row])], truth.category_ids[row]
    alike = [it for it in objects if categories.find(it.desc) == category and all(curve.units for curve in it.curves)]
    if size is None or not alike:
        return None
    boxes = to_boxes_px_xywh(np.array([item.expected for item in alike]), np.array([size], np.float64))
    overlaps = iou_table(truth.boxes_px_xywh[row : row + 1], boxes)[0]
    best = int(overlaps.argmax())
    return alike[best] if overlaps[best] >= _MIN_IOU else None


def _edges(row: int, objects: Mapping[str, ObjectCurves], truth: GroundTruth) -> list[EdgeDistributions]:
    sizes_px = truth.sizes_of(truth.image_ids[row : row + 1])
    corners = to_boxes_norm_xyxy(truth.boxes_px_xywh[row : row + 1], sizes_px)[0]
    true_bins = encode_array(np.clip(corners, 0.0, 1.0)).tolist()
    image_id, category = int(truth.image_ids[row]), truth.categories[int(truth.category_ids[row])]
    found: list[EdgeDistributions] = []
    for at, name in enumerate(("x1", "y1", "x2", "y2")):
        by_group: dict[str, BinProbabilities] = {}
        for group, item in objects.items():
            curve, total = item.curves[at], sum(item.curves[at].units)
            bins = tuple(range(curve.start, curve.start + len(curve.units)))
            probabilities = tuple(unit / total for unit in curve.units)
            by_group[group] = BinProbabilities(bins, probabilities, expected=item.expected[at] * NUM_BINS)
        found.append(EdgeDistributions(image_id, category, name, true_bins[at], by_group))
    return found

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

    Args:
        annotations: the ground truth.
        detections: a file by group.
        images: image files by id; one that is missing or broken gives boxes without a picture.
        count: of images, at most.
    """
    if not detections:
        return ()
    truth = read_ground_truth(annotations)
    boxes_by_group = {group: read_detections(path, truth) for group, path in detections.items()}
    scores_by_group = {group: overlap_scores(truth, boxes) for group, boxes in boxes_by_group.items()}
    overlaps = {
        image_id: {group: scores[image_id] for group, scores in scores_by_group.items()} for image_id in truth.sizes_px
    }

    def rank(image_id: int) -> tuple[float, int]:
        values = overlaps[image_id].values()
        return min(values) - max(values), image_id

    gallery: list[GalleryImage] = []
    for image_id in sorted(overlaps, key=rank)[:count]:
        picture, picture_size = _picture(images.get(image_id))
        width, height = truth.sizes_px[image_id] or picture_size
        drawn = {
            group: _drawn_boxes(boxes.on_images([image_id]), truth.categories)
            for group, boxes in boxes_by_group.items()
        }
        truth_boxes = _truth_boxes(truth.on_images([image_id]))
        gallery.append(GalleryImage(image_id, width, height, picture, truth_boxes, drawn, overlaps[image_id]))
    return tuple(gallery)


def _truth_boxes(truth: GroundTruth) -> tuple[GalleryBox, ...]:
    """Return the boxes of the objects of some images, without crowds."""
    rows = zip(truth.boxes_px_xywh.tolist(), truth.category_ids.tolist(), truth.is_crowd.tolist(), strict=True)
    return tuple(
        GalleryBox((x, y, width, height), truth.categories[category_id])
        for (x, y, width, height), category_id, is_crowd in rows
        if not is_crowd
    )


def _drawn_boxes(boxes: Detections, names: Mapping[int, str]) -> tuple[GalleryBox, ...]:
    """Return the boxes with the highest scores, from the highest on."""
    best = boxes.rows(np.argsort(-boxes.scores, kind="stable")[:_MAX_BOXES])
    rows = zip(best.boxes_px_xywh.tolist(), best.category_ids.tolist(), best.scores.tolist(), strict=True)
    return tuple(
        GalleryBox((x, y, width, height), names[category_id], score)
        for (x, y, width, height), category_id, score in rows
    )


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

    Of every object the edge is taken on which the groups differ most; of every image one object at most.

    Args:
        annotations: the ground truth.
        files: ``distributions.json`` by group.
        aliases: further descriptions -> category names, as in the evaluation.
        count: of edges, at most.
    """
    if not files:
        return ()
    truth = read_ground_truth(annotations)
    categories = CategoryIndex(truth.categories, aliases=aliases)
    objects_by_group = {
        group: {image.image_id: image.objects for image in Distributions.read(path).images}
        for group, path in files.items()
    }
    shared_images = set[int].intersection(*(set(images) for images in objects_by_group.values()))
    best_edges: dict[int, EdgeDistributions] = {}  # by image
    for row in np.flatnonzero(~truth.is_crowd).tolist():
        image_id = int(truth.image_ids[row])
        if image_id not in shared_images:
            continue
        matched: dict[str, ObjectCurves] = {}
        for group, images in objects_by_group.items():
            match = _object_on(row, images[image_id], truth, categories)
            if match is not None:
                matched[group] = match
        if len(matched) < len(files):
            continue  # some group has missed the object
        for edge in _edges(row, matched, truth):
            if image_id not in best_edges or edge.distance > best_edges[image_id].distance:
                best_edges[image_id] = edge

    ranked = sorted(best_edges.values(), key=lambda edge: (-edge.distance, edge.image_id))
    if len(ranked) <= count:
        return tuple(ranked)
    places = [round(number * (len(ranked) - 1) / (count - 1)) for number in range(count)]
    return tuple(ranked[place] for place in places)


def _object_on(
    row: int, objects: Sequence[ObjectCurves], truth: GroundTruth, categories: CategoryIndex
) -> ObjectCurves | None:
    """Return the object of the same category that overlaps a ground-truth box most.

    None if there is none of that category, if it overlaps too little, or if the size of the image is not known.
    """
    size_px = truth.sizes_px[int(truth.image_ids[row])]
    category_id = truth.category_ids[row]
    candidates = [
        candidate
        for candidate in objects
        if categories.find(candidate.desc) == category_id and all(curve.units for curve in candidate.curves)
    ]
    if size_px is None or not candidates:
        return None
    expected = np.array([candidate.expected for candidate in candidates])
    boxes = to_boxes_px_xywh(expected, np.array([size_px], np.float64))
    overlaps = iou_table(truth.boxes_px_xywh[row : row + 1], boxes)[0]
    best = int(overlaps.argmax())
    return candidates[best] if overlaps[best] >= _MIN_IOU else None


def _edges(row: int, objects: Mapping[str, ObjectCurves], truth: GroundTruth) -> list[EdgeDistributions]:
    """Return the four edges of a ground-truth box, each with the distribution of the matched object of each group."""
    sizes_px = truth.sizes_of(truth.image_ids[row : row + 1])
    corners = to_boxes_norm_xyxy(truth.boxes_px_xywh[row : row + 1], sizes_px)[0]
    true_bins = encode_array(np.clip(corners, 0.0, 1.0)).tolist()
    image_id = int(truth.image_ids[row])
    category = truth.categories[int(truth.category_ids[row])]
    edges: list[EdgeDistributions] = []
    for slot, name in enumerate(("x1", "y1", "x2", "y2")):
        by_group: dict[str, BinProbabilities] = {}
        for group, matched in objects.items():
            curve = matched.curves[slot]
            total = sum(curve.units)
            bins = tuple(range(curve.start, curve.start + len(curve.units)))
            probabilities = tuple(unit / total for unit in curve.units)
            by_group[group] = BinProbabilities(bins, probabilities, expected=matched.expected[slot] * NUM_BINS)
        edges.append(EdgeDistributions(image_id, category, name, true_bins[slot], by_group))
    return edges

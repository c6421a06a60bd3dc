"""The images on which groups differ most, as small pictures with the boxes of ground truth and of every group."""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from coordexp.data.image_file import read_image
from coordexp.detection.detections import Detections, read_detections
from coordexp.detection.ground_truth import BoxPxXywh, GroundTruth, read_ground_truth
from coordexp.detection.matching import overlap_scores
from coordexp.errors import DataError

MAX_SIDE_PX = 448
_JPEG_QUALITY = 72
_MAX_BOXES = 100


@dataclass(frozen=True)
class GalleryBox:
    """A box as it is drawn; ``score`` is None for ground truth."""

    box_px_xywh: BoxPxXywh
    category: str
    score: float | None = None


@dataclass(frozen=True)
class GalleryImage:
    """One picture.

    Attributes:
        width: of the original, in pixels, in which boxes are too.
        picture: the picture as a data URI, or "" where the file is not on this machine.
        boxes: detections by group, highest score first.
        overlap: how well each group's boxes overlap the ground truth, see
            :func:`coordexp.detection.matching.overlap_scores`.
    """

    image_id: int
    width: int
    height: int
    picture: str
    truth: tuple[GalleryBox, ...]
    boxes: Mapping[str, tuple[GalleryBox, ...]]
    overlap: Mapping[str, float]

    @property
    def change(self) -> float:
        """The largest difference of overlap between two groups."""
        return max(self.overlap.values()) - min(self.overlap.values())


def make_gallery(
    annotations: Path, detections: Mapping[str, Path], images: Mapping[int, Path], *, count: int = 24
) -> tuple[GalleryImage, ...]:
    """Choose and draw images: the largest change between groups first, then the lower image id.

    Args:
        annotations: the split's annotation file.
        detections: by group, one file in COCO's results format.
        images: image files by id; one that is missing or broken gives boxes without a picture.
        count: how many at most.

    Raises:
        DataError: if annotations or detections are malformed.
    """
    if not detections:
        return ()
    truth = read_ground_truth(annotations)
    found = {group: read_detections(path, truth) for group, path in detections.items()}
    scores = {group: overlap_scores(truth, boxes) for group, boxes in found.items()}
    overlaps = {image_id: {group: scores[group][image_id] for group in found} for image_id in truth.sizes_px}
    ranked = sorted(
        overlaps, key=lambda image_id: (min(overlaps[image_id].values()) - max(overlaps[image_id].values()), image_id)
    )
    return tuple(
        _gallery_image(image_id, truth, found, overlaps[image_id], images.get(image_id)) for image_id in ranked[:count]
    )


def _gallery_image(
    image_id: int,
    truth: GroundTruth,
    found: Mapping[str, Detections],
    overlap: Mapping[str, float],
    path: Path | None,
) -> GalleryImage:
    picture, size = _picture(path)
    own = truth.on_images([image_id])
    width, height = truth.sizes_px[image_id] or size
    objects = zip(own.boxes_px_xywh.tolist(), own.category_ids.tolist(), own.is_crowd.tolist(), strict=True)
    boxes = tuple(GalleryBox((x, y, w, h), truth.categories[key]) for (x, y, w, h), key, crowd in objects if not crowd)
    drawn = {group: _detected(boxes.on_images([image_id]), truth.categories) for group, boxes in found.items()}
    return GalleryImage(image_id, width, height, picture, boxes, drawn, dict(overlap))


def _detected(boxes: Detections, names: Mapping[int, str]) -> tuple[GalleryBox, ...]:
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

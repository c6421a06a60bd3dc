"""Detections of a ground truth's images as checked arrays.

Legend of shapes: ``D`` detections.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coordexp.detection.boxes import Bools, Floats, Ints, in_order
from coordexp.detection.forms.frames import Frame
from coordexp.detection.forms.results import Results, read_results
from coordexp.detection.ground_truth import GroundTruth
from coordexp.errors import DataError
from coordexp.files import write_json

_MOST_SWAPPED = 0.5
"""Share of boxes with swapped corners above which a file is taken to be in another frame."""

_FAR_BEYOND = 1.2
"""A number beyond this many times the border of the frame lies far outside the image."""

_MOST_BEYOND = 0.1
"""Share of boxes that may lie far outside: a model's numbers are sometimes wild."""


@dataclass(frozen=True, eq=False)
class Detections:
    """A file of detections; one row a detection, in the order of the file.

    Attributes:
        image_ids: ``[D]``.
        category_ids: ``[D]``.
        boxes_px_xywh: ``[D, 4]`` left, top, width and height.
        scores: ``[D]``.
        has_scores: whether the scores are a detector's own; otherwise all are 1.
        num_swapped: how many boxes of the file had swapped corners, that is a negative width or height, and were put
            in order.
    """

    image_ids: Ints
    category_ids: Ints
    boxes_px_xywh: Floats
    scores: Floats
    has_scores: bool = True
    num_swapped: int = 0

    def __len__(self) -> int:
        return len(self.scores)

    def rows(self, rows: Ints | Bools) -> "Detections":
        """Return some of the detections, chosen or ordered as by numpy's indexing."""
        return replace(
            self,
            image_ids=self.image_ids[rows],
            category_ids=self.category_ids[rows],
            boxes_px_xywh=self.boxes_px_xywh[rows],
            scores=self.scores[rows],
        )

    def on_images(self, image_ids: Collection[int]) -> "Detections":
        return self.rows(np.isin(self.image_ids, list(image_ids)))

    @property
    def num_tied(self) -> int:
        """How many detections share their score with another of their category: AP takes them in file order."""
        order = np.lexsort((self.scores, self.category_ids))
        category = self.category_ids[order]
        score = self.scores[order]
        is_as_before = (category[1:] == category[:-1]) & (score[1:] == score[:-1])
        is_as_previous = np.append(False, is_as_before)
        is_as_next = np.append(is_as_before, False)
        return int(np.count_nonzero(is_as_previous | is_as_next))

    def by_place(self) -> "Detections":
        """Return the detections by image, category and score, equal scores by where their boxes are.

        The order no longer depends on the order of the file.
        """
        height_width_top_left = self.boxes_px_xywh.T[::-1]
        # The last key is the primary one.
        keys = (*height_width_top_left, -self.scores, self.category_ids, self.image_ids)
        return self.rows(np.lexsort(keys))


def read_detections(path: Path, ground_truth: GroundTruth) -> Detections:
    """Read and check a file of detections, in COCO's results format or another that people's tools write.

    If the file has no scores, every detection gets the score 1. Images and categories may be named instead of numbered.

    Raises:
        DataError: naming the file, the entry and what is wrong with it.
    """
    return detections_of(read_results(path, ground_truth), ground_truth)


def detections_of(results: Results, ground_truth: GroundTruth, frame: Frame | None = None) -> Detections:
    """Convert a file of detections to pixels and ids, and check it.

    A box with swapped corners is put in order and counted. If most boxes have them, the frame is wrong.

    Args:
        results: the file as it was read.
        ground_truth: of the same images.
        frame: the frame of the file's boxes and categories; None takes the one its form implies.

    Raises:
        DataError: naming the first category that the ground truth does not have, or the first of many swapped boxes.
    """
    used_frame = frame or results.frame
    if results.is_named:
        used_frame = replace(used_frame, categories="ids")
    category_ids = used_frame.category_ids(results.categories, ground_truth.categories)
    _check_categories(category_ids, results, ground_truth, used_frame)

    if frame is None:
        _check_unit(results)
    sizes_px = np.ones((len(results), 2))
    if used_frame.needs_sizes:
        sizes_px = ground_truth.sizes_of(results.image_ids)
    boxes_px_xywh = used_frame.boxes_px_xywh(results.boxes, sizes_px)
    ordered_px_xywh, num_swapped = in_order(boxes_px_xywh)
    if num_swapped > max(_MOST_SWAPPED * len(results), 1):
        first = np.flatnonzero((boxes_px_xywh[:, 2:] < 0).any(axis=1))[0]
        other_frame = "px:xywh" if used_frame.layout == "xyxy" else "px:xyxy"
        raise DataError(
            f"{results.path}: read as {used_frame}, {num_swapped} of {len(results)} boxes have a negative width or "
            f"height, such as detection[{first}]; they are in another frame, such as --frame {other_frame}; "
            "coordexp doctor boxes finds it"
        )
    scores = np.ones(len(results)) if results.scores is None else results.scores
    return Detections(
        results.image_ids,
        category_ids,
        ordered_px_xywh,
        scores,
        has_scores=results.scores is not None,
        num_swapped=num_swapped,
    )


def _check_unit(results: Results) -> None:
    """Raise a DataError if many boxes of a form in fractions or thousandths end far beyond the edge."""
    if not results.frame.unit.startswith("norm"):
        return
    border = float(results.frame.unit.removeprefix("norm"))
    limit = _FAR_BEYOND * border
    num_beyond = int(np.count_nonzero((np.abs(results.boxes) > limit).any(axis=1)))
    if num_beyond > _MOST_BEYOND * len(results):
        raise DataError(
            f"{results.path}: a file of this form has boxes in {results.frame}, but {num_beyond} of {len(results)} "
            f"boxes have numbers beyond {limit:g}, up to {np.abs(results.boxes).max():g}; name their frame, such as "
            "--frame px:xyxy or smart28:xyxy (coordexp doctor boxes finds it)"
        )


def order_remarks(detections: Detections, path: Path) -> list[str]:
    """Return the remark on boxes that were put in order, if there are any."""
    if not detections.num_swapped:
        return []
    return [
        f"{path.name}: {detections.num_swapped} of {len(detections)} boxes had swapped corners (negative width or "
        "height) and were put in order"
    ]


def _check_categories(category_ids: Ints, results: Results, ground_truth: GroundTruth, frame: Frame) -> None:
    """Raise a DataError that counts detections of categories that the ground truth does not have."""
    is_unknown = ~np.isin(category_ids, np.array(list(ground_truth.categories), np.int64))
    if not is_unknown.any():
        return
    first = np.flatnonzero(is_unknown)[0]
    read_as = "" if frame.categories == "ids" else f", read as {frame.categories},"
    num_unknown = np.count_nonzero(is_unknown)
    raise DataError(
        f"{results.path}: detection[{first}]: category_id {results.categories[first]}{read_as} is not among the "
        f"{len(ground_truth.categories)} of the annotation file, as in {num_unknown} of {len(results)} detections; "
        "leave these out, or say how ids are counted: --frame index0 or index1"
    )


def write_detections(path: Path, detections: Detections) -> None:
    """Write detections in COCO's results format."""
    rows = zip(
        detections.image_ids.tolist(),
        detections.category_ids.tolist(),
        detections.boxes_px_xywh.tolist(),
        detections.scores.tolist(),
        strict=True,
    )
    entries = [
        {"image_id": image_id, "category_id": category_id, "bbox": box, "score": score}
        for image_id, category_id, box, score in rows
    ]
    write_json(path, entries)

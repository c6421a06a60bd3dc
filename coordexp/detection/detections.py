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
"""Share of boxes with swapped corners above which a file is taken to stand in another frame."""

_FAR_BEYOND, _MOST_BEYOND = 1.2, 0.1
"""How far a box may reach beyond the border, and the share of boxes that may: a model's numbers are sometimes wild."""


@dataclass(frozen=True, eq=False)
class Detections:
    """A file of detections; one row a detection, in the order of the file.

    Attributes:
        boxes_px_xywh: ``[D, 4]`` left, top, width and height; the other columns are ``[D]``.
        has_scores: whether the scores are a detector's own; else all are 1.
        num_swapped: how many boxes of the file had swapped corners, a negative width or height, and were put in order.
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
        """Return some of them, chosen or ordered as by numpy's indexing."""
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
        """How many have the score of another one of their category, so that AP takes them in the order of the file."""
        order = np.lexsort((self.scores, self.category_ids))
        category, score = self.category_ids[order], self.scores[order]
        is_as_before = (category[1:] == category[:-1]) & (score[1:] == score[:-1])
        return int(np.count_nonzero(np.append(is_as_before, False) | np.append(False, is_as_before)))

    def by_place(self) -> "Detections":
        """Return them so that equal scores go by where boxes are, whatever their order in the file."""
        boxes, ids = self.boxes_px_xywh.T[::-1], (self.category_ids, self.image_ids)
        return self.rows(np.lexsort((*boxes, -self.scores, *ids)))  # the last key is the primary one


def read_detections(path: Path, ground_truth: GroundTruth) -> Detections:
    """Read and check a file of detections, in COCO's results format or another that people's tools write.

    A file without scores gives every detection the score 1; images and categories may be named.

    Raises:
        DataError: naming the file, the entry and what is wrong with it.
    """
    return detections_of(read_results(path, ground_truth), ground_truth)


def detections_of(results: Results, ground_truth: GroundTruth, frame: Frame | None = None) -> Detections:
    """Check a file of detections, read in the frame in which it stands: by default that of its form.

    A box with swapped corners is put in order and counted. Where most have them, the frame is wrong.

    Raises:
        DataError: naming the first category that the ground truth does not have, or the first of many swapped boxes.
    """
    is_given = frame is not None
    frame = frame or results.frame
    if results.is_named:
        frame = replace(frame, categories="ids")
    category_ids = frame.category_ids(results.categories, ground_truth.categories)
    _check_categories(category_ids, results, ground_truth, frame)

    if not is_given:
        _check_unit(results)
    sizes_px = ground_truth.sizes_of(results.image_ids) if frame.needs_sizes else np.ones((len(results), 2))
    boxes_px_xywh = frame.boxes_px_xywh(results.boxes, sizes_px)
    ordered_px_xywh, num_swapped = in_order(boxes_px_xywh)
    if num_swapped > max(_MOST_SWAPPED * len(results), 1):
        first = np.flatnonzero((boxes_px_xywh[:, 2:] < 0).any(axis=1))[0]
        raise DataError(
            f"{results.path}: read as {frame}, {num_swapped} of {len(results)} boxes have negative width or height, "
            f"such as detection[{first}]; they stand in another frame, such as --frame "
            f"{'px:xywh' if frame.layout == 'xyxy' else 'px:xyxy'}; coordexp doctor boxes finds it"
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
    """Raise a DataError where most boxes of a form in fractions or thousandths end far beyond the edge."""
    if not results.frame.unit.startswith("norm"):
        return
    border = float(results.frame.unit.removeprefix("norm"))
    num_beyond = int(np.count_nonzero((np.abs(results.boxes) > _FAR_BEYOND * border).any(axis=1)))
    if num_beyond > _MOST_BEYOND * len(results):
        raise DataError(
            f"{results.path}: its form has boxes in {results.frame}, but {num_beyond} of {len(results)} boxes have "
            f"numbers beyond {_FAR_BEYOND * border:g}, up to {np.abs(results.boxes).max():g}; say in what frame they "
            "stand, such as --frame px:xyxy or smart28:xyxy (coordexp doctor boxes finds it)"
        )


def order_remarks(detections: Detections, path: Path) -> list[str]:
    """Say how many boxes were put in order."""
    num = detections.num_swapped
    if not num:
        return []
    return [
        f"{path.name}: {num} of {len(detections)} boxes had swapped corners (negative width or height): put in order"
    ]


def _check_categories(category_ids: Ints, results: Results, ground_truth: GroundTruth, frame: Frame) -> None:
    """Raise a DataError that counts detections of categories that the ground truth does not have."""
    known = ground_truth.categories
    is_unknown = ~np.isin(category_ids, np.array(list(known), np.int64))
    if not is_unknown.any():
        return
    first = np.flatnonzero(is_unknown)[0]
    read = "" if frame.categories == "ids" else f", read as {frame.categories},"
    num_unknown = np.count_nonzero(is_unknown)
    raise DataError(
        f"{results.path}: detection[{first}]: category_id {results.categories[first]}{read} is not among the "
        f"{len(known)} of the annotation file, as in {num_unknown} of {len(results)} detections; leave these out, or "
        "say how ids are counted: --frame index0 or index1"
    )


def write_detections(path: Path, detections: Detections) -> None:
    columns = (detections.image_ids, detections.category_ids, detections.boxes_px_xywh, detections.scores)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    write_json(path, [{"image_id": i, "category_id": c, "bbox": box, "score": score} for i, c, box, score in rows])

"""Detections of a ground truth's images as checked arrays.

Legend of shapes: ``D`` detections.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coordexp.detection.boxes import Bools, Floats, Ints
from coordexp.detection.frames import Frame
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.result_files import Results, read_results
from coordexp.errors import DataError
from coordexp.files import write_json


@dataclass(frozen=True, eq=False)
class Detections:
    """A file of detections; one row a detection, in the order of the file.

    Attributes:
        boxes_px_xywh: ``[D, 4]`` left, top, width and height; the other columns are ``[D]``.
        has_scores: whether the scores are a detector's own; else all are 1.
    """

    image_ids: Ints
    category_ids: Ints
    boxes_px_xywh: Floats
    scores: Floats
    has_scores: bool = True

    def __len__(self) -> int:
        return len(self.scores)

    def rows(self, rows: Ints | Bools) -> "Detections":
        """Return some of them, chosen or ordered as by numpy's indexing."""
        ids, categories, boxes = self.image_ids[rows], self.category_ids[rows], self.boxes_px_xywh[rows]
        return Detections(ids, categories, boxes, self.scores[rows], has_scores=self.has_scores)

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
    """Check a file of detections, read in the frame in which it stands: by default that of its form."""
    frame, known = frame or results.frame, ground_truth.categories
    if results.is_named:
        frame = replace(frame, categories="ids")
    category_ids = frame.category_ids(results.categories, known)
    sizes_px = ground_truth.sizes_of(results.image_ids) if frame.needs_sizes else np.ones((len(results), 2))
    boxes = frame.boxes_px_xywh(results.boxes, sizes_px)
    read = "" if frame.categories == "ids" else f", read as {frame.categories},"
    for is_bad, problem in (
        (
            ~np.isin(category_ids, np.array(list(known), np.int64)),
            f"category_id {{}}{read} is not among the {len(known)} of the annotation file",
        ),
        ((boxes[:, 2:] < 0).any(axis=1), "bbox has negative width or height"),
    ):
        for place in np.flatnonzero(is_bad)[:1].tolist():
            raise DataError(f"{results.path}: detection[{place}]: {problem.format(results.categories[place])}")
    scores = np.ones(len(results)) if results.scores is None else results.scores
    return Detections(results.image_ids, category_ids, boxes, scores, has_scores=results.scores is not None)


def write_detections(path: Path, detections: Detections) -> None:
    columns = (detections.image_ids, detections.category_ids, detections.boxes_px_xywh, detections.scores)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    write_json(path, [{"image_id": i, "category_id": c, "bbox": box, "score": score} for i, c, box, score in rows])

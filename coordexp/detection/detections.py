"""Detections as checked arrays: files in COCO's results format, and files near it, in whatever frame.

Legend of shapes: ``D`` detections.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from coordexp.data.sources.coco_file import Id, read_entries
from coordexp.detection.boxes import Bools, Floats, Ints
from coordexp.detection.categories import CategoryIndex
from coordexp.detection.frames import Frame
from coordexp.detection.ground_truth import (
    LARGEST_NUMBER,
    GroundTruth,
    check_boxes,
    check_known,
    refuse,
    refuse_bad,
)
from coordexp.errors import DataError, show
from coordexp.files import read_once, write_json


@dataclass(frozen=True, eq=False)
class Detections:
    """A file of detections; one row a detection, in the order of the file.

    Attributes:
        image_ids: ``[D]``.
        category_ids: ``[D]``.
        boxes_px_xywh: ``[D, 4]`` left, top, width and height.
        scores: ``[D]``.
        has_scores: whether the scores are a detector's own; else all are 1.
    """

    image_ids: Ints
    category_ids: Ints
    boxes_px_xywh: Floats
    scores: Floats
    has_scores: bool = True

    def __len__(self) -> int:
        """Return ``D``."""
        return len(self.scores)

    def rows(self, rows: Ints | Bools) -> "Detections":
        """Return some of them, chosen or ordered as by numpy's indexing."""
        ids, categories, boxes = self.image_ids[rows], self.category_ids[rows], self.boxes_px_xywh[rows]
        return Detections(ids, categories, boxes, self.scores[rows], has_scores=self.has_scores)

    def on_images(self, image_ids: Collection[int]) -> "Detections":
        """Return those in some images."""
        return self.rows(np.isin(self.image_ids, list(image_ids)))


_Text = Annotated[str | None, Meta(description="the name of a category")]
_FloatBox = Annotated[tuple[float, float, float, float], Meta(description="four numbers [x, y, width, height]")]


class _ResultEntry(Struct, gc=False):
    """A detection in COCO's results format, or one that names its category or has no score."""

    image_id: Id
    bbox: _FloatBox
    category_id: Annotated[Id | str | None, Meta(description="a whole number")] = None
    score: Annotated[float | None, Meta(description="a number")] = None
    category_name: _Text = None
    category: _Text = None
    label: _Text = None


@dataclass(frozen=True, eq=False)
class Results:
    """A file of detections as it stands, its boxes in whatever frame; one row a detection.

    Attributes:
        path: where it was read.
        image_ids: ``[D]``.
        categories: ``[D]`` ids, or rows of ``names`` where there are any.
        names: the categories' names, where the file has names instead of ids.
        boxes: ``[D, 4]``.
        scores: ``[D]``; None where no entry has one.
    """

    path: Path
    image_ids: Ints
    categories: Ints
    names: tuple[str, ...]
    boxes: Floats
    scores: Floats | None

    def __len__(self) -> int:
        """Return ``D``."""
        return len(self.image_ids)

    @property
    def is_plain(self) -> bool:
        """Whether pycocotools reads it as well: it has ids for categories and scores, and is not packed."""
        return not self.names and self.scores is not None and self.path.suffix != ".gz"


@read_once(max_bytes=512 * 2**20)
def read_results(path: Path) -> Results:
    """Read a file of detections without asking whether it belongs to a ground truth; as often as asked, once.

    Raises:
        DataError: naming the file, the entry and what is wrong with it.
    """
    where, first = f"{path}: detection", 0
    blocks: list[tuple[Ints, Ints, Floats, Floats]] = []
    names: dict[str, int] = {}
    has_names = has_scores = None  # what the first entry has, all have
    for entries in read_entries(path, _ResultEntry):
        refuse_bad(entries.bad, where)
        rows = entries.good
        categories = [_category_of(row) for row in rows]
        if rows and has_names is None:
            has_names, has_scores = isinstance(categories[0], str), rows[0].score is not None
        for place, (row, category) in enumerate(zip(rows, categories, strict=True), start=first):
            if problem := _problem(row, category, has_names=bool(has_names), has_scores=bool(has_scores)):
                raise DataError(f"{where}[{place}]: {problem}")
        first += len(rows)
        if has_names:
            categories = [names.setdefault(str(name), len(names)) for name in categories]
        boxes = np.fromiter(chain.from_iterable([row.bbox for row in rows]), np.float64, 4 * len(rows)).reshape(-1, 4)
        scores = np.array([row.score if has_scores else 1.0 for row in rows], np.float64)
        image_ids = np.array([row.image_id for row in rows], np.int64)
        blocks.append((image_ids, np.array(categories, np.int64), boxes, scores))
    blocks = blocks or [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 4)), np.zeros(0))]
    image_ids, category_ids, boxes, scores = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return Results(path, image_ids, category_ids, tuple(names), boxes, None if has_scores is False else scores)


def _category_of(row: _ResultEntry) -> int | str | None:
    return row.category_id if row.category_id is not None else row.category_name or row.category or row.label


def _problem(row: _ResultEntry, category: int | str | None, *, has_names: bool, has_scores: bool) -> str:
    """Return what is wrong with an entry, or ""."""
    if category is None:
        return "category_id is missing, expected a whole number, or a name in category_name"
    if isinstance(category, str) != has_names:
        kinds = ("a name", "ids") if isinstance(category, str) else ("an id", "names")
        return f"its category is {kinds[0]}, where others have {kinds[1]}; expected one of both"
    if (row.score is not None) != has_scores:
        return "score is missing, which others have; expected a number" if has_scores else "score: others have none"
    if row.score is not None and not abs(row.score) < LARGEST_NUMBER:
        return f"score is {show(row.score)}, expected a finite number"
    a, b, c, d = row.bbox
    if not max(abs(a), abs(b), abs(c), abs(d)) < LARGEST_NUMBER or a + b + c + d != a + b + c + d:
        return f"bbox is {show(list(row.bbox))}, expected finite numbers"
    return ""


def read_detections(path: Path, ground_truth: GroundTruth) -> Detections:
    """Read and check a file of detections in COCO's results format.

    A file without scores gives every detection the score 1; categories may be named.

    Raises:
        DataError: naming the file, the entry and what is wrong with it.
    """
    return detections_of(read_results(path), ground_truth)


def detections_of(results: Results, ground_truth: GroundTruth, frame: Frame = Frame()) -> Detections:  # noqa: B008
    """Check a file of detections against the ground truth that it belongs to, read in the frame in which it stands.

    Raises:
        DataError: naming the file, the entry and what is wrong with it.
    """
    where = f"{results.path}: detection"
    check_known("image_id", results.image_ids, ground_truth.sizes_px.keys(), where)
    category_ids = _category_ids(results, ground_truth.categories, frame, where)
    sizes_px = ground_truth.sizes_of(results.image_ids) if frame.needs_sizes else np.ones((len(results), 2))
    boxes = frame.boxes_px_xywh(results.boxes, sizes_px)
    check_boxes(boxes, where)
    has_scores = results.scores is not None
    scores = results.scores if results.scores is not None else np.ones(len(results))
    return Detections(results.image_ids, category_ids, boxes, scores, has_scores=has_scores)


def _category_ids(results: Results, categories: Mapping[int, str], frame: Frame, where: str) -> Ints:
    if not results.names:
        ids = frame.category_ids(results.categories, categories)
        is_unknown = ~np.isin(ids, np.array(list(categories), np.int64))
        for found in results.categories[is_unknown][:1].tolist():
            read = "" if frame.categories == "ids" else f", read as {frame.categories},"
            problem = f"category_id {found}{read} is not among the {len(categories)} of the annotation file"
            refuse(is_unknown, where, problem)
        return ids
    index = CategoryIndex(categories)
    ids = [index.find(name) for name in results.names]
    for name, category_id in zip(results.names, ids, strict=True):
        if category_id is None:
            is_it = results.categories == results.names.index(name)
            refuse(is_it, where, f"no category of the annotation file is called {show(name)}")
    return np.array(ids, np.int64)[results.categories]


def write_detections(path: Path, detections: Detections) -> None:
    """Write detections in COCO's results format."""
    columns = (detections.image_ids, detections.category_ids, detections.boxes_px_xywh, detections.scores)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    write_json(path, [{"image_id": i, "category_id": c, "bbox": box, "score": score} for i, c, box, score in rows])

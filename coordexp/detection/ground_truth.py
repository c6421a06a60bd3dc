"""COCO ground truth and detections as checked arrays; faults that pycocotools accepts silently are refused.

Legend of shapes: ``G`` ground-truth boxes, ``D`` detections.
"""

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from coordexp.data.sources.coco_file import (
    Annotation,
    AnnotationColumns,
    BadEntry,
    Category,
    CocoFile,
    Id,
    Image,
    read_coco_file,
    read_entries,
)
from coordexp.data.sources.lvis import LvisCategory, LvisImage
from coordexp.detection.boxes import Bools, Floats, Ints
from coordexp.detection.categories import CategoryIndex
from coordexp.detection.frames import Frame
from coordexp.errors import DataError, show
from coordexp.files import write_json

_LARGEST_NUMBER = 1e300

BoxPxXywh = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class Federated:
    """What an LVIS file says of categories that were not looked for in every image.

    A detection of a category that is neither annotated nor verified to be absent in its image counts neither for nor
    against; where not all objects of a category are annotated, so does one that matches none.

    Attributes:
        negative: ``[P, 2]`` image and category ids: the category is verified to be absent.
        not_exhaustive: ``[P, 2]`` image and category ids: not every object of it is annotated.
        frequency: category id -> ``r``, ``c`` or ``f``, for rare, common and frequent.
    """

    negative: Ints
    not_exhaustive: Ints
    frequency: Mapping[int, str]

    def on_images(self, image_ids: Collection[int]) -> "Federated":
        """Return what is said of some images."""
        wanted = list(image_ids)
        negative, not_exhaustive = (
            pairs[np.isin(pairs[:, 0], wanted)] for pairs in (self.negative, self.not_exhaustive)
        )
        return Federated(negative, not_exhaustive, self.frequency)


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """An annotation file; the arrays have one row a box, in the order of the file.

    Attributes:
        path: where it was read.
        sizes_px: image id -> width and height, None where the file does not say.
        categories: category id -> name.
        image_ids: ``[G]``.
        category_ids: ``[G]``.
        boxes_px_xywh: ``[G, 4]`` left, top, width and height.
        areas_px2: ``[G]``, of the segmentation where the file says so.
        is_crowd: ``[G]``.
        federated: what an LVIS file says beyond a COCO file; None for COCO's rules.
    """

    path: Path
    sizes_px: Mapping[int, tuple[int, int] | None]
    categories: Mapping[int, str]
    image_ids: Ints
    category_ids: Ints
    boxes_px_xywh: Floats
    areas_px2: Floats
    is_crowd: Bools
    federated: Federated | None = None

    def sizes_of(self, image_ids: Ints) -> Floats:
        """Return ``[M, 2]`` width and height of images.

        Raises:
            DataError: if the file does not say them.
        """
        distinct, rows = np.unique(image_ids, return_inverse=True)
        sizes: list[tuple[int, int]] = []
        for image_id in distinct.tolist():
            size = self.sizes_px[image_id]
            if size is None:
                raise DataError(f"{self.path}: image {image_id} has no width and height")
            sizes.append(size)
        return np.array(sizes, np.float64).reshape(-1, 2)[rows]

    def on_images(self, image_ids: Collection[int]) -> "GroundTruth":
        """Return the part of it in some images.

        Raises:
            DataError: if an image id is unknown.
        """
        unknown = set(image_ids) - self.sizes_px.keys()
        if unknown:
            raise DataError(f"{self.path}: no image has id {min(unknown)}")
        kept = np.isin(self.image_ids, list(image_ids))
        return replace(
            self,
            sizes_px={image_id: self.sizes_px[image_id] for image_id in set(image_ids)},
            image_ids=self.image_ids[kept],
            category_ids=self.category_ids[kept],
            boxes_px_xywh=self.boxes_px_xywh[kept],
            areas_px2=self.areas_px2[kept],
            is_crowd=self.is_crowd[kept],
            federated=None if self.federated is None else self.federated.on_images(image_ids),
        )


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

    def rows(self, rows: NDArray[np.int64] | Bools) -> "Detections":
        """Return some of them, chosen or ordered as by numpy's indexing."""
        return Detections(
            self.image_ids[rows],
            self.category_ids[rows],
            self.boxes_px_xywh[rows],
            self.scores[rows],
            has_scores=self.has_scores,
        )

    def on_images(self, image_ids: Collection[int]) -> "Detections":
        """Return those in some images."""
        return self.rows(np.isin(self.image_ids, list(image_ids)))


def read_ground_truth(path: Path) -> GroundTruth:
    """Read and check an annotation file; a second call gives the same object as long as the file does not change.

    Annotation ids are not used: 0 and repeated ones are harmless. A file is LVIS's, and AP on it LVIS's federated one,
    if all its images have ``neg_category_ids`` and ``not_exhaustive_category_ids``, and all categories a ``frequency``.

    Raises:
        DataError: naming the file, the entry and what is wrong with it.
    """
    try:
        stat = path.stat()
    except OSError:
        return _read_ground_truth(path)  # which raises with what is wrong
    return _known_ground_truth(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=4)
def _known_ground_truth(path: Path, changed_ns: int, num_bytes: int) -> GroundTruth:
    del changed_ns, num_bytes  # they make a changed file another one
    return _read_ground_truth(path)


def _read_ground_truth(path: Path) -> GroundTruth:
    file = read_coco_file(path, image_type=_AnyImage, category_type=_AnyCategory)
    for section, entries in (("images", file.images), ("categories", file.categories)):
        _refuse_bad(entries.bad, f"{path}: {section}")
        seen: set[int] = set()
        for place, entry in enumerate(entries.good):
            if entry.id in seen:
                raise DataError(f"{path}: {section}[{place}]: id {entry.id} is there twice; expected distinct ids")
            seen.add(entry.id)
    _refuse_bad(file.annotations.bad, f"{path}: annotations")
    sizes = {image.id: _size(image) for image in file.images.good}
    categories = {category.id: category.name for category in file.categories.good}
    columns = AnnotationColumns.of(file.annotations)
    where = f"{path}: annotations"
    _check_boxes(columns.box_px_xywh, where)
    _check_known("image_id", columns.image_id, sizes.keys(), where)
    _check_known("category_id", columns.category_id, categories.keys(), where)
    return GroundTruth(
        path=path,
        sizes_px=sizes,
        categories=categories,
        image_ids=columns.image_id,
        category_ids=columns.category_id,
        boxes_px_xywh=columns.box_px_xywh,
        areas_px2=_areas(file.annotations.good, columns.box_px_xywh, where),
        is_crowd=columns.is_crowd,
        federated=_federated(file, categories),
    )


class _AnyImage(Image, gc=False):
    """An image of COCO or of LVIS."""

    neg_category_ids: object = None
    not_exhaustive_category_ids: object = None


class _AnyCategory(Category, gc=False):
    """A category of COCO or of LVIS."""

    frequency: object = None


def _federated(file: CocoFile, categories: Collection[int]) -> Federated | None:
    """Return what only LVIS says, if the whole file says it."""
    try:
        images = msgspec.convert(file.images.good, list[LvisImage], from_attributes=True)
        kinds = msgspec.convert(file.categories.good, list[LvisCategory], from_attributes=True)
    except msgspec.ValidationError:
        return None
    if not images or not kinds:
        return None

    def pairs(lists: Iterable[tuple[int, list[int]]]) -> Ints:
        found = [(image_id, key) for image_id, keys in lists for key in keys if key in categories]
        return np.array(found, np.int64).reshape(-1, 2)

    return Federated(
        negative=pairs((image.id, image.neg_category_ids) for image in images),
        not_exhaustive=pairs((image.id, image.not_exhaustive_category_ids) for image in images),
        frequency={kind.id: kind.frequency for kind in kinds},
    )


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


def read_results(path: Path) -> Results:
    """Read a file of detections without asking whether it belongs to a ground truth; as often as asked, once.

    Raises:
        DataError: naming the file, the entry and what is wrong with it.
    """
    try:
        stat = path.stat()
    except OSError:
        return _read_results(path)  # which raises with what is wrong
    return _known_results(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=8)
def _known_results(path: Path, changed_ns: int, num_bytes: int) -> Results:
    del changed_ns, num_bytes  # they make a changed file another one
    return _read_results(path)


def _read_results(path: Path) -> Results:
    where, first = f"{path}: detection", 0
    nothing = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 4)), np.zeros(0))
    blocks: list[tuple[Ints, Ints, Floats, Floats]] = [nothing]
    names: dict[str, int] = {}
    category_kinds: dict[type, int] = {}  # -> the first entry with it
    score_kinds: dict[type, int] = {}
    for entries in read_entries(path, _ResultEntry):
        _refuse_bad(entries.bad, where)
        rows = entries.good
        categories = [row.category_id for row in rows]
        if None in categories:
            categories = [_category_of(row) for row in rows]
        scores = [row.score for row in rows]
        _note_kinds(category_kinds, categories, first)
        _note_kinds(score_kinds, scores, first)
        _refuse_mixed(category_kinds, score_kinds, where)
        if str in category_kinds:
            categories = [names.setdefault(str(name), len(names)) for name in categories]
        boxes = np.array([row.bbox for row in rows], np.float64).reshape(-1, 4)
        numbers = np.array([np.nan if score is None else score for score in scores], np.float64)
        for place in np.flatnonzero(~(np.abs(boxes) < _LARGEST_NUMBER).all(axis=1))[:1].tolist():
            raise DataError(
                f"{where}[{first + place}]: bbox is {show(list(rows[place].bbox))}, expected finite numbers"
            )
        if float in score_kinds:
            for place in np.flatnonzero(~(np.abs(numbers) < _LARGEST_NUMBER))[:1].tolist():
                raise DataError(f"{where}[{first + place}]: score is {show(scores[place])}, expected a finite number")
        image_ids = np.array([row.image_id for row in rows], np.int64)
        blocks.append((image_ids, np.array(categories, np.int64), boxes, numbers))
        first += len(rows)
    image_ids, category_ids, boxes, numbers = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return Results(path, image_ids, category_ids, tuple(names), boxes, None if NoneType in score_kinds else numbers)


def _category_of(row: _ResultEntry) -> int | str | None:
    """Return an entry's category, by whichever of its fields says it."""
    return row.category_id if row.category_id is not None else row.category_name or row.category or row.label


def _note_kinds(kinds: dict[type, int], values: Sequence[object], first: int) -> None:
    types = list(map(type, values))
    for kind in set(types) - kinds.keys():
        kinds[kind] = first + types.index(kind)


def _refuse_mixed(categories: Mapping[type, int], scores: Mapping[type, int], where: str) -> None:
    if (place := categories.get(NoneType)) is not None:
        raise DataError(
            f"{where}[{place}]: category_id is missing, expected a whole number, or a name in category_name"
        )
    if len(categories) > 1:
        place = categories[str]
        raise DataError(f"{where}[{place}]: its category is a name, where others have ids; expected one of both")
    if len(scores) > 1:
        place = scores[NoneType]
        raise DataError(f"{where}[{place}]: score is missing, which others have; expected a number")


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
    _check_known("image_id", results.image_ids, ground_truth.sizes_px.keys(), where)
    category_ids = _category_ids(results, ground_truth.categories, frame, where)
    sizes_px = ground_truth.sizes_of(results.image_ids) if frame.needs_sizes else np.ones((len(results), 2))
    boxes = frame.boxes_px_xywh(results.boxes, sizes_px)
    _check_boxes(boxes, where)
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
            _refuse(is_unknown, where, problem)
        return ids
    index = CategoryIndex(categories)
    ids = [index.find(name) for name in results.names]
    for name, category_id in zip(results.names, ids, strict=True):
        if category_id is None:
            is_it = results.categories == results.names.index(name)
            _refuse(is_it, where, f"no category of the annotation file is called {show(name)}")
    return np.array(ids, np.int64)[results.categories]


def write_detections(path: Path, detections: Detections) -> None:
    """Write detections in COCO's results format."""
    rows = zip(
        detections.image_ids.tolist(),
        detections.category_ids.tolist(),
        detections.boxes_px_xywh.tolist(),
        detections.scores.tolist(),
        strict=True,
    )
    write_json(path, [{"image_id": i, "category_id": c, "bbox": box, "score": score} for i, c, box, score in rows])


def _refuse_bad(bad: Sequence[BadEntry], where: str) -> None:
    if bad:
        raise DataError(f"{where}[{bad[0].place}]: {bad[0].reason}")


def _refuse(is_bad: Bools, where: str, problem: str) -> None:
    for place in np.flatnonzero(is_bad)[:1].tolist():
        raise DataError(f"{where}[{place}]: {problem}")


def _check_boxes(boxes: Floats, where: str) -> None:
    _refuse(boxes[:, 2:].min(axis=1, initial=0) < 0, where, "bbox has negative width or height")


def _check_known(name: str, ids: Ints, known: Collection[int], where: str) -> None:
    is_unknown = ~np.isin(ids, np.array(list(known), np.int64))
    for found in ids[is_unknown][:1].tolist():
        _refuse(is_unknown, where, f"{name} {found} is not among the {len(known)} of the annotation file")


def _size(image: Image) -> tuple[int, int] | None:
    return None if image.width is None or image.height is None else (int(image.width), int(image.height))


def _areas(annotations: Sequence[Annotation], boxes_px_xywh: Floats, where: str) -> Floats:
    """Return the annotated areas; where there is none, as in files made for boxes alone, the area of the box."""
    areas = boxes_px_xywh[:, 2] * boxes_px_xywh[:, 3]
    for place, annotation in enumerate(annotations):
        area = annotation.area
        if area is None:
            continue
        if isinstance(area, bool) or not isinstance(area, int | float) or not abs(area) < _LARGEST_NUMBER:
            raise DataError(f"{where}[{place}]: area must be a finite number, got {show(area)}")
        areas[place] = area
    return areas

"""COCO annotation file -> samples: objects under their images, boxes clipped and scaled, orphans refused.

Shapes: I images, N objects.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordexp.coord_tokens.bins import are_thin
from coordexp.data.image_file import ImageFolder, size_problem
from coordexp.data.sample import Rejections, Samples, SplitData
from coordexp.data.sources.coco_file import (
    SECTIONS,
    Annotation,
    AnnotationColumns,
    BadEntry,
    Category,
    CocoFile,
    Entries,
    Image,
    Section,
    read_coco_file,
)
from coordexp.data.sources.frame import frame_doubt, frame_problem
from coordexp.errors import DataError, is_text, show

TARGET, CROWD, IGNORED = 0, 1, 2


class CocoImage(NamedTuple):
    """A usable image: its place in the file, and its path relative to the image folder."""

    place: int
    image_id: int
    name: str
    width: int
    height: int
    extras: dict[str, list[int]]


@dataclass(frozen=True)
class CocoTable:
    """The usable part of an annotation file.

    Attributes:
        images: in file order.
        first: ``[I + 1]``; the objects of image ``i`` are ``first[i] .. first[i + 1]``.
        category_ids: ``[N]``.
        kinds: ``[N]``; TARGET, CROWD or IGNORED.
        boxes_px_xywh: ``[N, 4]`` as in the file.
        boxes_norm_xyxy: ``[N, 4]`` clipped to the image, as fractions of it.
        categories: entry of each category id.
        counts: see :class:`coordexp.data.sample.SplitData`.
        rejections: what was left out, with reasons.
        warnings: what looks wrong with the whole file, and was accepted.
    """

    images: list[CocoImage]
    first: NDArray[np.int64]
    category_ids: NDArray[np.int64]
    kinds: NDArray[np.int8]
    boxes_px_xywh: NDArray[np.float64]
    boxes_norm_xyxy: NDArray[np.float64]
    categories: dict[int, Category]
    counts: dict[str, int]
    rejections: Rejections
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class CocoSource:
    """A split in COCO's format."""

    annotations: Path
    images: Path
    generated = None

    @property
    def name(self) -> str:
        """Return the name of the annotation file."""
        return self.annotations.stem

    def read(self, *, max_bad_fraction: float, accept_prequantised: bool) -> SplitData:
        """Read the split; COCO's boxes are pixels, so that none can be a bin already."""
        del accept_prequantised
        return read_coco(self.annotations, self.images, max_bad_fraction=max_bad_fraction)

    @property
    def ground_truth_file(self) -> Path:
        """Return the file itself."""
        return self.annotations

    def ground_truth(self) -> Path:
        """Return the file itself."""
        return self.annotations

    def count_images(self) -> int:
        """Return how many images the file lists."""
        return len(read_coco_file(self.annotations).images.good)


def read_coco(
    annotations: Path,
    images: Path,
    *,
    max_bad_fraction: float = 0.0,
    check_images: bool = True,
    image_type: type[Image] = Image,
    category_type: type[Category] = Category,
) -> SplitData:
    """Read a COCO ``instances`` file.

    Boxes become fractions of the image and are clipped to it; crowd boxes, and those that say
    ``ignore: 1``, are counted and left out. Two images may name one file (they keep their own
    objects, and are counted). That an image file exists is checked here; that it decodes, when it
    is used.

    Args:
        annotations: the JSON file.
        images: folder that ``file_name`` is relative to.
        max_bad_fraction: largest accepted fraction of bad images, annotations or categories.
            COCO's own train2017 has 2 boxes of zero height among 860,001.
        check_images: whether image files must exist.
        image_type: what an entry of ``images`` must hold.
        category_type: what an entry of ``categories`` must hold.

    Raises:
        DataError: if the file is missing, no JSON, of another structure, or more than the
            accepted fraction of its records is bad.
    """
    folder = ImageFolder(images, check=check_images)
    file = read_coco_file(annotations, image_type=image_type, category_type=category_type)
    table = build_table(file, folder, max_bad_fraction=max_bad_fraction)
    is_target = table.kinds == TARGET
    category_ids = np.array(sorted(table.categories), np.int64)
    samples = Samples(
        folder=images,
        names=[image.name for image in table.images],
        sizes_px=np.array([(image.width, image.height) for image in table.images], np.int64),
        image_ids=np.array([image.image_id for image in table.images], np.int64),
        first=np.concatenate([[0], np.cumsum(is_target)])[table.first],
        texts=tuple(table.categories[key].name for key in category_ids.tolist()),
        text_index=np.searchsorted(category_ids, table.category_ids[is_target]),
        boxes_norm_xyxy=table.boxes_norm_xyxy[is_target],
    )
    categories = {key: entry.name for key, entry in table.categories.items()}
    return SplitData(samples, table.rejections.all(), table.counts, categories, table.warnings)


def build_table(file: CocoFile, folder: ImageFolder, *, max_bad_fraction: float) -> CocoTable:
    """Put the entries of a file together.

    Raises:
        DataError: if more than the accepted fraction of images, annotations or categories is bad,
            or no image is left.
    """
    categories, bad_categories, num_trimmed = _usable_categories(file.categories)
    images, bad_images, lost_ids = _usable_images(file.images, folder)
    objects, image_index, bad_annotations, num_lost = _usable_annotations(file, images, lost_ids, categories)
    sizes = np.array([(image.width, image.height) for image in images], np.float64).reshape(-1, 2)
    looks_like = frame_problem(objects.box_px_xywh, sizes[image_index])
    if looks_like is not None and max_bad_fraction < 1:
        raise DataError(
            f"{file.path}: {looks_like}; expected left, top, width, height in pixels of each image. Correct them, or "
            "set data.max_bad_fraction (prepare: --max-bad-fraction) to 1 to take them as they are"
        )
    odd = looks_like or frame_doubt(objects.box_px_xywh, sizes[image_index])
    boxes, was_clipped = _clipped(objects.box_px_xywh, sizes[image_index])
    outside = (boxes[:, 0] >= boxes[:, 2]) | (boxes[:, 1] >= boxes[:, 3])
    for i in _places(outside):
        image = images[image_index[i]]
        shown = [round(value, 2) for value in objects.box_px_xywh[i].tolist()]
        reason = f"bbox {shown} lies outside its image of {image.width} x {image.height} pixels"
        bad_annotations.append(_bad_row(objects, i, reason))
    bad = {"categories": bad_categories, "images": bad_images, "annotations": bad_annotations}
    totals = {
        "images": file.images.total,
        "annotations": file.annotations.total,
        "categories": file.categories.total,
    }
    rejections = Rejections(file.path)
    for section in SECTIONS:
        for entry in sorted(bad[section], key=lambda entry: entry.place):
            rejections.add(section, shown_entry(section, entry), entry.reason)
    cause = _off_by_one(
        file.annotations.good,
        images={image.image_id for image in images} | lost_ids,
        categories={*categories, *(entry.key for entry in bad_categories)},
    )
    rejections.accept(totals, max_bad_fraction=max_bad_fraction, cause=cause)
    if not images:
        raise DataError(f"{file.path}: there is no image to use; expected at least one entry in images")

    kept = np.flatnonzero(~outside)
    order = kept[np.argsort(image_index[kept], kind="stable")]
    objects, boxes = objects.only(order), boxes[order]
    first = np.searchsorted(image_index[order], np.arange(len(images) + 1))
    kinds = np.where(objects.is_crowd, CROWD, np.where(objects.is_ignored, IGNORED, TARGET)).astype(np.int8)
    is_target = kinds == TARGET
    num_targets_before = np.concatenate([[0], np.cumsum(is_target)])[first]
    counts = {
        "boxes": int(is_target.sum()),
        "crowd": int((kinds == CROWD).sum()),
        "ignored": int((kinds == IGNORED).sum()),
        "clipped": int((was_clipped[order] & is_target).sum()),
        "thin": int(are_thin(boxes[is_target]).sum()),
        "images_without_objects": int((np.diff(num_targets_before) == 0).sum()),
        "of_rejected_images": num_lost,
        "trimmed_names": num_trimmed,
        **totals,
        "repeated_file_names": len(images) - len({image.name for image in images}),
        **{f"rejected_{section}": len(bad[section]) for section in SECTIONS},
    }
    return CocoTable(
        images=images,
        first=first,
        category_ids=objects.category_id,
        kinds=kinds,
        boxes_px_xywh=objects.box_px_xywh,
        boxes_norm_xyxy=boxes,
        categories=categories,
        counts=counts,
        rejections=rejections,
        warnings=tuple(filter(None, (odd, cause))),
    )


def shown_entry(section: Section, entry: BadEntry) -> str:
    """Return the place of an entry as messages show it: ``annotations[17] (id 23)``."""
    return f"{section}[{entry.place}]" + (f" (id {entry.shown_id})" if entry.shown_id else "")


def _usable_categories(entries: Entries[Category]) -> tuple[dict[int, Category], list[BadEntry], int]:
    """Return the categories by id, the bad ones, and how many names had white space around them."""
    categories: dict[int, Category] = {}
    num_trimmed = 0
    bad = list(entries.bad)
    for place, category in zip(entries.places.tolist(), entries.good, strict=True):
        reason = None
        if not is_text(category.name):
            reason = f"name is {show(category.name)}, expected text"
        elif category.id in categories:
            reason = f"category id {category.id} was used before ({categories[category.id].name!r})"
        if reason is None:
            num_trimmed += category.name != category.name.strip()
            category.name = category.name.strip()
            categories[category.id] = category
        else:
            bad.append(BadEntry(place, str(category.id), reason, category.id))
    return categories, bad, num_trimmed


def _usable_images(entries: Entries[Image], folder: ImageFolder) -> tuple[list[CocoImage], list[BadEntry], set[int]]:
    """Return the images that are there, the bad ones, and the ids that only bad ones have."""
    bad = list(entries.bad)
    first_place = {entry.key: entry.place for entry in reversed(entries.bad) if entry.key is not None}
    images: list[CocoImage] = []
    for place, image in zip(entries.places.tolist(), entries.good, strict=True):
        is_first = first_place.setdefault(image.id, place) >= place
        first_place[image.id] = min(first_place[image.id], place)
        try:
            width, height = _side(image, "width"), _side(image, "height")
            problem = size_problem(width, height)
            if problem is not None:
                raise DataError(problem)
            name = folder.relative_name(image.name_in(folder.root))
            if not is_first:
                raise DataError(f"image id {image.id} was used before")
            folder.find(name)
            images.append(CocoImage(place, image.id, name, width, height, image.extras()))
        except DataError as error:
            bad.append(BadEntry(place, str(image.id), str(error), image.id))
    return images, bad, first_place.keys() - {image.image_id for image in images}


def _usable_annotations(
    file: CocoFile, images: list[CocoImage], lost_ids: set[int], categories: dict[int, Category]
) -> tuple[AnnotationColumns, NDArray[np.int64], list[BadEntry], int]:
    """Return what has image and category, the index of its image, the bad, and how many were lost with bad images."""
    bad = list(file.annotations.bad)
    found = AnnotationColumns.of(file.annotations)

    def refuse(wrong: NDArray[np.bool_], reasons: Iterable[str]) -> None:
        nonlocal found
        bad.extend(_bad_row(found, i, reason) for i, reason in zip(_places(wrong), reasons, strict=False))
        found = found.only(~wrong)

    flat = (found.box_px_xywh[:, 2] <= 0) | (found.box_px_xywh[:, 3] <= 0)
    shown = [show(list(file.annotations.good[i].bbox)) for i in _places(flat)]
    refuse(flat, [f"bbox {box} has a width or height of zero or less" for box in shown])
    repeated = _repeats(found, bad)
    refuse(repeated, [f"annotation id {key} was used before" for key in found.key[repeated]])

    num_lost = sum(entry.image_id in lost_ids for entry in bad)
    bad = [entry for entry in bad if entry.image_id not in lost_ids]
    is_lost = np.isin(found.image_id, np.array(sorted(lost_ids), np.int64))
    num_lost += int(is_lost.sum())
    found = found.only(~is_lost)

    image_ids = np.array([image.image_id for image in images], np.int64)
    orphans = ~np.isin(found.image_id, image_ids)
    refuse(orphans, [f"no image has the id {key}" for key in found.image_id[orphans]])
    nameless = ~np.isin(found.category_id, np.array(sorted(categories), np.int64))
    refuse(nameless, [f"no usable category has the id {key}" for key in found.category_id[nameless]])

    by_id = np.argsort(image_ids)
    index = by_id[np.searchsorted(image_ids[by_id], found.image_id)] if images else np.zeros(0, np.int64)
    return found, index, bad, num_lost


def _off_by_one(
    annotations: Sequence[Annotation], *, images: Collection[int | None], categories: Collection[int | None]
) -> str:
    """Return what to do where all annotations would have a category, or an image, were their ids one more or less."""
    for what, used, known in (
        ("category", {one.category_id for one in annotations}, set(categories)),
        ("image", {one.image_id for one in annotations}, set(images)),
    ):
        if not used <= known:
            for shift, cure in ((1, "add 1 to"), (-1, "subtract 1 from")):
                if {key + shift for key in used} <= known:
                    return f"{what} ids look off by one: {cure} each {what}_id"
    return ""


def _repeats(columns: AnnotationColumns, bad: list[BadEntry]) -> NDArray[np.bool_]:
    """Mark the annotations whose id an earlier entry has, be that one good or bad."""
    others = [(entry.key, entry.place) for entry in bad if entry.key is not None]
    keys = np.concatenate([columns.key, np.array([key for key, _ in others], np.int64)])
    places = np.concatenate([columns.place, np.array([place for _, place in others], np.int64)])
    order = np.lexsort((places, keys))
    repeated = np.zeros(len(keys), bool)
    repeated[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    return repeated[: len(columns.key)]


def _side(image: Image, name: str) -> int:
    side = image.width if name == "width" else image.height
    if side is None:
        raise DataError(f"{name} is missing, expected a positive whole number of pixels")
    return int(side)


def _places(mask: NDArray[np.bool_]) -> list[int]:
    return np.flatnonzero(mask).tolist()


def _bad_row(columns: AnnotationColumns, index: int, reason: str) -> BadEntry:
    key, image_id = int(columns.key[index]), int(columns.image_id[index])
    return BadEntry(int(columns.place[index]), str(key), reason, key, image_id)


def _clipped(
    boxes_px_xywh: NDArray[np.float64], sizes_px: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Clip boxes to images of ``sizes_px`` ``[N, 2]``; return ``[N, 4]`` fractions, and which boxes it changed."""
    low, high = boxes_px_xywh[:, :2], boxes_px_xywh[:, :2] + boxes_px_xywh[:, 2:]
    was_clipped = np.any((low < 0) | (high > sizes_px), axis=1)
    corners = np.concatenate([np.maximum(low, 0.0) / sizes_px, np.minimum(high, sizes_px) / sizes_px], axis=1)
    return corners, was_clipped

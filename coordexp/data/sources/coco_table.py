"""The rows of an annotation file put together: objects under their images, boxes clipped and scaled, orphans refused.

Shapes: I images, N objects.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordexp.coord_tokens.bins import are_thin
from coordexp.data.images.image_folder import ImageFolder
from coordexp.data.rejected import Rejections
from coordexp.data.sources.coco_rows import CROWD, IGNORED, TARGET, AnnotationColumns, BadEntry, CategoryRow, ImageRow
from coordexp.data.sources.coco_sections import SECTIONS, CocoRows, Section
from coordexp.errors import DataError


@dataclass(frozen=True)
class ImageObjects:
    """Some images and their objects, side by side.

    Attributes:
        images: the usable images, in file order; ``file_name`` is relative to the image folder.
        first: ``[I + 1]``; the objects of image ``i`` are ``first[i] .. first[i + 1]``.
        category_ids: ``[N]``.
        kinds: ``[N]``; TARGET, CROWD or IGNORED.
        boxes_px_xywh: ``[N, 4]`` as in the file.
        boxes_norm_xyxy: ``[N, 4]`` clipped to the image, as fractions of it.
    """

    images: list[ImageRow]
    first: NDArray[np.int64]
    category_ids: NDArray[np.int64]
    kinds: NDArray[np.int8]
    boxes_px_xywh: NDArray[np.float64]
    boxes_norm_xyxy: NDArray[np.float64]


@dataclass(frozen=True)
class CocoTable(ImageObjects):
    """What an annotation file holds.

    Attributes:
        categories: row of each category id.
        counts: see :class:`coordexp.data.sources.coco.CocoData`.
        rejections: what was left out, with reasons.
    """

    categories: dict[int, CategoryRow]
    counts: dict[str, int]
    rejections: Rejections


def build_table(rows: CocoRows, path: Path, folder: ImageFolder, *, max_bad_fraction: float) -> CocoTable:
    """Put the rows of ``path`` together.

    Raises:
        DataError: if more than the accepted fraction of images, annotations or categories is bad,
            or no image is left.
    """
    bad: dict[Section, list[BadEntry]] = {section: list(found) for section, found in rows.bad.items()}
    categories = _distinct_categories(rows, bad["categories"])
    images, lost_ids = _usable_images(rows, folder, bad["images"])
    objects, image_index, num_lost = _usable_annotations(rows, images, lost_ids, categories, bad["annotations"])
    boxes, was_clipped = _clipped(objects.box_px_xywh, _sizes(images)[image_index])
    outside = (boxes[:, 0] >= boxes[:, 2]) | (boxes[:, 1] >= boxes[:, 3])
    for i in _places(outside):
        image = images[image_index[i]]
        reason = f"lies outside its image of {image.width} x {image.height} pixels"
        shown = [round(value, 2) for value in objects.box_px_xywh[i].tolist()]
        bad["annotations"].append(_bad_row(objects, i, f"bbox {shown} {reason}"))
    rejections = _collected(bad, path)
    rejections.accept({**rows.totals}, max_bad_fraction=max_bad_fraction)
    if not images:
        raise DataError(f"{path}: there is no image to use; expected at least one entry in images")
    kept = np.flatnonzero(~outside)
    order = kept[np.argsort(image_index[kept], kind="stable")]
    first = np.searchsorted(image_index[order], np.arange(len(images) + 1))
    kinds, boxes = objects.kind[order], boxes[order]
    counts = _counts(kinds, boxes, was_clipped[order], first) | {"of_rejected_images": num_lost} | {**rows.totals}
    counts["repeated_file_names"] = len(images) - len({image.file_name for image in images})
    counts |= {f"rejected_{section}": len(bad[section]) for section in SECTIONS}
    return CocoTable(
        images=images,
        first=first,
        category_ids=objects.category_id[order],
        kinds=kinds,
        boxes_px_xywh=objects.box_px_xywh[order],
        boxes_norm_xyxy=boxes,
        categories=categories,
        counts=counts,
        rejections=rejections,
    )


def shown_entry(section: Section, entry: BadEntry) -> str:
    """Return the place of an entry as messages show it: ``annotations[17] (id 23)``."""
    return f"{section}[{entry.place}]" + (f" (id {entry.shown_id})" if entry.shown_id else "")


def _distinct_categories(rows: CocoRows, bad: list[BadEntry]) -> dict[int, CategoryRow]:
    categories: dict[int, CategoryRow] = {}
    for row in rows.categories:
        if row.key in categories:
            reason = f"category id {row.key} was used before ({categories[row.key].name!r})"
            bad.append(BadEntry(row.place, str(row.key), reason, row.key, None))
        else:
            categories[row.key] = row
    return categories


def _usable_images(rows: CocoRows, folder: ImageFolder, bad: list[BadEntry]) -> tuple[list[ImageRow], set[int]]:
    """Return the images that are there, and the ids of those that are not or were refused before."""
    first_place: dict[int, int] = {}
    for row in [*rows.images, *bad]:
        if row.key is not None:
            first_place[row.key] = min(row.place, first_place.get(row.key, row.place))
    images: list[ImageRow] = []
    for row in rows.images:
        try:
            if first_place[row.key] < row.place:
                raise DataError(f"image id {row.key} was used before")
            folder.find(str(row.file_name))
            images.append(row)
        except DataError as error:
            bad.append(BadEntry(row.place, str(row.key), str(error), row.key, None))
    return images, first_place.keys() - {image.key for image in images}


def _usable_annotations(
    rows: CocoRows,
    images: list[ImageRow],
    lost_ids: set[int],
    categories: dict[int, CategoryRow],
    bad: list[BadEntry],
) -> tuple[AnnotationColumns, NDArray[np.int64], int]:
    """Return annotations with image and category, the index of each one's image, and how many lost images cost."""
    found = _without_repeated_ids(rows.annotations, bad)
    num_of_lost = sum(entry.image_id in lost_ids for entry in bad)
    bad[:] = [entry for entry in bad if entry.image_id not in lost_ids]
    is_lost = np.isin(found.image_id, np.array(sorted(lost_ids), np.int64))
    found = found.only(~is_lost)

    image_ids = np.array([image.key for image in images], np.int64)
    orphans = ~np.isin(found.image_id, image_ids)
    bad += (_bad_row(found, i, f"no image has the id {found.image_id[i]}") for i in _places(orphans))
    found = found.only(~orphans)
    nameless = ~np.isin(found.category_id, np.array(sorted(categories), np.int64))
    bad += (_bad_row(found, i, f"no usable category has the id {found.category_id[i]}") for i in _places(nameless))
    found = found.only(~nameless)

    by_id = np.argsort(image_ids)
    index = by_id[np.searchsorted(image_ids[by_id], found.image_id)] if images else np.zeros(0, np.int64)
    return found, index, num_of_lost + int(is_lost.sum())


def _without_repeated_ids(columns: AnnotationColumns, bad: list[BadEntry]) -> AnnotationColumns:
    """Refuse annotations whose id an earlier entry has, be that one good or bad."""
    others = [(entry.key, entry.place) for entry in bad if entry.key is not None]
    keys = np.concatenate([columns.key, np.array([key for key, _ in others], np.int64)])
    places = np.concatenate([columns.place, np.array([place for _, place in others], np.int64)])
    order = np.lexsort((places, keys))
    repeated = np.zeros(len(keys), bool)
    repeated[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    repeated = repeated[: len(columns.key)]
    bad += (_bad_row(columns, i, f"annotation id {columns.key[i]} was used before") for i in _places(repeated))
    return columns.only(~repeated)


def _places(mask: NDArray[np.bool_]) -> list[int]:
    return np.flatnonzero(mask).tolist()


def _bad_row(columns: AnnotationColumns, index: int, reason: str) -> BadEntry:
    key, image_id = int(columns.key[index]), int(columns.image_id[index])
    return BadEntry(int(columns.place[index]), str(key), reason, key, image_id)


def _sizes(images: list[ImageRow]) -> NDArray[np.float64]:
    return np.array([(image.width, image.height) for image in images], np.float64).reshape(-1, 2)


def _clipped(
    boxes_px_xywh: NDArray[np.float64], sizes_px: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Clip boxes to images of ``sizes_px`` ``[N, 2]``; return ``[N, 4]`` fractions, and which boxes it changed."""
    low, high = boxes_px_xywh[:, :2], boxes_px_xywh[:, :2] + boxes_px_xywh[:, 2:]
    was_clipped = np.any((low < 0) | (high > sizes_px), axis=1)
    corners = np.concatenate([np.maximum(low, 0.0) / sizes_px, np.minimum(high, sizes_px) / sizes_px], axis=1)
    return corners, was_clipped


def _collected(bad: dict[Section, list[BadEntry]], path: Path) -> Rejections:
    rejections = Rejections(path)
    for section in ("categories", "images", "annotations"):
        for entry in sorted(bad[section], key=lambda entry: entry.place):
            rejections.add(section, shown_entry(section, entry), entry.reason)
    return rejections


def _counts(
    kinds: NDArray[np.int8],
    boxes_norm_xyxy: NDArray[np.float64],
    was_clipped: NDArray[np.bool_],
    first: NDArray[np.int64],
) -> dict[str, int]:
    is_target = kinds == TARGET
    num_targets_before = np.concatenate([[0], np.cumsum(is_target)])[first]
    return {
        "boxes": int(is_target.sum()),
        "crowd": int((kinds == CROWD).sum()),
        "ignored": int((kinds == IGNORED).sum()),
        "clipped": int((was_clipped & is_target).sum()),
        "thin": int(are_thin(boxes_norm_xyxy[is_target]).sum()),
        "images_without_objects": int((np.diff(num_targets_before) == 0).sum()),
    }

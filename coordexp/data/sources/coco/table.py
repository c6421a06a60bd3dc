"""Entries of an annotation file -> a table: objects under their images, boxes clipped and scaled, orphans refused.

Other formats of labels become a :class:`~coordexp.data.coco.file.CocoFile` and go the same way.
Shapes: I images, N objects.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordexp.coord_tokens.bins import are_thin
from coordexp.data.box_rule import apply_box_rule, box_notes
from coordexp.data.coco.entries import SECTIONS, Annotation, BadEntry, Category, Section
from coordexp.data.coco.file import AnnotationColumns, CocoFile
from coordexp.data.images.files import Header
from coordexp.data.images.folder import ImageFolder
from coordexp.data.images.headers import turned_headers
from coordexp.data.images.orientation import turn_boxes
from coordexp.data.reading import BoxesIn, Reading
from coordexp.data.sets.split_arrays import CROWD, IGNORED, TARGET
from coordexp.data.sources.coco.usable import CocoImage, bad_row, marked_places, usable_entries
from coordexp.data.sources.frame import check_frame
from coordexp.data.sources.turned import Turned, find_turned
from coordexp.data.split_data import Rejections
from coordexp.errors import DataError, counted


@dataclass(frozen=True)
class CocoTable:
    """The usable part of an annotation file."""

    images: list[CocoImage]
    first: NDArray[np.int64]  # [I + 1]; the objects of image i are first[i] .. first[i + 1]
    category_ids: NDArray[np.int64]  # [N]
    kinds: NDArray[np.int8]  # [N]; TARGET, CROWD or IGNORED
    boxes_px_xywh: NDArray[np.float64]  # [N, 4] as in the file, in the picture as shown
    boxes_norm_xyxy: NDArray[np.float64]  # [N, 4] clipped to the image, as fractions of it
    areas_px2: NDArray[np.float64]  # [N] as in the file, else of the box
    annotation_ids: NDArray[np.int64]  # [N] as in the file; 0 where there is none
    clipped: NDArray[np.int64]  # [I] targets of an image that were cut at its border
    swapped: NDArray[np.int64]  # [I] boxes of an image whose corners were put in order
    num_no_extent: NDArray[np.int64]  # [I] boxes of an image that have no extent
    orientations: NDArray[np.uint8]  # [I] how a viewer turns a picture (EXIF)
    categories: dict[int, Category]
    counts: dict[str, int]  # as in SplitData; warnings and notes, too
    rejections: Rejections
    no_extent: AnnotationColumns  # boxes without a width or a height: no targets, but a ground truth of COCO keeps them
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what was read otherwise than it is written: such a file cannot serve for AP as it is
    box_notes: tuple[str, ...] = ()  # what the rule for boxes did to targets; AP takes the file as it is
    is_turned: bool = False


def build_table(file: CocoFile, folder: ImageFolder, *, max_bad_fraction: float, reading: Reading) -> CocoTable:
    """Put the entries of a file together.

    Raises:
        DataError: if more than the accepted fraction of images, annotations or categories is bad,
            or no image is left.
    """
    entries = usable_entries(file, folder, reading)
    images, objects, image_index = entries.images, entries.objects, entries.image_index
    turned, sizes = _frames(images, objects, image_index, folder, reading.boxes_in)
    sizes_of_boxes = sizes[image_index]
    corners = objects.box_px_xywh.copy()
    corners[:, 2:] += corners[:, :2]
    ruled = apply_box_rule(corners, sizes_of_boxes)
    odd = check_frame(
        file.path,
        objects.box_px_xywh[ruled.has_extent],
        sizes_of_boxes[ruled.has_extent],
        max_bad_fraction=max_bad_fraction,
    )
    entries.bad["annotations"] += _outside(objects, ruled.is_outside, sizes_of_boxes)
    totals = {section: getattr(file, section).total for section in ("images", "annotations", "categories")}
    cause = _off_by_one(file.annotations.good, images=entries.image_ids, categories=entries.category_ids)
    rejections = _rejections(file.path, entries.bad)
    rejections.accept(totals, max_bad_fraction=max_bad_fraction, cause=cause)
    if not images:
        raise DataError(f"{file.path}: there is no image to use; expected at least one entry in images")

    boxes = ruled.corners_xyxy / np.tile(sizes_of_boxes, 2)
    for place in turned.stored:
        rows = image_index == place
        boxes[rows] = turn_boxes(boxes[rows], turned.headers[place].orientation)
        objects.box_px_xywh[rows] = _turned_px(objects.box_px_xywh[rows], turned.headers[place])

    # Boxes that are used, image by image; those of no extent stand apart.
    no_extent, images_of_no_extent = objects.only(~ruled.has_extent), image_index[~ruled.has_extent]
    kept = np.flatnonzero(ruled.has_extent & ~ruled.is_outside)
    order = kept[np.argsort(image_index[kept], kind="stable")]
    objects, boxes = objects.only(order), boxes[order]
    first = np.searchsorted(image_index[order], np.arange(len(images) + 1))
    kinds = kinds_of(objects)
    is_target = kinds == TARGET
    was_clipped = ruled.was_clipped[order] & is_target
    swapped_by_image = Counter(one.image_id for one in file.annotations.good if one.was_swapped)
    counts = {
        **_counts_of_boxes(kinds, boxes, was_clipped=was_clipped, first=first),
        "no_extent": len(no_extent.key),
        "swapped": file.num_swapped,
        "of_rejected_images": entries.num_lost,
        "trimmed_names": entries.num_trimmed,
        **totals,
        "repeated_file_names": len(images) - len({image.name for image in images}),
        **{f"rejected_{section}": len(entries.bad[section]) for section in SECTIONS},
    }
    warnings, notes = turned.sentences(len(images))
    orientations = [turned.headers[place].orientation if place in turned.headers else 1 for place in range(len(images))]
    notes_on_boxes = box_notes(
        lambda place: images[place].name,
        clipped=image_index[order][was_clipped].tolist(),
        no_extent=images_of_no_extent.tolist(),
    )
    return CocoTable(
        images=images,
        first=first,
        category_ids=objects.category_id,
        kinds=kinds,
        boxes_px_xywh=objects.box_px_xywh,
        boxes_norm_xyxy=boxes,
        areas_px2=objects.area_px2,
        annotation_ids=objects.key,
        clipped=_sums_by_image(was_clipped, first),
        swapped=np.array([swapped_by_image[image.image_id] for image in images], np.int64),
        num_no_extent=np.bincount(images_of_no_extent, minlength=len(images)),
        orientations=np.array(orientations, np.uint8),
        categories=entries.categories,
        counts=counts,
        rejections=rejections,
        no_extent=no_extent,
        warnings=(*filter(None, (odd, cause)), *warnings),
        notes=(*file.repairs, *folder.notes, *_repairs_of(file, images, entries.merged), *notes),
        box_notes=tuple(notes_on_boxes),
        is_turned=bool(turned.headers),
    )


def _outside(
    objects: AnnotationColumns, is_outside: NDArray[np.bool_], sizes_of_boxes: NDArray[np.float64]
) -> list[BadEntry]:
    """Return a bad entry for each box that lies wholly outside its image."""
    bad: list[BadEntry] = []
    for row in marked_places(is_outside):
        width, height = sizes_of_boxes[row].astype(int).tolist()
        shown = [round(value, 2) for value in objects.box_px_xywh[row].tolist()]
        bad.append(bad_row(objects, row, f"bbox {shown} lies outside its image of {width} x {height} pixels"))
    return bad


def _counts_of_boxes(
    kinds: NDArray[np.int8],
    boxes_norm_xyxy: NDArray[np.float64],
    *,
    was_clipped: NDArray[np.bool_],
    first: NDArray[np.int64],
) -> dict[str, int]:
    """Count boxes by what they are; all are in the order of their images, which begin at ``first``."""
    is_target = kinds == TARGET
    return {
        "boxes": int(is_target.sum()),
        "crowd": int((kinds == CROWD).sum()),
        "ignored": int((kinds == IGNORED).sum()),
        "clipped": int(was_clipped.sum()),
        "thin": int(are_thin(boxes_norm_xyxy[is_target]).sum()),
        "images_without_objects": int((_sums_by_image(is_target, first) == 0).sum()),
    }


def _sums_by_image(marks: NDArray[np.bool_], first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many boxes of each image are marked."""
    marked_before = np.concatenate([[0], np.cumsum(marks)])
    return np.diff(marked_before[first])


def kinds_of(objects: AnnotationColumns) -> NDArray[np.int8]:
    return np.where(objects.is_crowd, CROWD, np.where(objects.is_ignored, IGNORED, TARGET)).astype(np.int8)


def _frames(
    images: list[CocoImage],
    objects: AnnotationColumns,
    image_index: NDArray[np.int64],
    folder: ImageFolder,
    boxes_in: BoxesIn,
) -> tuple[Turned, NDArray[np.float64]]:
    """Return which pictures a viewer turns, and ``[I, 2]`` the size of the frame in which the boxes of each stand.

    Widths and heights of ``images`` become those as shown.
    """
    headers = turned_headers([folder.root / image.name for image in images]) if folder.checks else {}
    reach: dict[int, tuple[float, float]] = {}
    for place in headers:
        boxes = objects.box_px_xywh[image_index == place]
        if len(boxes):
            right, bottom = (boxes[:, :2] + boxes[:, 2:]).max(axis=0).tolist()
            reach[place] = right, bottom
    turned = find_turned(headers, {place: images[place].recorded for place in headers}, reach, boxes_in)
    sizes = np.array([(image.width, image.height) for image in images], np.float64).reshape(-1, 2)
    for place, header in headers.items():
        if images[place].recorded in (None, header[:2], header.shown):
            images[place] = images[place]._replace(width=header.shown[0], height=header.shown[1])
            sizes[place] = turned.frame(place)
    return turned, sizes


def _rejections(path: Path, bad: Mapping[Section, Sequence[BadEntry]]) -> Rejections:
    rejections = Rejections(path)
    for section in SECTIONS:
        for entry in sorted(bad[section], key=lambda entry: entry.place):
            shown_id = f" (id {entry.shown_id})" if entry.shown_id else ""
            rejections.add(section, f"{section}[{entry.place}]{shown_id}", entry.reason)
    return rejections


def _repairs_of(file: CocoFile, images: Sequence[CocoImage], merged: Mapping[int, Category]) -> list[str]:
    notes: list[str] = []
    if num := len(file.annotations.good) - len({one.id for one in file.annotations.good} - {0, None}):
        notes.append(f"numbered anew, since their ids are repeated, 0 or missing: {counted(num, 'annotation')}")
    if file.has_sizes and (num_measured := sum(image.recorded is None for image in images)):
        notes.append(f"no width and height beside {counted(num_measured, 'picture')}: read from the header")
    if merged:
        names = ", ".join(repr(name) for name in sorted({one.name for one in merged.values()}))
        notes.append(f"merged into one that reads the same: {counted(len(merged), 'category')}, {names}")
    return notes


def _turned_px(boxes_px_xywh: NDArray[np.float64], header: Header) -> NDArray[np.float64]:
    corners = np.concatenate([boxes_px_xywh[:, :2], boxes_px_xywh[:, :2] + boxes_px_xywh[:, 2:]], axis=1)
    turned = turn_boxes(corners / np.array(header[:2] * 2), header.orientation) * np.array(header.shown * 2)
    return np.concatenate([turned[:, :2], turned[:, 2:] - turned[:, :2]], axis=1).round(6)


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

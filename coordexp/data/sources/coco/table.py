"""Entries of an annotation file -> a table: objects under their images, boxes clipped and scaled, orphans refused.

Other formats of labels become a :class:`~coordexp.data.coco.file.CocoFile` and go the same way.

Shapes: I images, N objects.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordexp.coord_tokens.bins import are_thin
from coordexp.data.box_rule import RuledBoxes, apply_box_rule, box_notes
from coordexp.data.coco.entries import SECTIONS, Annotation, BadEntry, Category, Section
from coordexp.data.coco.file import AnnotationColumns, CocoFile
from coordexp.data.images.files import Header
from coordexp.data.images.folder import ImageFolder
from coordexp.data.images.headers import turned_headers
from coordexp.data.images.orientation import turn_boxes
from coordexp.data.reading import BoxesIn, Reading
from coordexp.data.sets.split_arrays import CROWD, IGNORED, TARGET
from coordexp.data.sources.coco.usable import CocoImage, UsableEntries, bad_row, marked_rows, usable_entries
from coordexp.data.sources.frame import check_frame
from coordexp.data.sources.turned import Turned, find_turned
from coordexp.data.split_data import Rejections
from coordexp.errors import DataError, counted


@dataclass(frozen=True)
class CocoTable:
    """The usable part of an annotation file.

    Attributes:
        images: usable images.
        first: ``[I + 1]``; the objects of image ``i`` are ``first[i] .. first[i + 1]``.
        category_ids: ``[N]``.
        kinds: ``[N]`` TARGET, CROWD or IGNORED.
        boxes_px_xywh: ``[N, 4]`` as in the file, in the picture as shown.
        boxes_norm_xyxy: ``[N, 4]`` clipped to the image, as fractions of it.
        areas_px2: ``[N]`` as in the file, else the area of the box.
        annotation_ids: ``[N]`` as in the file; 0 without an id.
        clipped: ``[I]`` targets of an image that were cut at its border.
        swapped: ``[I]`` boxes of an image whose corners were put in order.
        num_no_extent: ``[I]`` boxes of an image that have no extent.
        orientations: ``[I]`` how a viewer turns a picture (EXIF).
        categories: by id.
        counts: as in SplitData.
        rejections: the bad records.
        no_extent: boxes without a width or a height: no targets, but a ground truth of COCO keeps them.
        warnings: as in SplitData.
        notes: what was read otherwise than it is written: such a file cannot serve for AP as it is.
        box_notes: what the rule for boxes did to targets; AP takes such a file as it is.
        is_turned: whether a viewer turns any picture.
    """

    images: list[CocoImage]
    first: NDArray[np.int64]
    category_ids: NDArray[np.int64]
    kinds: NDArray[np.int8]
    boxes_px_xywh: NDArray[np.float64]
    boxes_norm_xyxy: NDArray[np.float64]
    areas_px2: NDArray[np.float64]
    annotation_ids: NDArray[np.int64]
    clipped: NDArray[np.int64]
    swapped: NDArray[np.int64]
    num_no_extent: NDArray[np.int64]
    orientations: NDArray[np.uint8]
    categories: dict[int, Category]
    counts: dict[str, int]
    rejections: Rejections
    no_extent: AnnotationColumns
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    box_notes: tuple[str, ...] = ()
    is_turned: bool = False


def build_table(file: CocoFile, folder: ImageFolder, *, max_bad_fraction: float, reading: Reading) -> CocoTable:
    """Put the entries of a file together.

    Args:
        file: the entries.
        folder: of the pictures.
        max_bad_fraction: largest accepted fraction of bad images, annotations or categories.
        reading: how annotations are read if they do not say it themselves.

    Raises:
        DataError: if more than the accepted fraction is bad, boxes stand in another frame, or no image is left.
    """
    entries = usable_entries(file, folder, reading)
    images = entries.images
    objects = entries.objects
    image_index = entries.image_index
    turned, sizes = _frames(images, objects, image_index, folder, reading.boxes_in)
    checked = _check_boxes(file, entries, sizes[image_index], max_bad_fraction=max_bad_fraction)
    ruled = checked.ruled

    # Fractions are taken in the frame in which the boxes stand; then boxes are turned with their picture.
    boxes_norm = ruled.corners_xyxy / np.tile(sizes[image_index], 2)
    _turn_stored(boxes_norm, objects, image_index, turned)

    # Boxes of no extent go their own way. The others stand image by image from here on.
    no_extent = objects.only(~ruled.has_extent)
    images_of_no_extent = image_index[~ruled.has_extent]
    order = _usable_rows_by_image(ruled, image_index)
    objects = objects.only(order)
    boxes_norm = boxes_norm[order]
    image_index = image_index[order]
    first = np.searchsorted(image_index, np.arange(len(images) + 1))
    kinds = kinds_of(objects)
    was_clipped = ruled.was_clipped[order] & (kinds == TARGET)  # cutting a crowd changes no target

    counts = {
        **_counts_of_boxes(kinds, boxes_norm, was_clipped=was_clipped, first=first),
        "no_extent": len(no_extent.key),
        **_counts_of_entries(file, entries, checked.totals),
    }
    turn_warnings, turn_notes = turned.sentences(len(images))
    notes_on_boxes = box_notes(
        lambda image: images[image].name,
        clipped=image_index[was_clipped].tolist(),
        no_extent=images_of_no_extent.tolist(),
    )
    orientations = np.ones(len(images), np.uint8)
    for image, header in turned.headers.items():
        orientations[image] = header.orientation
    return CocoTable(
        images=images,
        first=first,
        category_ids=objects.category_id,
        kinds=kinds,
        boxes_px_xywh=objects.box_px_xywh,
        boxes_norm_xyxy=boxes_norm,
        areas_px2=objects.area_px2,
        annotation_ids=objects.key,
        clipped=_sums_by_image(was_clipped, first),
        swapped=_num_swapped_by_image(file, images),
        num_no_extent=np.bincount(images_of_no_extent, minlength=len(images)),
        orientations=orientations,
        categories=entries.categories,
        counts=counts,
        rejections=checked.rejections,
        no_extent=no_extent,
        warnings=(*checked.warnings, *turn_warnings),
        notes=(*file.repairs, *folder.notes, *_repairs_of(file, images, entries.merged), *turn_notes),
        box_notes=tuple(notes_on_boxes),
        is_turned=bool(turned.headers),
    )


class _CheckedBoxes(NamedTuple):
    """The boxes of a file by the rule, and what is wrong with the file.

    Attributes:
        ruled: ``[N]`` boxes in the unit of the file.
        rejections: all bad entries.
        totals: entries of each section, good and bad.
        warnings: what looks wrong with the file as a whole.
    """

    ruled: RuledBoxes
    rejections: Rejections
    totals: dict[str, int]
    warnings: list[str]


def _check_boxes(
    file: CocoFile, entries: UsableEntries, sizes_of_boxes: NDArray[np.float64], *, max_bad_fraction: float
) -> _CheckedBoxes:
    """Apply the rule for boxes, and refuse a file of which too much is bad; boxes outside their image are bad.

    Args:
        file: the entries.
        entries: those that can be used.
        sizes_of_boxes: ``[N, 2]`` width and height of the frame of each box.
        max_bad_fraction: largest accepted fraction of bad images, annotations or categories.

    Raises:
        DataError: if more is bad, boxes stand in another frame, or no image is left.
    """
    objects = entries.objects
    corners = objects.box_px_xywh.copy()
    corners[:, 2:] += corners[:, :2]
    ruled = apply_box_rule(corners, sizes_of_boxes)
    frame_warning = check_frame(
        file.path,
        objects.box_px_xywh[ruled.has_extent],
        sizes_of_boxes[ruled.has_extent],
        max_bad_fraction=max_bad_fraction,
    )
    entries.bad["annotations"] += _outside(objects, ruled.is_outside, sizes_of_boxes)
    shift_warning = _off_by_one(file.annotations.good, images=entries.image_ids, categories=entries.category_ids)
    totals = {"images": file.images.total, "annotations": file.annotations.total, "categories": file.categories.total}
    rejections = _rejections(file.path, entries.bad)
    rejections.accept(totals, max_bad_fraction=max_bad_fraction, cause=shift_warning)
    if not entries.images:
        raise DataError(f"{file.path}: there is no image to use; expected at least one entry in images")
    warnings = [warning for warning in (frame_warning, shift_warning) if warning]
    return _CheckedBoxes(ruled, rejections, totals, warnings)


def _num_swapped_by_image(file: CocoFile, images: Sequence[CocoImage]) -> NDArray[np.int64]:
    """Return how many boxes of each image had a negative width or height."""
    num_of_id = Counter(annotation.image_id for annotation in file.annotations.good if annotation.was_swapped)
    return np.array([num_of_id[image.image_id] for image in images], np.int64)


def _usable_rows_by_image(ruled: RuledBoxes, image_index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of boxes that have an extent and lie in their image: image by image, in file order within one."""
    usable = np.flatnonzero(ruled.has_extent & ~ruled.is_outside)
    return usable[np.argsort(image_index[usable], kind="stable")]


def _turn_stored(
    boxes_norm_xyxy: NDArray[np.float64],
    objects: AnnotationColumns,
    image_index: NDArray[np.int64],
    turned: Turned,
) -> None:
    """Turn the boxes of stored pixels, in place, to boxes of the picture as a viewer shows it."""
    for image in turned.stored:
        header = turned.headers[image]
        rows = image_index == image
        boxes_norm_xyxy[rows] = turn_boxes(boxes_norm_xyxy[rows], header.orientation)
        objects.box_px_xywh[rows] = _turned_px(objects.box_px_xywh[rows], header)


def _turned_px(boxes_px_xywh: NDArray[np.float64], header: Header) -> NDArray[np.float64]:
    """Return boxes in pixels of the stored picture as boxes in pixels of the shown picture."""
    stored_size, shown_size = np.array(header[:2] * 2), np.array(header.shown * 2)
    corners = np.concatenate([boxes_px_xywh[:, :2], boxes_px_xywh[:, :2] + boxes_px_xywh[:, 2:]], axis=1)
    turned = turn_boxes(corners / stored_size, header.orientation) * shown_size
    return np.concatenate([turned[:, :2], turned[:, 2:] - turned[:, :2]], axis=1).round(6)


def _outside(
    objects: AnnotationColumns, is_outside: NDArray[np.bool_], sizes_of_boxes: NDArray[np.float64]
) -> list[BadEntry]:
    """Return a bad entry for each box that lies wholly outside its image."""
    bad: list[BadEntry] = []
    for row in marked_rows(is_outside):
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


def _counts_of_entries(file: CocoFile, entries: UsableEntries, totals: Mapping[str, int]) -> dict[str, int]:
    """Count what was repaired, lost and refused of a file's entries."""
    different_names = {image.name for image in entries.images}
    return {
        "swapped": file.num_swapped,
        "of_rejected_images": entries.num_lost,
        "trimmed_names": entries.num_trimmed,
        **totals,
        "repeated_file_names": len(entries.images) - len(different_names),
        **{f"rejected_{section}": len(entries.bad[section]) for section in SECTIONS},
    }


def _sums_by_image(is_marked: NDArray[np.bool_], first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many boxes of each image are marked."""
    marked_before = np.concatenate([[0], np.cumsum(is_marked)])
    return np.diff(marked_before[first])


def kinds_of(objects: AnnotationColumns) -> NDArray[np.int8]:
    """Return ``[N]`` TARGET, CROWD or IGNORED."""
    return np.where(objects.is_crowd, CROWD, np.where(objects.is_ignored, IGNORED, TARGET)).astype(np.int8)


def _frames(
    images: list[CocoImage],
    objects: AnnotationColumns,
    image_index: NDArray[np.int64],
    folder: ImageFolder,
    boxes_in: BoxesIn,
) -> tuple[Turned, NDArray[np.float64]]:
    """Find out which pictures a viewer turns, and in which frame their boxes stand.

    Widths and heights of ``images`` become, in place, those of the picture as shown.

    Args:
        images: of the file.
        objects: their annotations.
        image_index: ``[N]`` index in ``images`` of each annotation's image.
        folder: of the pictures; without a check, they may be elsewhere, and none is opened.
        boxes_in: ``data.boxes_in``.

    Returns:
        The turned pictures, and ``[I, 2]`` width and height of the frame in which the boxes of each image stand.
    """
    headers = turned_headers([folder.root / image.name for image in images]) if folder.checks else {}
    reach: dict[int, tuple[float, float]] = {}
    for image in headers:
        boxes = objects.box_px_xywh[image_index == image]
        if len(boxes):
            right, bottom = (boxes[:, :2] + boxes[:, 2:]).max(axis=0).tolist()
            reach[image] = right, bottom
    recorded = {image: images[image].recorded for image in headers}
    turned = find_turned(headers, recorded, reach, boxes_in)

    sizes = np.array([(image.width, image.height) for image in images], np.float64).reshape(-1, 2)
    for image, header in headers.items():
        # Another recorded size is wrong either way: it stays, and is reported when the picture is used.
        if recorded[image] in (None, header[:2], header.shown):
            images[image] = images[image]._replace(width=header.shown[0], height=header.shown[1])
            sizes[image] = turned.frame(image)
    return turned, sizes


def _rejections(path: Path, bad: Mapping[Section, Sequence[BadEntry]]) -> Rejections:
    """Return the bad entries of a file, by section and in file order."""
    rejections = Rejections(path)
    for section in SECTIONS:
        for entry in sorted(bad[section], key=lambda entry: entry.place):
            shown_id = f" (id {entry.shown_id})" if entry.shown_id else ""
            rejections.add(section, f"{section}[{entry.place}]{shown_id}", entry.reason)
    return rejections


def _repairs_of(file: CocoFile, images: Sequence[CocoImage], merged: Mapping[int, Category]) -> list[str]:
    """Return what was repaired in the entries, a sentence each with a number."""
    notes: list[str] = []
    different_ids = {annotation.id for annotation in file.annotations.good} - {0, None}
    num_without_own_id = len(file.annotations.good) - len(different_ids)
    if num_without_own_id:
        num_annotations = counted(num_without_own_id, "annotation")
        notes.append(f"numbered anew, since their ids are repeated, 0 or missing: {num_annotations}")
    num_measured = sum(image.recorded is None for image in images)
    if file.has_sizes and num_measured:
        notes.append(f"no width and height beside {counted(num_measured, 'picture')}: read from the header")
    if merged:
        names = ", ".join(repr(name) for name in sorted({category.name for category in merged.values()}))
        notes.append(f"merged into one that reads the same: {counted(len(merged), 'category')}, {names}")
    return notes


def _off_by_one(
    annotations: Sequence[Annotation], *, images: Collection[int | None], categories: Collection[int | None]
) -> str:
    """Return the cure if all annotations would have a category, or an image, were their ids one more or less.

    Args:
        annotations: good ones.
        images: every id of an image that the file names.
        categories: every id of a category that the file names.
    """
    category_ids = {annotation.category_id for annotation in annotations}
    image_ids = {annotation.image_id for annotation in annotations}
    for kind, used_ids, named_ids in (
        ("category", category_ids, set(categories)),
        ("image", image_ids, set(images)),
    ):
        if used_ids <= named_ids:
            continue
        for shift, cure in ((1, "add 1 to"), (-1, "subtract 1 from")):
            if {used_id + shift for used_id in used_ids} <= named_ids:
                return f"{kind} ids look off by one: {cure} each {kind}_id"
    return ""

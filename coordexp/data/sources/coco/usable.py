"""The usable entries of an annotation file, and what is wrong with the others.

Shapes: N annotations.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordexp.data.coco.entries import BadEntry, Category, Entries, Image, Section
from coordexp.data.coco.file import AnnotationColumns, CocoFile
from coordexp.data.images.files import size_problem
from coordexp.data.images.folder import ImageFolder
from coordexp.data.images.headers import read_header, read_headers_ahead
from coordexp.data.reading import Reading
from coordexp.data.sample import fold
from coordexp.errors import DataError, is_text, show


class CocoImage(NamedTuple):
    """A usable image.

    Attributes:
        place: index in the file's ``images``.
        image_id: its id.
        name: path of the picture relative to the image folder.
        width: in pixels as shown.
        height: in pixels as shown.
        recorded: width and height as in the file; None without.
        extras: further fields, such as LVIS's lists of categories.
    """

    place: int
    image_id: int
    name: str
    width: int
    height: int
    recorded: tuple[int, int] | None
    extras: dict[str, list[int]]


@dataclass(frozen=True)
class UsableEntries:
    """The entries of a file that can be used, and what is wrong with the others.

    Attributes:
        images: with their pictures.
        objects: annotations of usable images; those of a merged category stand under the id that stays.
        image_index: ``[N]`` index in ``images`` of each annotation's image.
        categories: by id, without those that are merged into another one.
        merged: id of a merged category -> the category that stays.
        bad: entries that cannot be used.
        lost_ids: ids of images that cannot be used.
        num_lost: annotations of such images.
        num_trimmed: names of categories with white space around them.
    """

    images: list[CocoImage]
    objects: AnnotationColumns
    image_index: NDArray[np.int64]
    categories: dict[int, Category]
    merged: dict[int, Category]
    bad: dict[Section, list[BadEntry]]
    lost_ids: set[int]
    num_lost: int
    num_trimmed: int

    @property
    def image_ids(self) -> set[int]:
        """Every id of an image that the file names, usable or not."""
        return {image.image_id for image in self.images} | self.lost_ids

    @property
    def category_ids(self) -> set[int | None]:
        """Every id of a category that the file names, usable or not."""
        return {*self.categories, *self.merged, *(entry.key for entry in self.bad["categories"])}


def usable_entries(file: CocoFile, folder: ImageFolder, reading: Reading) -> UsableEntries:
    """Sort the entries of a file: categories first, then images, then annotations of both."""
    all_categories, bad_categories, num_trimmed = _usable_categories(file)
    categories, merged = _merged(all_categories, file.path, merge=reading.merge)
    images, bad_images, lost_ids = _usable_images(file.images, folder)
    annotations = _usable_annotations(file, images, lost_ids, all_categories)
    objects = annotations.objects
    if merged:
        own_ids = objects.category_id.tolist()
        ids = [merged[category_id].id if category_id in merged else category_id for category_id in own_ids]
        objects = replace(objects, category_id=np.array(ids, np.int64))
    return UsableEntries(
        images=images,
        objects=objects,
        image_index=annotations.image_index,
        categories=categories,
        merged=merged,
        bad={"categories": bad_categories, "images": bad_images, "annotations": annotations.bad},
        lost_ids=lost_ids,
        num_lost=annotations.num_lost,
        num_trimmed=num_trimmed,
    )


def _usable_categories(file: CocoFile) -> tuple[dict[int, Category], list[BadEntry], int]:
    """Return the categories by id, the bad ones, and how many names had white space around them."""
    categories: dict[int, Category] = {}
    num_trimmed = 0
    roots = file.roots
    bad = list(file.categories.bad)
    for place, category in zip(file.categories.places.tolist(), file.categories.good, strict=True):
        if not is_text(category.name):
            reason = f"name is {show(category.name)}, expected text"
            bad.append(BadEntry(place, str(category.id), reason, category.id))
            continue
        if category.id in categories:
            reason = f"category id {category.id} was used before ({categories[category.id].name!r})"
            bad.append(BadEntry(place, str(category.id), reason, category.id))
            continue
        if category.id in roots:
            continue
        num_trimmed += category.name != category.name.strip()
        category.name = category.name.strip()
        categories[category.id] = category
    return categories, bad, num_trimmed


def _merged(
    categories: dict[int, Category], path: Path, *, merge: bool
) -> tuple[dict[int, Category], dict[int, Category]]:
    """Merge categories whose names read the same into the first of them.

    Returns:
        The categories that stay, by id; and the category that stays by the id of each merged one.

    Raises:
        DataError: if there are such names, and they are not to be merged.
    """
    first_of_name: dict[str, Category] = {}
    merged: dict[int, Category] = {}
    for category_id, category in categories.items():
        first = first_of_name.setdefault(fold(category.name), category)
        if first is not category:
            merged[category_id] = first
    if merged and not merge:
        pairs = [f"{categories[category_id].name!r} and {first.name!r}" for category_id, first in merged.items()]
        raise DataError(
            f"{path}: names of categories read the same once case and spacing are folded: {', '.join(pairs[:5])}; "
            "rename one, or data.categories.merge=true (prepare, evaluate: --merge-categories) makes them one"
        )
    staying = {category_id: category for category_id, category in categories.items() if category_id not in merged}
    return staying, merged


def _usable_images(entries: Entries[Image], folder: ImageFolder) -> tuple[list[CocoImage], list[BadEntry], set[int]]:
    """Return the images whose pictures are there, the bad ones, and the ids that only bad ones have."""
    bad = list(entries.bad)
    images: list[CocoImage] = []
    # The first entry with an id keeps it, and that entry may be a bad one: its annotations are lost with it.
    first_place = {entry.key: entry.place for entry in reversed(entries.bad) if entry.key is not None}
    _read_missing_sizes_ahead(entries, folder)
    for place, image in zip(entries.places.tolist(), entries.good, strict=True):
        is_first = first_place.setdefault(image.id, place) >= place
        first_place[image.id] = min(first_place[image.id], place)
        try:
            recorded_size = _recorded_size(image)
            name = folder.locate(image.name_in(folder.root))
            width, height = recorded_size or read_header(folder.root / name).shown
            if not is_first:
                raise DataError(f"image id {image.id} was used before")
            images.append(CocoImage(place, image.id, name, width, height, recorded_size, image.extras()))
        except DataError as error:
            bad.append(BadEntry(place, str(image.id), str(error), image.id))
    return images, bad, first_place.keys() - {image.image_id for image in images}


def _read_missing_sizes_ahead(entries: Entries[Image], folder: ImageFolder) -> None:
    """Read, in parallel, the headers of pictures without a recorded size whose names are files as they stand."""
    paths = [folder.root / str(image.file_name) for image in entries.good if image.width is None]
    read_headers_ahead([path for path in paths if ".." not in path.parts and path.is_relative_to(folder.root)])


def _recorded_size(image: Image) -> tuple[int, int] | None:
    """Return width and height as the file has them, None without; a DataError says that they cannot be."""
    if image.width is None or image.height is None:
        return None
    size = int(image.width), int(image.height)
    problem = size_problem(*size)
    if problem is not None:
        raise DataError(problem)
    return size


class _UsableAnnotations(NamedTuple):
    objects: AnnotationColumns
    image_index: NDArray[np.int64]
    bad: list[BadEntry]
    num_lost: int


def _usable_annotations(
    file: CocoFile, images: list[CocoImage], lost_ids: set[int], category_ids: Collection[int]
) -> _UsableAnnotations:
    """Return the annotations that have an image and a category.

    Those of a bad image are lost with it: they are counted, and no bad records of their own.

    Args:
        file: the entries.
        images: usable ones.
        lost_ids: ids of images that cannot be used.
        category_ids: of usable categories.
    """
    bad = [entry for entry in file.annotations.bad if entry.image_id not in lost_ids]
    num_lost = len(file.annotations.bad) - len(bad)

    objects = AnnotationColumns.of(file.annotations)
    is_lost = np.isin(objects.image_id, np.array(sorted(lost_ids), np.int64))
    num_lost += int(is_lost.sum())
    objects = objects.only(~is_lost)

    image_ids = np.array([image.image_id for image in images], np.int64)
    has_image = np.isin(objects.image_id, image_ids)
    reasons = [f"no image has the id {image_id}" for image_id in objects.image_id[~has_image]]
    bad += _bad_rows(objects, ~has_image, reasons)
    objects = objects.only(has_image)

    has_category = np.isin(objects.category_id, np.array(sorted(category_ids), np.int64))
    reasons = [f"no usable category has the id {category_id}" for category_id in objects.category_id[~has_category]]
    bad += _bad_rows(objects, ~has_category, reasons)
    objects = objects.only(has_category)

    image_index = np.zeros(0, np.int64)
    if images:
        by_id = np.argsort(image_ids)
        image_index = by_id[np.searchsorted(image_ids[by_id], objects.image_id)]
    return _UsableAnnotations(objects, image_index, bad, num_lost)


def _bad_rows(columns: AnnotationColumns, is_bad: NDArray[np.bool_], reasons: Sequence[str]) -> list[BadEntry]:
    return [bad_row(columns, row, reason) for row, reason in zip(marked_rows(is_bad), reasons, strict=True)]


def marked_rows(is_marked: NDArray[np.bool_]) -> list[int]:
    return np.flatnonzero(is_marked).tolist()


def bad_row(columns: AnnotationColumns, row: int, reason: str) -> BadEntry:
    """Return an annotation, by its row, as a bad entry."""
    key, image_id = int(columns.key[row]), int(columns.image_id[row])
    return BadEntry(int(columns.place[row]), str(key), reason, key, image_id)

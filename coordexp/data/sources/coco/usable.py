"""The usable entries of an annotation file, and what is wrong with the others."""

from collections.abc import Collection, Iterable, Mapping
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
    """A usable image: its place in the file, and its path relative to the image folder; width and height as shown."""

    place: int
    image_id: int
    name: str
    width: int
    height: int
    recorded: tuple[int, int] | None  # width and height as in the file
    extras: dict[str, list[int]]


@dataclass(frozen=True)
class UsableEntries:
    """The entries of a file that can be used, and what is wrong with the others.

    Attributes:
        objects: annotations of usable images; of categories that are merged, under the id that is kept.
        image_index: place in ``images`` of each of them.
        merged: id of a category that is another one -> that other one.
        lost_ids: ids of images that cannot be used.
        num_lost: annotations of such images.
        num_trimmed: names of categories with spaces around them.
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
    categories, bad_categories, num_trimmed = _usable_categories(file)
    categories, merged = _merged(categories, file.path, merge=reading.merge)
    images, bad_images, lost_ids = _usable_images(file.images, folder)
    objects, image_index, bad_annotations, num_lost = _usable_annotations(file, images, lost_ids, categories | merged)
    if merged:
        ids = [merged[key].id if key in merged else key for key in objects.category_id.tolist()]
        objects = replace(objects, category_id=np.array(ids, np.int64))
    bad: dict[Section, list[BadEntry]] = {
        "categories": bad_categories,
        "images": bad_images,
        "annotations": bad_annotations,
    }
    return UsableEntries(images, objects, image_index, categories, merged, bad, lost_ids, num_lost, num_trimmed)


def _usable_categories(file: CocoFile) -> tuple[dict[int, Category], list[BadEntry], int]:
    """Return the categories by id, the bad ones, and how many names had white space around them."""
    categories: dict[int, Category] = {}
    num_trimmed = 0
    entries, roots = file.categories, file.roots
    bad = list(entries.bad)
    for place, category in zip(entries.places.tolist(), entries.good, strict=True):
        if not is_text(category.name):
            reason = f"name is {show(category.name)}, expected text"
        elif category.id in categories:
            reason = f"category id {category.id} was used before ({categories[category.id].name!r})"
        elif category.id in roots:
            continue
        else:
            num_trimmed += category.name != category.name.strip()
            category.name = category.name.strip()
            categories[category.id] = category
            continue
        bad.append(BadEntry(place, str(category.id), reason, category.id))
    return categories, bad, num_trimmed


def _merged(
    categories: Mapping[int, Category], path: Path, *, merge: bool
) -> tuple[dict[int, Category], dict[int, Category]]:
    """Return the categories, and those merged into one of them whose name reads the same, by their own id."""
    kept: dict[str, Category] = {}
    merged: dict[int, Category] = {}
    for key, category in categories.items():
        if (known := kept.setdefault(fold(category.name), category)) is not category:
            merged[key] = known
    if merged and not merge:
        pairs = ", ".join(f"{categories[key].name!r} and {one.name!r}" for key, one in list(merged.items())[:5])
        raise DataError(
            f"{path}: names of categories read the same once case and spacing are folded: {pairs}; rename one, or "
            "data.categories.merge=true (prepare, evaluate: --merge-categories) makes them one"
        )
    return {key: category for key, category in categories.items() if key not in merged}, merged


def _usable_images(entries: Entries[Image], folder: ImageFolder) -> tuple[list[CocoImage], list[BadEntry], set[int]]:
    """Return the images that are there, the bad ones, and the ids that only bad ones have."""
    bad = list(entries.bad)
    first_place = {entry.key: entry.place for entry in reversed(entries.bad) if entry.key is not None}
    images: list[CocoImage] = []
    # Of names that are files as they stand, as nearly all are.
    unsized = [folder.root / str(image.file_name) for image in entries.good if image.width is None]
    read_headers_ahead([path for path in unsized if ".." not in path.parts and path.is_relative_to(folder.root)])
    for place, image in zip(entries.places.tolist(), entries.good, strict=True):
        is_first = first_place.setdefault(image.id, place) >= place
        first_place[image.id] = min(first_place[image.id], place)
        try:
            size = None if image.width is None or image.height is None else (int(image.width), int(image.height))
            problem = None if size is None else size_problem(*size)
            if problem is not None:
                raise DataError(problem)
            name = folder.locate(image.name_in(folder.root))
            width, height = size or read_header(folder.root / name).shown
            if not is_first:
                raise DataError(f"image id {image.id} was used before")
            images.append(CocoImage(place, image.id, name, width, height, size, image.extras()))
        except DataError as error:
            bad.append(BadEntry(place, str(image.id), str(error), image.id))
    return images, bad, first_place.keys() - {image.image_id for image in images}


def _usable_annotations(
    file: CocoFile, images: list[CocoImage], lost_ids: set[int], categories: Collection[int]
) -> tuple[AnnotationColumns, NDArray[np.int64], list[BadEntry], int]:
    """Return what has image and category, the index of its image, the bad, and how many were lost with bad images."""
    bad = list(file.annotations.bad)
    found = AnnotationColumns.of(file.annotations)

    def refuse(wrong: NDArray[np.bool_], reasons: Iterable[str]) -> None:
        nonlocal found
        bad.extend(bad_row(found, i, reason) for i, reason in zip(marked_places(wrong), reasons, strict=False))
        found = found.only(~wrong)

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


def marked_places(mask: NDArray[np.bool_]) -> list[int]:
    return np.flatnonzero(mask).tolist()


def bad_row(columns: AnnotationColumns, index: int, reason: str) -> BadEntry:
    key, image_id = int(columns.key[index]), int(columns.image_id[index])
    return BadEntry(int(columns.place[index]), str(key), reason, key, image_id)

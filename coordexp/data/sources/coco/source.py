"""A split in COCO's format or LVIS's."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordexp.data.coco.file import AnnotationColumns, CocoFile, read_coco_file
from coordexp.data.coco.image_fields import read_image_records
from coordexp.data.coco.lvis import LvisCategory, LvisImage
from coordexp.data.images.folder import ImageFolder
from coordexp.data.reading import Reading
from coordexp.data.sets.split_arrays import NO_EXTENT, Lists, SplitArrays
from coordexp.data.sources.coco.table import CocoTable, build_table, kinds_of
from coordexp.data.sources.read_split import ReadSplit, as_coco
from coordexp.data.split_data import Generated, SplitData
from coordexp.data.splits.part import Part
from coordexp.errors import DataError
from coordexp.files import write_json


@dataclass(frozen=True)
class CocoSource:
    """A split in COCO's format; other formats of labels differ in :meth:`file`.

    Attributes:
        annotations: the file, or the folder of the labels.
        images: folder of the pictures.
        made_ground_truth: where a COCO file is written for AP if the annotations cannot serve as they are.
        reading: how annotations are read if they do not say it themselves.
        part: which of the pictures belong to the split; None for all.
        generated: what will be there, if coordexp generates the split.
        checks_images: whether the pictures have to be there.
        is_converted: whether another format is converted to COCO's.
    """

    annotations: Path
    images: Path
    made_ground_truth: Path | None = None
    reading: Reading = field(default_factory=Reading)
    part: Part | None = None
    generated: Generated | None = None
    checks_images: bool = True
    is_converted = False  # the same for all sources of a class: no field

    @property
    def name(self) -> str:
        return self.annotations.stem

    @property
    def given_images(self) -> Path:
        """The folder in which the user gives the pictures: ``images``, unless they are unpacked into that."""
        return self.images

    def file(self) -> CocoFile:
        return read_coco_file(self.annotations)

    def read(self, *, max_bad_fraction: float = 0.0, accept_prequantised: bool = False) -> SplitData:
        """Read the split as samples; see :meth:`read_split`."""
        del accept_prequantised  # boxes are pixels: none can be a bin already
        return self.read_split(max_bad_fraction=max_bad_fraction).data

    def read_split(self, *, max_bad_fraction: float) -> ReadSplit:
        """Read the split; its ``file_name`` are relative to the folder ``images``.

        Boxes become fractions of the image by the rule of :mod:`coordexp.data.box_rule`. Crowd boxes, boxes that say
        ``ignore: 1``, and boxes of no extent are no targets. Two images may name one file: they keep their own objects,
        and are counted. That an image file exists is checked here; that it decodes is checked when it is used.

        Raises:
            DataError: if the file is missing, no JSON, of another structure, or more than ``max_bad_fraction`` of its
                images, annotations or categories is bad.
        """
        file = self._file_of_part()
        folder = ImageFolder(self.images, check=self.checks_images)
        table = build_table(file, folder, max_bad_fraction=max_bad_fraction, reading=self.reading)
        name_in_file = _names_in_file(file)
        split_names = [name_in_file[image.image_id] for image in table.images]
        needs_new_ground_truth = self.is_converted or self.part is not None or table.is_turned or bool(table.notes)
        return ReadSplit(
            arrays=_arrays(table, self.images, split_names, with_no_extent=not self.is_converted),
            rejected=table.rejections.all(),
            counts=table.counts,
            categories={category_id: category.name for category_id, category in table.categories.items()},
            warnings=table.warnings,
            notes=(*table.notes, *table.box_notes),
            category_fields={category_id: category.extras() for category_id, category in table.categories.items()},
            all_split_names=list(name_in_file.values()),
            is_original=not needs_new_ground_truth,
            description=f"made of {self.annotations.name}; {'; '.join(table.notes)}",
        )

    def image_fields(self) -> Mapping[int, Mapping[str, object]]:
        """Return what the annotation file says of each image, by image id; nothing if the format is no JSON."""
        return {} if self.is_converted else read_image_records(self.annotations)

    def _file_of_part(self) -> CocoFile:
        """Return the entries of the split's part of the pictures."""
        file = self.file()
        if self.part is None:
            return file
        name_in_file = _names_in_file(file)
        chosen = self.part.choose(name_in_file.values())
        # Entries that name no image at all stay: they are bad in either part.
        excluded = {image_id for image_id, name in name_in_file.items() if name not in chosen}
        bad_annotations = [entry for entry in file.annotations.bad if entry.image_id not in excluded]
        images = file.images.only(lambda image: image.id not in excluded, bad=file.images.bad)
        annotations = file.annotations.only(lambda annotation: annotation.image_id not in excluded, bad=bad_annotations)
        # A category that only the other part uses is no root: roots are those of the whole.
        return replace(file, images=images, annotations=annotations, roots_of_whole=file.roots)

    @property
    def ground_truth_file(self) -> Path:
        """Where the COCO file is, or will be, that AP is measured on."""
        must_be_made = self.is_converted or self.part is not None
        if self.made_ground_truth is not None and (must_be_made or self.made_ground_truth.is_file()):
            return self.made_ground_truth
        return self.annotations

    def ground_truth(self) -> Path:
        """Return the annotations if they can serve as they are, else the file that is made of them."""
        if not self.annotations.exists():
            raise DataError(f"{self.annotations}: file not found")
        stat = self.annotations.stat()
        return _ground_truth(self, stat.st_mtime_ns, stat.st_size)

    def count_images(self) -> int:
        if self.generated is not None:
            return self.generated.num_images
        return len(self._file_of_part().images.good)


def _names_in_file(file: CocoFile) -> dict[int, str]:
    """Return the name of each image by its id, as the file has it; without a name, the id."""
    return {image.id: image.file_name or str(image.id) for image in file.images.good}


@lru_cache(maxsize=8)
def _ground_truth(source: CocoSource, *stamp: int) -> Path:
    """Return the ground truth of a source, written once in a process.

    The stamp, of the annotations, is part of the cache's key: a file that changed is read again.
    """
    del stamp
    read = source.read_split(max_bad_fraction=source.reading.max_bad_fraction)
    if source.made_ground_truth is None:
        return source.annotations
    if read.is_original:
        source.made_ground_truth.unlink(missing_ok=True)  # a file from other keys would be taken for this one
        return source.annotations
    write_json(source.made_ground_truth, {"info": {"description": read.description}, **as_coco(read)})
    return source.made_ground_truth


def _arrays(table: CocoTable, folder: Path, split_names: list[str], *, with_no_extent: bool) -> SplitArrays:
    """Return a table as arrays.

    Args:
        table: the usable part of a file.
        folder: root of the pictures' names.
        split_names: of the images.
        with_no_extent: whether boxes of no extent are kept, as the last ones of their image: pycocotools counts each as
            an object that is missed.
    """
    category_ids = sorted(table.categories)
    sizes_px = np.array([(image.width, image.height) for image in table.images], np.int64)
    image_ids = np.array([image.image_id for image in table.images], np.int64)
    columns: dict[str, NDArray[Any]] = {
        "image": np.repeat(np.arange(len(image_ids)), np.diff(table.first)),
        "category_ids": table.category_ids,
        "kinds": table.kinds,
        "boxes_norm_xyxy": table.boxes_norm_xyxy,
        "boxes_px_xywh": table.boxes_px_xywh,
        "areas_px2": table.areas_px2,
        "annotation_ids": table.annotation_ids,
    }
    if with_no_extent and len(table.no_extent.key):
        columns = _with_no_extent(columns, table.no_extent, image_ids, sizes_px)
    images_and_end = np.arange(len(image_ids) + 1)
    names_of_lists = dict.fromkeys(name for image in table.images for name in image.extras)
    return SplitArrays(
        folder=folder,
        names=[image.name for image in table.images],
        sizes_px=sizes_px,
        orientations=table.orientations,
        image_ids=image_ids,
        first=np.searchsorted(columns["image"], images_and_end),
        texts=tuple(table.categories[category_id].name for category_id in category_ids),
        text_index=np.searchsorted(np.array(category_ids, np.int64), columns["category_ids"]),
        boxes_norm_xyxy=columns["boxes_norm_xyxy"],
        kinds=columns["kinds"],
        category_ids=columns["category_ids"],
        boxes_px_xywh=columns["boxes_px_xywh"],
        areas_px2=columns["areas_px2"],
        annotation_ids=columns["annotation_ids"],
        clipped=table.clipped,
        swapped=table.swapped,
        no_extent=table.num_no_extent,
        split_names=split_names,
        lists={name: Lists.of([image.extras[name] for image in table.images]) for name in names_of_lists},
    )


def _with_no_extent(
    columns: Mapping[str, NDArray[Any]],
    no_extent: AnnotationColumns,
    image_ids: NDArray[np.int64],
    sizes_px: NDArray[np.int64],
) -> dict[str, NDArray[Any]]:
    """Return the columns of objects with the boxes of no extent behind the other boxes of their image."""
    added = _columns_of(no_extent, image_ids, sizes_px)
    joined = {name: np.concatenate([column, added[name]]) for name, column in columns.items()}
    order = np.argsort(joined["image"], kind="stable")
    return {name: column[order] for name, column in joined.items()}


def _columns_of(
    no_extent: AnnotationColumns, image_ids: NDArray[np.int64], sizes_px: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    by_id = np.argsort(image_ids)
    image = by_id[np.searchsorted(image_ids[by_id], no_extent.image_id)]
    corners_px = no_extent.box_px_xywh.copy()
    corners_px[:, 2:] += corners_px[:, :2]
    return {
        "image": image,
        "category_ids": no_extent.category_id,
        "kinds": kinds_of(no_extent) + np.int8(NO_EXTENT),
        "boxes_norm_xyxy": np.clip(corners_px / np.tile(sizes_px[image], 2), 0.0, 1.0),
        "boxes_px_xywh": no_extent.box_px_xywh,
        "areas_px2": no_extent.area_px2,
        "annotation_ids": no_extent.key,
    }


class LvisSource(CocoSource):
    """A split in LVIS's format."""

    def file(self) -> CocoFile:
        return read_coco_file(self.annotations, image_type=LvisImage, category_type=LvisCategory)

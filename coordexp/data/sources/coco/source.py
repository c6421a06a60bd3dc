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
from coordexp.data.splits.originals import Part
from coordexp.errors import DataError
from coordexp.files import write_json


@dataclass(frozen=True)
class CocoSource:
    """A split in COCO's format; other formats of labels differ in :meth:`file`."""

    annotations: Path  # the file, or the folder of the labels
    images: Path
    made: Path | None = None  # where a COCO file is written for AP, where the annotations cannot serve as they are
    reading: Reading = field(default_factory=Reading)
    part: Part | None = None  # which of the pictures belong to the split; None for all
    generated: Generated | None = None
    checks_images: bool = True  # whether the pictures have to be there
    is_converted = False  # to COCO's format from another

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
        """Read the split, whose ``file_name`` are relative to the folder ``images``.

        Boxes become fractions of the image by the rule of :mod:`coordexp.data.box_rule`. Crowd boxes, those that say
        ``ignore: 1``, and those of no extent are no targets. Two images may name one file: they keep their own objects,
        and are counted. That an image file exists is checked here; that it decodes, when it is used.

        Raises:
            DataError: if the file is missing, no JSON, of another structure, or more than ``max_bad_fraction`` of its
                images, annotations or categories is bad.
        """
        file = self._own()
        folder = ImageFolder(self.images, check=self.checks_images)
        table = build_table(file, folder, max_bad_fraction=max_bad_fraction, reading=self.reading)
        written_names = {image.id: image.file_name or str(image.id) for image in file.images.good}
        is_made = self.is_converted or self.part is not None or table.is_turned or bool(table.notes)
        return ReadSplit(
            arrays=_arrays(
                table,
                self.images,
                [written_names[image.image_id] for image in table.images],
                with_no_extent=not self.is_converted,
            ),
            rejected=table.rejections.all(),
            counts=table.counts,
            categories={key: entry.name for key, entry in table.categories.items()},
            warnings=table.warnings,
            notes=(*table.notes, *table.box_notes),
            category_fields={key: entry.extras() for key, entry in table.categories.items()},
            all_split_names=list(written_names.values()),
            is_original=not is_made,
            description=f"made of {self.annotations.name}; {'; '.join(table.notes)}",
        )

    def image_fields(self) -> Mapping[int, Mapping[str, object]]:
        """Return what the annotation file says of each image, by image id; nothing of a format that is no JSON."""
        return {} if self.is_converted else read_image_records(self.annotations)

    def _own(self) -> CocoFile:
        """Return the entries of the split's part of the pictures."""
        file = self.file()
        if self.part is None:
            return file
        names = {image.id: image.file_name or str(image.id) for image in file.images.good}
        chosen = self.part.choose(names.values())
        others = {key for key, name in names.items() if name not in chosen}
        images = file.images.only(lambda image: image.id not in others, bad=file.images.bad)
        bad = [one for one in file.annotations.bad if one.image_id not in others]
        annotations = file.annotations.only(lambda one: one.image_id not in others, bad=bad)
        return replace(file, images=images, annotations=annotations, roots_of_whole=file.roots)

    @property
    def ground_truth_file(self) -> Path:
        if self.made is not None and (self.made.is_file() or self.is_converted or self.part is not None):
            return self.made
        return self.annotations

    def ground_truth(self) -> Path:
        """Return the annotations, where they can be read as they are; else the file that is made of them."""
        if not self.annotations.exists():
            raise DataError(f"{self.annotations}: file not found")
        stat = self.annotations.stat()
        return _ground_truth(self, stat.st_mtime_ns, stat.st_size)

    def count_images(self) -> int:
        return self.generated.num_images if self.generated else len(self._own().images.good)


@lru_cache(maxsize=8)
def _ground_truth(source: CocoSource, *stamp: int) -> Path:
    """Write what is needed once in a process; the stamp is that of the annotations."""
    del stamp
    read = source.read_split(max_bad_fraction=source.reading.max_bad_fraction)
    if read.is_original or source.made is None:
        if source.made is not None:
            source.made.unlink(missing_ok=True)  # of other keys
        return source.annotations
    write_json(source.made, {"info": {"description": read.description}, **as_coco(read)})
    return source.made


def _arrays(table: CocoTable, folder: Path, split_names: list[str], *, with_no_extent: bool) -> SplitArrays:
    """Return a table as arrays.

    With ``with_no_extent`` the boxes of no extent come last of their image: pycocotools counts each as an object that
    is missed.
    """
    category_ids = sorted(table.categories)
    names_of_lists = dict.fromkeys(name for image in table.images for name in image.extras)
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
        added = _columns_of(table.no_extent, image_ids, sizes_px)
        joined = {name: np.concatenate([columns[name], added[name]]) for name in columns}
        order = np.argsort(joined["image"], kind="stable")
        columns = {name: column[order] for name, column in joined.items()}
    return SplitArrays(
        folder=folder,
        names=[image.name for image in table.images],
        sizes_px=sizes_px,
        orientations=table.orientations,
        image_ids=image_ids,
        first=np.searchsorted(columns["image"], np.arange(len(image_ids) + 1)),
        texts=tuple(table.categories[key].name for key in category_ids),
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

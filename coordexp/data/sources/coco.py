"""A split in COCO's format or LVIS's.

LVIS marks, for each image, which absent categories were verified (``neg_category_ids``) and which were not annotated
exhaustively (``not_exhaustive_category_ids``); its evaluation needs both. Its images are those of COCO: ``--images`` is
the folder that holds ``train2017`` and ``val2017``, or one of these itself.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

import numpy as np
from msgspec import Meta

from coordexp.data.image_folder import ImageFolder
from coordexp.data.originals import Part
from coordexp.data.sample import Generated, Samples, SplitData
from coordexp.data.sources.coco_file import Category, CocoFile, Image, read_coco_file
from coordexp.data.sources.coco_table import TARGET, CocoTable, Reading, as_coco, build_table
from coordexp.errors import DataError, show
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
        """Read the split, whose ``file_name`` are relative to the folder ``images``.

        Boxes become fractions of the image by the rule of :mod:`coordexp.data.box_rule`. Crowd boxes, and those that
        say ``ignore: 1``, are counted and left out. Two images may name one file: they keep their own objects, and are
        counted. That an image file exists is checked here; that it decodes, when it is used.

        Raises:
            DataError: if the file is missing, no JSON, of another structure, or more than ``max_bad_fraction`` of its
                images, annotations or categories is bad.
        """
        del accept_prequantised  # boxes are pixels: none can be a bin already
        table = self.table(max_bad_fraction=max_bad_fraction)
        is_target = table.kinds == TARGET
        categories = {key: entry.name for key, entry in table.categories.items()}
        category_ids = sorted(categories)
        samples = Samples(
            folder=self.images,
            names=[image.name for image in table.images],
            sizes_px=np.array([(image.width, image.height) for image in table.images], np.int64),
            image_ids=np.array([image.image_id for image in table.images], np.int64),
            first=np.concatenate([[0], np.cumsum(is_target)])[table.first],
            texts=tuple(categories[key] for key in category_ids),
            text_index=np.searchsorted(np.array(category_ids, np.int64), table.category_ids[is_target]),
            boxes_norm_xyxy=table.boxes_norm_xyxy[is_target],
        )
        notes = (*table.notes, *table.box_notes)
        return SplitData(samples, table.rejections.all(), table.counts, categories, table.warnings, notes)

    def table(self, *, max_bad_fraction: float) -> CocoTable:
        file = self._own()
        return build_table(file, ImageFolder(self.images), max_bad_fraction=max_bad_fraction, reading=self.reading)

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
        return replace(file, images=images, annotations=annotations, roots_of=file.roots)

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
    table = source.table(max_bad_fraction=source.reading.max_bad_fraction)
    is_needed = source.is_converted or source.part is not None or table.is_turned or bool(table.notes)
    if not is_needed or source.made is None:
        if source.made is not None:
            source.made.unlink(missing_ok=True)  # of other keys
        return source.annotations
    said = f"made of {source.annotations.name}; {'; '.join(table.notes)}"
    write_json(source.made, {"info": {"description": said}, **as_coco(table, with_no_extent=not source.is_converted)})
    return source.made


class LvisCategory(Category, gc=False, kw_only=True):
    """An entry of ``categories``, with its frequency: rare, common or frequent."""

    frequency: Annotated[Literal["r", "c", "f"], Meta(description="r, c or f (rare, common, frequent)")]

    def extras(self) -> dict[str, str]:
        return {"frequency": self.frequency}


class LvisImage(Image, gc=False, kw_only=True):
    """An entry of ``images``, with its lists of categories; its file is named by ``coco_url``."""

    neg_category_ids: Annotated[list[int], Meta(description="a list of category ids")]
    not_exhaustive_category_ids: Annotated[list[int], Meta(description="a list of category ids")]
    coco_url: object = None

    def name_in(self, folder: Path) -> str:
        """Return ``train2017/7.jpg`` for ``http://.../train2017/7.jpg``, or ``7.jpg`` in a folder ``train2017``."""
        if self.file_name is not None:
            return self.file_name
        expected = "expected an address that ends in a folder and a file name"
        address = self.coco_url if isinstance(self.coco_url, str) else ""
        try:
            parts = PurePosixPath(unquote(urlsplit(address).path)).parts
        except ValueError as error:
            raise DataError(f"coco_url is {show(self.coco_url)}, {expected} ({error})") from None
        if len(parts) < 2:
            raise DataError(f"coco_url is {show(self.coco_url)}, {expected}")
        *_, parent, name = parts
        return name if parent in {"/", folder.name} else f"{parent}/{name}"

    def extras(self) -> dict[str, list[int]]:
        return {
            "neg_category_ids": self.neg_category_ids,
            "not_exhaustive_category_ids": self.not_exhaustive_category_ids,
        }


class LvisSource(CocoSource):
    """A split in LVIS's format."""

    def file(self) -> CocoFile:
        return read_coco_file(self.annotations, image_type=LvisImage, category_type=LvisCategory)

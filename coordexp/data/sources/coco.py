"""COCO annotation file -> samples: the one reader for real COCO and for generated shapes."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from coordexp.data.images.image_folder import ImageFolder
from coordexp.data.prepare.workers import Workers
from coordexp.data.rejected import Rejected
from coordexp.data.sample import DetectionObject, Sample
from coordexp.data.sources.coco_rows import TARGET
from coordexp.data.sources.coco_sections import read_rows
from coordexp.data.sources.coco_table import CocoTable, build_table
from coordexp.data.sources.json_lists import STRETCH_BYTES


@dataclass(frozen=True)
class CocoData:
    """What an annotation file holds.

    Attributes:
        samples: one for every image of the file, in its order, also for images without objects.
        rejected: records that were left out, with their reasons.
        counts: ``images, annotations, categories`` of the file; ``boxes`` that became targets;
            ``crowd`` and ``ignored`` boxes, which are no targets; ``clipped`` targets, cut at the
            image border; ``thin`` targets, widened to one bin when they are quantised;
            ``images_without_objects``; ``of_rejected_images``, annotations lost with their image;
            ``repeated_file_names``, images whose file an earlier image names too; and
            ``rejected_images, rejected_annotations, rejected_categories``.
        categories: name of each category id.
    """

    samples: tuple[Sample, ...]
    rejected: tuple[Rejected, ...]
    counts: dict[str, int]
    categories: dict[int, str]


def read_coco(
    annotations: Path,
    images: Path,
    *,
    max_bad_fraction: float = 0.0,
    check_images: bool = True,
    stretch_bytes: int = STRETCH_BYTES,
) -> CocoData:
    """Read a COCO ``instances`` file.

    Boxes become fractions of the image and are clipped to it; crowd boxes, and those that say
    ``ignore: 1``, are counted and left out. Two images may name one file (they keep their own
    objects, and are counted). That an image file exists is checked here; that it decodes, when it
    is used. The file is read in windows: memory grows with the objects, not with their outlines.

    Args:
        annotations: the JSON file.
        images: folder that ``file_name`` is relative to.
        max_bad_fraction: largest accepted fraction of bad images, annotations or categories.
            COCO's own train2017 has 2 boxes of zero height among 860,001.
        check_images: whether image files must exist.
        stretch_bytes: how much is read at once.

    Raises:
        DataError: if the file is missing, no JSON, of another structure, or more than the
            accepted fraction of its records is bad.
    """
    folder = ImageFolder(images, check=check_images)
    with Workers(1) as workers:
        rows = read_rows(annotations, images, workers=workers, stretch_bytes=stretch_bytes)
    table = build_table(rows, annotations, folder, max_bad_fraction=max_bad_fraction)
    return CocoData(
        samples=_samples(table, images),
        rejected=table.rejections.all(),
        counts=table.counts,
        categories={key: row.name for key, row in table.categories.items()},
    )


def _samples(table: CocoTable, root: Path) -> tuple[Sample, ...]:
    names = [table.categories[key].name for key in table.category_ids.tolist()]
    objects = [
        DetectionObject(name, (x1, y1, x2, y2)) if kind == TARGET else None
        for name, kind, (x1, y1, x2, y2) in zip(
            names, table.kinds.tolist(), table.boxes_norm_xyxy.tolist(), strict=True
        )
    ]
    return tuple(
        Sample(
            image=root / str(image.file_name),
            width=image.width,
            height=image.height,
            image_id=image.key,
            objects=tuple(item for item in objects[start:stop] if item is not None),
        )
        for image, (start, stop) in zip(table.images, pairwise(table.first.tolist()), strict=True)
    )

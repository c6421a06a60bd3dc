"""Some images of an annotation file -> a shard: their JSONL lines and what there is to report; done by a worker."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from coordexp.coord_tokens.bins import CODEC_VERSION
from coordexp.data.images.image_file import check_image
from coordexp.data.objects import Ordering, cap_objects, order_objects
from coordexp.data.prepare.shard_file import Shard, load_shard, save_shard, write_whole
from coordexp.data.sample import DetectionObject, Sample
from coordexp.data.sources.coco_rows import CROWD, TARGET, BadEntry, ImageRow
from coordexp.data.sources.coco_table import CocoTable, ImageObjects
from coordexp.data.sources.jsonl_record import format_record
from coordexp.detection.ceiling import match_quantised, quantised_px
from coordexp.errors import DataError

SHARD_VERSION = 1  # raised when equal input would give other lines
IMAGES_PER_SHARD = 2048
_COUNTED = ("images", "objects", "not_targets", "capped_images", "capped_objects")


@dataclass(frozen=True)
class ShardOptions:
    """What the lines depend on besides the annotations.

    Attributes:
        coord_tokens: boxes as coord tokens; otherwise as numbers.
        ordering: order of the objects of an image.
        seed: of ``random``, together with the image id.
        max_objects: objects of an image at most, the largest ones; None for all.
        check_headers: whether each image is opened to compare its size.
    """

    coord_tokens: bool = False
    ordering: Ordering = "top_left"
    seed: int = 0
    max_objects: int | None = None
    check_headers: bool = False


@dataclass(frozen=True)
class ShardTask(ImageObjects):
    """Images to be written as one shard, with the names of their categories."""

    folder: Path
    number: int
    image_root: Path
    names: dict[int, str]
    options: ShardOptions

    def digest(self) -> str:
        """Return a hash of all the result depends on: a shard of this name is this shard."""
        said = (SHARD_VERSION, CODEC_VERSION, self.images, sorted(self.names.items()), self.options)
        digest = hashlib.sha256(repr(said).encode())
        for array in (self.first, self.category_ids, self.kinds, self.boxes_px_xywh, self.boxes_norm_xyxy):
            digest.update(array.tobytes())
        return digest.hexdigest()[:16]


def shard_tasks(table: CocoTable, *, folder: Path, image_root: Path, options: ShardOptions) -> Iterator[ShardTask]:
    """Cut a table into shards of images that follow each other."""
    names = {key: row.name for key, row in table.categories.items()}
    for number, start in enumerate(range(0, len(table.images), IMAGES_PER_SHARD)):
        first = table.first[start : start + IMAGES_PER_SHARD + 1]
        rows = slice(int(first[0]), int(first[-1]))
        yield ShardTask(
            folder=folder,
            number=number,
            image_root=image_root,
            images=table.images[start : start + IMAGES_PER_SHARD],
            first=first - first[0],
            category_ids=table.category_ids[rows],
            kinds=table.kinds[rows],
            boxes_px_xywh=table.boxes_px_xywh[rows],
            boxes_norm_xyxy=table.boxes_norm_xyxy[rows],
            names=names,
            options=options,
        )


def write_shard(task: ShardTask) -> Shard:
    """Write a shard, or return it if an earlier run finished it."""
    base = task.folder / f"{task.number:06d}-{task.digest()}"
    lines, facts = base.with_suffix(".jsonl"), base.with_suffix(".npz")
    found = load_shard(lines, facts)
    if found is not None:
        return found
    made = _Maker(task, lines)
    content = "".join(f"{line}\n" for line in made.lines()).encode("utf-8")
    write_whole(lines, content)
    shard = made.shard()
    save_shard(facts, shard, num_bytes=len(content))
    return shard


class _Maker:
    """Makes the lines of a shard and notes what there is to report."""

    def __init__(self, task: ShardTask, path: Path) -> None:
        self._task = task
        self._path = path
        self._counts: dict[str, int] = dict.fromkeys(
            ("images", "objects", "not_targets", "capped_images", "capped_objects"), 0
        )
        self._category_images: Counter[int] = Counter()
        self._category_objects: Counter[int] = Counter()
        self._bad: list[BadEntry] = []
        self._usable = np.ones(len(task.images), bool)

    def lines(self) -> Iterator[str]:
        task = self._task
        objects = [
            DetectionObject(task.names[category], (x1, y1, x2, y2))
            for category, (x1, y1, x2, y2) in zip(
                task.category_ids.tolist(), task.boxes_norm_xyxy.tolist(), strict=True
            )
        ]
        kinds, categories = task.kinds.tolist(), task.category_ids.tolist()
        for index, (image, (start, stop)) in enumerate(zip(task.images, pairwise(task.first.tolist()), strict=True)):
            problem = self._problem(image)
            if problem is not None:
                self._bad.append(BadEntry(image.place, str(image.key), problem, image.key, None))
                self._usable[index] = False
                continue
            targets = [i for i in range(start, stop) if kinds[i] == TARGET]
            self._note(targets, [categories[i] for i in targets])
            others = [(kinds[i], objects[i]) for i in range(start, stop) if kinds[i] != TARGET]
            self._counts["not_targets"] += len(others)
            yield self._line(image, [objects[i] for i in targets], others)

    def shard(self) -> Shard:
        task = self._task
        usable = np.repeat(self._usable, np.diff(task.first))
        image_of = np.repeat(np.arange(len(task.images)), np.diff(task.first))[usable]
        sizes = np.array([(image.width, image.height) for image in task.images], np.float64)
        boxes_norm = task.boxes_norm_xyxy[usable]
        return Shard(
            lines=self._path,
            num_images=len(task.images),
            counts=self._counts,
            category_images=dict(self._category_images),
            category_objects=dict(self._category_objects),
            bad=self._bad,
            matches=match_quantised(
                image_ids=np.array([image.key for image in task.images], np.int64)[image_of],
                category_ids=task.category_ids[usable],
                boxes_px_xywh=task.boxes_px_xywh[usable],
                quantised_px_xywh=quantised_px(boxes_norm, sizes[image_of]),
                is_crowd=task.kinds[usable] == CROWD,
            ),
        )

    def _problem(self, image: ImageRow) -> str | None:
        if not self._task.options.check_headers:
            return None
        try:
            check_image(self._task.image_root / str(image.file_name), width=image.width, height=image.height)
        except DataError as error:
            return str(error)
        return None

    def _note(self, targets: list[int], categories: list[int]) -> None:
        limit = self._task.options.max_objects
        num_capped = 0 if limit is None else max(0, len(targets) - limit)
        self._counts["images"] += 1
        self._counts["objects"] += len(targets) - num_capped
        self._counts["capped_images"] += num_capped > 0
        self._counts["capped_objects"] += num_capped
        self._category_objects.update(categories)
        self._category_images.update(set(categories))

    def _line(self, image: ImageRow, targets: list[DetectionObject], others: list[tuple[int, DetectionObject]]) -> str:
        options = self._task.options
        if options.max_objects is not None:
            targets = cap_objects(targets, options.max_objects)
        seed = (options.seed, image.key % 2**64)
        name = str(image.file_name)
        sample = Sample(
            image=self._task.image_root / name,
            width=image.width,
            height=image.height,
            image_id=image.key,
            objects=tuple(order_objects(targets, ordering=options.ordering, seed=seed)),
        )
        return format_record(
            sample, image=name, coord_tokens=options.coord_tokens, not_targets=others, extras=image.extras
        )

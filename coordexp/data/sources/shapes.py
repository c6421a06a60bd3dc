"""Generated coloured shapes, written to disk as a COCO data set: JPEG files and instances JSON."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from coordexp.config.schema.data import Shapes
from coordexp.data.sample import Split
from coordexp.data.shapes import CATEGORIES, IMAGE_SIZES_PX, draw_scene
from coordexp.data.sources.coco.source import CocoSource
from coordexp.data.sources.read_split import ReadSplit
from coordexp.data.split_data import Generated
from coordexp.errors import DataError
from coordexp.files import replace_directory, write_json, write_text
from coordexp.stages import report_stage

GENERATOR_VERSION = 2
_MANIFEST = "shapes.json"
_DRAWN = ".shapes"  # pictures that are whole, and not in their place yet
_PREPARED = "jsonl"  # what `prepare shapes` makes of the pictures; it is removed with them
_FILES_OF_THE_SET = ("val_ground_truth.json", "val_chosen.json")  # lie beside generated pictures
_JPEG_QUALITY = 92


@dataclass(frozen=True)
class ShapesSource(CocoSource):
    """A split of the generated data set, which is written as COCO files before it is read."""

    spec: Shapes = field(default_factory=Shapes)

    @classmethod
    def of(cls, root: Path, split: Split, spec: Shapes) -> Self:
        """Return the source of a split of the data set in ``root``, whether it is written yet or not."""
        num_images = spec.num_train if split == "train" else spec.num_val
        generated = Generated(num_images, frozenset(IMAGE_SIZES_PX), spec.max_objects, CATEGORIES)
        return cls(root / f"instances_{split}.json", root / split, generated=generated, spec=spec)

    @property
    def name(self) -> str:
        return f"shapes_{self.images.name}"

    def generate(self) -> None:
        write_shapes(self.images.parent, self.spec)

    def read_split(self, *, max_bad_fraction: float) -> ReadSplit:
        self.generate()
        return super().read_split(max_bad_fraction=max_bad_fraction)

    def ground_truth(self) -> Path:
        return self.annotations


def write_shapes(root: Path, spec: Shapes) -> Path:
    """Write the data set unless ``root`` already holds it; only its own files are touched.

    Layout: ``train/*.jpg``, ``val/*.jpg``, ``instances_train.json``, ``instances_val.json``, ``shapes.json`` (the
    spec). Everything is drawn in a folder beside them first::

        .shapes/{train,val,instances_*.json}   drawn, whole or absent
        shapes.json = "not whole"              from here on, a killed command is noticed
        .shapes/* -> root/*                    moved into place
        shapes.json = the spec                 whole

    Returns:
        ``root``.

    Raises:
        DataError: if ``root`` holds something else than a generated data set; it is not replaced.
    """
    written_spec = json.dumps({"generator_version": GENERATOR_VERSION, **spec.model_dump()}, indent=2) + "\n"
    manifest = root / _MANIFEST
    if manifest.is_file() and manifest.read_text(encoding="utf-8") == written_spec:
        return root
    if not manifest.is_file() and _holds_other_files(root):
        raise DataError(f"{root}: exists and holds no {_MANIFEST}; expected an empty place for the generated data set")
    root.mkdir(parents=True, exist_ok=True)
    drawn = root / _DRAWN
    with replace_directory(drawn) as building:
        _write_split(building, spec, split="train", count=spec.num_train, stream=(spec.seed, 0))
        _write_split(building, spec, split="val", count=spec.num_val, stream=(spec.seed, 1))

    write_text(manifest, "not whole: the command that generates these pictures was ended; it writes them again\n")
    shutil.rmtree(root / _PREPARED, ignore_errors=True)
    for path in sorted(drawn.iterdir()):
        target = root / path.name
        if target.is_dir():
            shutil.rmtree(target)
        path.replace(target)
    drawn.rmdir()
    write_text(manifest, written_spec)
    return root


def _holds_other_files(root: Path) -> bool:
    """Return whether a place holds something that neither we nor a killed command of ours has put there."""
    if not root.exists():
        return False
    if not root.is_dir():
        return True
    for path in root.iterdir():
        is_ours = path.name.startswith((".", "set-")) or path.name in _FILES_OF_THE_SET
        if not is_ours:
            return True
    return False


def _write_split(root: Path, spec: Shapes, *, split: str, count: int, stream: tuple[int, int]) -> None:
    """Draw the pictures of a split, and write its annotations.

    Args:
        root: folder of the data set.
        spec: of the data set.
        split: name of the split.
        count: of pictures.
        stream: seed and number of the split; with the image id it seeds each picture, so that a picture does not depend
            on how many there are.
    """
    folder = root / split
    folder.mkdir(parents=True)
    images, annotations = [], []
    sides_px = (spec.min_side_px, spec.max_side_px)
    for image_id in range(1, count + 1):
        report_stage(f"{split} pictures drawn", image_id, count)
        rng = np.random.default_rng([*stream, image_id])
        picture, shapes = draw_scene(rng, max_objects=spec.max_objects, sides_px=sides_px)
        name = f"{image_id:06d}.jpg"
        picture.save(folder / name, quality=_JPEG_QUALITY)
        images.append({"id": image_id, "file_name": name, "width": picture.width, "height": picture.height})
        for shape in shapes:
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "category_id": shape.category + 1,
                    "bbox": list(shape.box_px_xywh),
                    "area": shape.area_px,
                    "segmentation": [shape.polygon_px],
                    "iscrowd": 0,
                }
            )
    categories = [{"id": category_id, "name": name} for category_id, name in enumerate(CATEGORIES, start=1)]
    write_json(
        root / f"instances_{split}.json", {"images": images, "annotations": annotations, "categories": categories}
    )

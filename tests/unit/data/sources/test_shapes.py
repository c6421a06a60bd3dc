"""Generated shapes: the same bytes from a seed, boxes that fit the drawing, a COCO file pycocotools loads."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from pycocotools import mask as mask_utils
from pycocotools.coco import COCO

from coordexp.config.schema.data import Shapes
from coordexp.data.shapes import CATEGORIES, SHAPES, Shape, draw_scene
from coordexp.data.sources import shapes
from coordexp.data.sources.coco.source import CocoSource
from coordexp.data.sources.shapes import write_shapes
from coordexp.errors import DataError

SMALL = Shapes(num_train=12, num_val=5, max_objects=4, seed=3)


def contents(root):
    return {path.relative_to(root): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_a_seed_gives_the_same_bytes(tmp_path):
    first = contents(write_shapes(tmp_path / "a", SMALL))
    assert first == contents(write_shapes(tmp_path / "b", SMALL))
    other = contents(write_shapes(tmp_path / "c", Shapes(num_train=12, num_val=5, seed=4)))
    assert first.keys() == other.keys()
    assert sum(first[name] == other[name] for name in first) == 0
    assert len(first) == 12 + 5 + 3


@pytest.mark.parametrize("split", ["train", "val"])
def test_it_is_a_coco_data_set(tmp_path, split, capsys):
    root = write_shapes(tmp_path / "a", SMALL)
    reference = COCO(str(root / f"instances_{split}.json"))
    capsys.readouterr()
    data = CocoSource(root / f"instances_{split}.json", root / split).read()
    assert len(data.samples) == len(reference.imgs) == {"train": 12, "val": 5}[split]
    assert data.rejected == ()
    assert data.counts["clipped"] == 0
    assert min(len(sample.objects) for sample in data.samples) >= 1
    assert max(len(sample.objects) for sample in data.samples) <= 4
    assert tuple(data.categories.values()) == CATEGORIES
    assert min(reference.anns) == 1
    for ann in reference.anns.values():
        # The outline fills what its shape fills of its box.
        fill = {"square": 1.0, "circle": np.pi / 4, "triangle": 0.5}[CATEGORIES[ann["category_id"] - 1].split()[1]]
        assert mask_utils.area(reference.annToRLE(ann)) == pytest.approx(ann["area"], rel=0.06)
        assert ann["area"] == pytest.approx(fill * ann["bbox"][2] * ann["bbox"][3], rel=0.03)


def test_boxes_fit_the_drawing_to_the_pixel():
    kinds = set()
    for seed in range(40):
        picture, (shape,) = draw_scene(np.random.default_rng(seed), max_objects=1)
        pixels = np.asarray(picture).astype(int)
        coloured = pixels.max(axis=2) - pixels.min(axis=2) > 70  # the background is grey
        rows, columns = np.flatnonzero(coloured.any(axis=1)), np.flatnonzero(coloured.any(axis=0))
        x, y, w, h = shape.box_px_xywh
        assert (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1) == (x, y, x + w, y + h), seed
        kinds.add(SHAPES[shape.category % 3])
    assert kinds == set(SHAPES)


def test_areas_by_hand():
    assert Shape(category=1, box_px_xywh=(5, 5, 10, 20)).area_px == pytest.approx(200)  # square
    assert Shape(category=2, box_px_xywh=(5, 5, 10, 20)).area_px == pytest.approx(100)  # triangle
    # A 24-gon in a circle: 12 r^2 sin(15 degrees).
    assert Shape(category=0, box_px_xywh=(0, 0, 20, 20)).area_px == pytest.approx(12 * 100 * np.sin(np.pi / 12))


def test_areas_are_the_same_bits_on_another_processor():
    script = """
from coordexp.data.shapes import Shape
print([Shape(category=0, box_px_xywh=(x, 23, 99 + x, 47 + x)).area_px for x in (3, 11, 57)])
"""
    areas = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "OPENBLAS_CORETYPE": kernels},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for kernels in ("Haswell", "Prescott")
    }
    assert len(areas) == 1, areas


def test_what_is_there_is_kept_and_what_differs_is_replaced(tmp_path, monkeypatch):
    root = write_shapes(tmp_path / "a", SMALL)
    marker = root / "train" / "000001.jpg"
    before = marker.stat().st_mtime_ns
    write_shapes(root, SMALL)
    assert marker.stat().st_mtime_ns == before
    write_shapes(root, Shapes(num_train=3, num_val=2))
    assert len(list((root / "train").iterdir())) == 3
    (root / "shapes.json").write_text('{"half')  # damaged: made anew
    write_shapes(root, SMALL)
    assert json.loads((root / "shapes.json").read_text())["num_train"] == 12
    monkeypatch.setattr(shapes, "GENERATOR_VERSION", 99)
    write_shapes(root, SMALL)
    assert json.loads((root / "shapes.json").read_text())["generator_version"] == 99


def test_foreign_files_are_not_replaced(tmp_path):
    (tmp_path / "mine").mkdir()
    write_shapes(tmp_path / "mine", SMALL)  # an empty folder may be filled
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday.jpg").touch()
    with pytest.raises(DataError, match=r"photos.*shapes\.json"):
        write_shapes(tmp_path / "photos", SMALL)
    assert (tmp_path / "photos" / "holiday.jpg").exists()

"""The class names of a YOLO set's ``data.yaml`` are the words that its author wrote, each at its number."""

from pathlib import Path

import pytest
from PIL import Image

from coordexp.config.schema.data import Data
from coordexp.data.sources.door import load_split
from coordexp.data.sources.source import SPLITS
from coordexp.errors import DataError


def lay_out(root: Path, names: str) -> None:
    for split in ("train", "val"):
        for part in ("images", "labels"):
            (root / part / split).mkdir(parents=True)
        Image.new("RGB", (40, 40)).save(root / "images" / split / f"{split}.png")
        (root / "labels" / split / f"{split}.txt").write_text("1 0.5 0.5 0.5 0.5\n")
    (root / "data.yaml").write_text(f"train: images/train\nval: images/val\nnames: {names}\n")


@pytest.mark.parametrize(
    ("names", "second"),
    [
        ("[no, yes]", "yes"),  # a reader of YAML 1.1 takes them for bools
        ("[off, on]", "on"),
        ("[2025-01-01, 2026-11-28]", "2026-11-28"),
        ("{1: dog, 0: cat}", "dog"),
        ("{'1': dog, 0: cat}", "dog"),
        ("{1: cat, 2: dog}", "cat"),  # counted from one: 1 is the cat, and not the second name
    ],
)
def test_a_class_has_the_name_that_stands_at_its_number(tmp_path: Path, names: str, second: str) -> None:
    lay_out(tmp_path, names)
    data = Data.model_validate({"path": tmp_path})
    for split in SPLITS:
        (sample,) = load_split(data, split, data_dir=tmp_path / "made").samples
        assert sample.objects.descs == (second,)


@pytest.mark.parametrize("names", ["{cat: 0, dog: 1}", "{-1: cat, 0: dog}", "text"])
def test_names_without_numbers_are_refused_with_the_file(tmp_path: Path, names: str) -> None:
    lay_out(tmp_path, names)
    with pytest.raises(DataError, match=r"data\.yaml: names"):
        load_split(Data.model_validate({"path": tmp_path}), "train", data_dir=tmp_path / "made")

"""YOLO and Pascal VOC: recognised wherever one points at them, and refused with what converts them.

The commands themselves were run with supervision 0.31 on folders like these (docs/LOG.md); here it is a stand-in with
the signatures of that version, which says how it was called.
"""

import os
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from coordexp.cli.main import main
from coordexp.data.sources.foreign import folders_below, foreign_data, foreign_problem, refuse_foreign
from coordexp.errors import DataError
from tests.unit.commands_support import ROOT, blocks

LABEL = "0 0.5 0.5 0.2 0.1\n"
XML = "<annotation><filename>a.jpg</filename></annotation>"
STAND_IN = """
from pathlib import Path

class DetectionDataset:
    def __init__(self, classes, images, annotations):
        self.classes, self.image_paths, self.annotations = classes, images, annotations

    @classmethod
    def from_yolo(cls, images_directory_path, annotations_directory_path, data_yaml_path):
        return cls([data_yaml_path], [images_directory_path, annotations_directory_path], {})

    @classmethod
    def from_pascal_voc(cls, images_directory_path, annotations_directory_path):
        paths = sorted(str(path) for path in Path(images_directory_path).glob("*.jpg"))
        return cls([annotations_directory_path], paths, dict.fromkeys(paths))

    def as_coco(self, images_directory_path=None, annotations_path=None):
        print(annotations_path, *self.image_paths, *self.classes)
"""


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


LAYOUTS = {
    "YOLO of Ultralytics": {
        "images/train/a.jpg": "", "labels/train/a.txt": LABEL, "images/val/b.jpg": "", "labels/val/b.txt": LABEL,
        "set.yaml": "train: images/train\nnames: [cat]\n",
    },
    "YOLO of Roboflow": {
        "train/images/a.jpg": "", "train/labels/a.txt": LABEL, "valid/images/b.jpg": "", "valid/labels/b.txt": LABEL,
        "data.yaml": "names: [cat]\n", "notes.yaml": "x: 1\n",
    },
    "VOC": {
        "JPEGImages/a.jpg": "", "JPEGImages/b.jpg": "", "Annotations/a.xml": XML, "Annotations/b.xml": XML,
        "ImageSets/Main/train.txt": "a\n", "ImageSets/Main/val.txt": "b\n",
    },
    "VOC of Roboflow": {
        "train/a.jpg": "", "train/a.xml": XML, "valid/b.jpg": "", "valid/b.xml": f"<?xml version='1.0'?>\n{XML}",
    },
}  # fmt: skip
CALLS = {
    "YOLO of Ultralytics": [
        "{root}/instances_train.json {root}/images/train {root}/labels/train {root}/set.yaml",
        "{root}/instances_val.json {root}/images/val {root}/labels/val {root}/set.yaml",
    ],
    "YOLO of Roboflow": [
        "{root}/instances_train.json {root}/train/images {root}/train/labels {root}/data.yaml",
        "{root}/instances_valid.json {root}/valid/images {root}/valid/labels {root}/data.yaml",
    ],
    "VOC": [
        "{root}/instances_train.json {root}/JPEGImages/a.jpg {root}/Annotations",
        "{root}/instances_val.json {root}/JPEGImages/b.jpg {root}/Annotations",
    ],
    "VOC of Roboflow": [
        "{root}/instances_train.json {root}/train/a.jpg {root}/train",
        "{root}/instances_valid.json {root}/valid/b.jpg {root}/valid",
    ],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_command_reads_and_writes_what_it_should(layout, tmp_path):
    root = write(tmp_path / "it's my set", LAYOUTS[layout])
    stand_in = write(tmp_path / "library", {"supervision.py": textwrap.dedent(STAND_IN)})
    found = foreign_data(root)
    assert found is not None
    assert found.kind == ("YOLO" if "YOLO" in layout else "Pascal VOC")
    install, convert = found.commands()
    assert install == "pip install supervision"
    python, *words = shlex.split(convert)
    assert python == "python"
    done = subprocess.run(
        [sys.executable, *words], env={"PYTHONPATH": str(stand_in)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [line.format(root=root) for line in CALLS[layout]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_recognised_by_any_of_its_parts(layout, tmp_path):
    root = write(tmp_path / "set", LAYOUTS[layout])
    whole = foreign_data(root)
    for part in (path for path in root.rglob("*") if path.suffix in ("", ".xml")):
        assert foreign_data(part) == whole, part


def test_other_folders_are_not(tmp_path):
    write(tmp_path, {
        "empty/x": "", "labels/README.txt": "of the museum", "images/a.jpg": "", "a.xml": "<rss>", "b.txt": LABEL,
        "annotations/instances_train.json": "{}", "train/a.jpg": "", ".cache/labels/a.txt": LABEL,
    })  # fmt: skip
    assert foreign_data(tmp_path) is None
    assert foreign_problem(tmp_path / "gone") is None
    refuse_foreign(tmp_path / "annotations" / "instances_train.json")


def test_a_json_file_beside_them_is_read(tmp_path):
    root = write(tmp_path, LAYOUTS["VOC"] | {"instances.json": "{}"})
    refuse_foreign(root / "instances.json")
    with pytest.raises(DataError, match="in the format of Pascal VOC"):
        refuse_foreign(root / "Annotations" / "a.xml")


@pytest.mark.parametrize("annotations", ["labels/train", "labels/train/a.txt", "set.yaml", ""])
def test_each_verb_says_so(annotations, tmp_path, capsys, monkeypatch):
    root = write(tmp_path / "set", LAYOUTS["YOLO of Ultralytics"])
    monkeypatch.chdir(tmp_path)
    images = root / "images" / "train"
    files = ["--annotations", str(root / annotations), "--images", str(images), "--output", "out"]
    assert main(["prepare", "coco", *files]) == 2
    said = [capsys.readouterr().err]
    keys = [f"data.{split}_{what}" for split in ("train", "val") for what in ("annotations", "images")]
    paths = [root / annotations, images] * 2
    overrides = ["data.format=coco", *(f"{key}={path}" for key, path in zip(keys, paths, strict=True))]
    assert main(["train", *overrides]) == 2
    said.append(capsys.readouterr().err)
    assert main(["doctor", *overrides]) == 2
    said.append("error: " + " ".join(capsys.readouterr().out.split()))
    for text in said:
        assert "set is a data set in the format of YOLO; expected COCO's" in text
        assert "pip install supervision" in text


def test_the_page_prints_what_comes(tmp_path, capsys, monkeypatch):
    (command,) = [
        command
        for block in blocks(ROOT / "docs" / "your-data.md")
        for command in block.commands
        if command.output and "format of YOLO" in command.output[0]
    ]
    monkeypatch.chdir(tmp_path)
    layout = LAYOUTS["YOLO of Ultralytics"]
    write(tmp_path / "pets", {name.replace("set.yaml", "data.yaml"): text for name, text in layout.items()})
    assert command.argv is not None
    assert main(command.argv) == 2
    assert tuple(capsys.readouterr().err.splitlines()) == command.output


def test_a_folder_that_cannot_be_listed_is_passed_over(tmp_path, monkeypatch):
    """Of another user, or gone since its name was read, as in /dev/fd; tests may run as root, who may list all."""
    for name in ("a", "locked", "z"):
        (tmp_path / name).mkdir()

    def scandir(path, listed=os.scandir):
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [path.name for path in folders_below(tmp_path)] == [tmp_path.name, "a", "z"]
    assert foreign_data(tmp_path) is None

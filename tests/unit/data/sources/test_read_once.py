"""What a set that is read once mends: faults of one that was read again for each split and each rank."""

import json
import re
import sys

import pytest
from PIL import Image

from coordexp.cli.main import main
from coordexp.config.schema.data import Data
from coordexp.data.sources.door import SetPlace, load_split, open_set
from coordexp.data.sources.source import SPLITS


@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_bad_records_of_a_set_that_is_not_split_count_once(tmp_path, form):
    """Of 200 records 10 have no picture: 5 %, and less than a tenth of either split, however it is drawn."""
    names = [f"{at:03d}.png" for at in range(200)]
    for name in names[10:]:
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    if form == "jsonl":
        records = [{"image": name, "objects": [{"desc": "cat", "bbox": [0.1, 0.1, 0.5, 0.5]}]} for name in names]
        (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, records)))
    else:
        images = [{"id": at, "file_name": name, "width": 8, "height": 8} for at, name in enumerate(names)]
        annotations = [{"id": at + 1, "image_id": at, "category_id": 1, "bbox": [1, 1, 3, 3]} for at in range(200)]
        annotations += [{"id": 300 + at, "image_id": 10, "category_id": 1, "bbox": [1, 1]} for at in range(10)]
        content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "cat"}]}
        (tmp_path / "all.json").write_text(json.dumps(content))
    data = Data.model_validate({"path": tmp_path, "max_bad_fraction": 0.1, "val_fraction": 0.2})
    loaded = [load_split(data, split, data_dir=tmp_path / "made") for split in SPLITS]
    assert sum(len(read.samples) for read in loaded) == 190


def test_evaluate_has_the_option_that_its_own_error_names(coco, capsys):
    coco.document["annotations"].append({"id": 99, "image_id": 7, "category_id": 1, "bbox": [200, 0, 5, 5]})
    coco.save()
    paths = ["--annotations", str(coco.annotations), "--images", str(coco.images)]
    assert main(["evaluate", "--model", "embedded", *paths, "--output", str(coco.root / "out")]) == 2
    named = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().err))
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    assert named
    assert named <= set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))


def test_an_image_id_that_is_the_largest_number_may_be_shared(tmp_path):
    boxes = [{"desc": "cat", "bbox": [0.1, 0.1, 0.5, 0.5]}, {"desc": "dog", "bbox": [0.2, 0.1, 0.5, 0.5]}]
    for name in "abc":
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
    records = [{"image": f"{name}.png", "image_id": 2**63 - 1, "objects": boxes} for name in "abc"]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "val.jsonl").write_text(json.dumps(records[0]))
    read = load_split(Data.model_validate({"path": tmp_path}), "train", data_dir=tmp_path / "made")
    assert len({sample.image_id for sample in read.samples}) == 3


class _Opened:
    """Hears of every file that this process opens; a hook cannot be taken back, so that it is told when to listen."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.listens = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.listens and event == "open":
            self.paths.append(str(arguments[0]))


@pytest.mark.parametrize("keys", [{}, {"boxes_in": "shown"}])
def test_a_second_command_and_a_rank_open_no_picture_to_read_its_header(coco, keys):
    places = {f"{split}_annotations": coco.annotations for split in SPLITS}
    places |= {f"{split}_images": coco.images for split in SPLITS}
    data = Data.model_validate({"format": "coco", **places, **keys})
    place = SetPlace(coco.root / "made", coco.root / "hashes")
    open_set(data, place)
    opened = _Opened()
    opened.listens = True
    data_set = open_set(data, place)
    samples = data_set.load("train").samples
    opened.listens = False
    assert len(samples) == 2
    assert opened.paths
    assert not [path for path in opened.paths if path.startswith(str(coco.images))]

"""A Git LFS pointer in the place of any file that is read: each reader names the file, what it is, and git lfs pull."""

import shutil
from pathlib import Path

import pytest

from coordexp.config.load import load_config
from coordexp.config.schema.data import Data
from coordexp.data.images.headers import read_header
from coordexp.data.images.pixels import check_image, read_image
from coordexp.data.sources.door import load_split
from coordexp.detection.forms.results import read_results
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import CheckpointError, ConfigError, DataError
from coordexp.evaluate.generate.given import read_given_answers
from coordexp.evaluate.predict import turned
from coordexp.files import lfs_problem, read_json, read_json_lines
from coordexp.model.checkpoint.adapter import read_adapter
from coordexp.model.checkpoint.directory import TINY_BASE, find_checkpoint
from coordexp.model.processor import Processor, read_tokenizer
from tests.unit.data.sources.test_folder import coco_2017, jsonl, official_voc, ultralytics

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
SAID = r": that is a Git LFS pointer, .* 12,345 bytes .*git lfs pull"


def pointer(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(POINTER)
    return path


def test_only_a_pointer_is_one(tmp_path):
    assert "git lfs pull" in lfs_problem(pointer(tmp_path / "a.bin"))
    windows = tmp_path / "b.bin"
    windows.write_bytes(POINTER.replace(b"\n", b"\r\n"))
    assert "12,345 bytes" in lfs_problem(windows)
    large = tmp_path / "c.bin"
    large.write_bytes(POINTER + b" " * 2000)  # the specification's limit is 1,024 bytes
    assert lfs_problem(large) == ""
    assert lfs_problem(tmp_path / "missing") == lfs_problem(tmp_path) == ""


@pytest.mark.parametrize(
    "read",
    [
        read_json,
        read_ground_truth,
        read_image,
        read_header,
        lambda path: check_image(path, width=1, height=1),
        lambda path: turned([path]),
        lambda path: read_json_lines(dict, path),
        lambda path: read_given_answers(path, known=[1], wanted=[1]),
    ],
)
def test_a_reader_of_data(tmp_path, read):
    with pytest.raises(DataError, match=rf"a\.file{SAID}"):
        read(pointer(tmp_path / "a.file"))


def test_results(tmp_path):
    coco_2017(tmp_path)
    truth = read_ground_truth(tmp_path / "annotations" / "instances_val2017.json")
    with pytest.raises(DataError, match=rf"dets\.json{SAID}"):
        read_results(pointer(tmp_path / "dets.json"), truth)


def test_a_configuration(tmp_path):
    with pytest.raises(ConfigError, match=rf"a\.yaml{SAID}"):
        load_config(pointer(tmp_path / "a.yaml"))


@pytest.mark.parametrize(
    ("lay_out", "name"),
    [
        (coco_2017, "annotations/instances_train2017.json"),
        (coco_2017, "annotations/instances_val2017.json"),  # else the set would count as not split
        (jsonl, "train.jsonl"),
        (official_voc, "VOC2007/Annotations/t0.xml"),
        (official_voc, "VOC2007/ImageSets/Main/val.txt"),
        (ultralytics, "labels/train/t0.txt"),
        (ultralytics, "images/train/t0.jpg"),  # its header is read, for the size
        (ultralytics, "data.yaml"),
    ],
)
def test_a_file_of_a_data_set(tmp_path, lay_out, name):
    root = tmp_path / "set"
    lay_out(root)
    pointer(root / name)
    data = Data.model_validate({"path": root})
    with pytest.raises(DataError, match=rf"{Path(name).name}{SAID}"):
        [load_split(data, split, data_dir=tmp_path / "made") for split in ("train", "val")]


@pytest.fixture
def checkpoint(tmp_path):
    return Path(shutil.copytree(TINY_BASE, tmp_path / "base"))


@pytest.mark.parametrize(
    "name",
    ["config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json", "generation_config.json"],
)
def test_a_file_of_a_checkpoint(checkpoint, name):
    pointer(checkpoint / name)
    with pytest.raises(CheckpointError, match=rf"{name}{SAID}"):
        find_checkpoint(checkpoint)


def test_weights_as_a_pickle_that_are_a_pointer(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    pointer(checkpoint / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=rf"pytorch_model\.bin{SAID}"):
        find_checkpoint(checkpoint)


@pytest.mark.parametrize("read", [read_tokenizer, Processor.from_directory])
def test_a_tokenizer(checkpoint, read):
    pointer(checkpoint / "tokenizer.json")
    with pytest.raises(CheckpointError, match=rf"tokenizer\.json{SAID}"):
        read(checkpoint)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"])
def test_a_file_of_an_adapter(tmp_path, name):
    (tmp_path / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "r": 8, "base_model_name_or_path": "embedded"}'
    )
    pointer(tmp_path / name)
    with pytest.raises(CheckpointError, match=rf"{name}{SAID}"):
        read_adapter(tmp_path)

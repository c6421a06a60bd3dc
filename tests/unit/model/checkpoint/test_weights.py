import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from coordexp.errors import CheckpointError
from coordexp.model.checkpoint import weights as module
from coordexp.model.checkpoint.weights import StoredWeights, TensorSpec, write_safetensors

INDEX = "model.safetensors.index.json"


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(0)
    return {
        "z": torch.randn(100, 8, generator=generator),
        "a": torch.randn(3, 5, 7, generator=generator),
        "half": torch.randn(9, 4, generator=generator).half(),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "ids": torch.arange(11),
        "flags": torch.tensor([True, False, True]),
    }


def _specs(tensors):
    return {name: TensorSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def test_bytes_are_those_of_the_library(tensors, tmp_path):
    save_file(tensors, tmp_path / "theirs", {"format": "pt"})

    def by_rows(name):
        return tensors[name].split(2) if tensors[name].ndim else [tensors[name]]

    write_safetensors(tmp_path / "ours", _specs(tensors), by_rows)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_piece_too_few_is_noticed(tensors, tmp_path):
    with pytest.raises(AssertionError):
        write_safetensors(tmp_path / "x", _specs(tensors), lambda name: [tensors[name][:2]])


def test_rows_columns_and_pieces(tensors, tmp_path, monkeypatch):
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    weights = StoredWeights.of(tmp_path)
    assert weights.specs == _specs(tensors)
    assert not weights.sharded
    assert torch.equal(weights.read("z"), tensors["z"])
    assert torch.equal(weights.rows("z", 10, 20), tensors["z"][10:20])
    assert torch.equal(weights.listed_rows("z", [7, 3, 99]), tensors["z"][[7, 3, 99]])
    assert torch.equal(weights.columns("z", 2, 5, num_rows=40), tensors["z"][:40, 2:5])
    monkeypatch.setattr(module, "PIECE_BYTES", 3 * 8 * 4 + 1)
    pieces = list(weights.pieces("z"))
    assert [start for start, _ in pieces] == list(range(0, 100, 3))
    assert torch.equal(torch.cat([rows for _, rows in pieces]), tensors["z"])
    assert torch.equal(next(weights.pieces("scalar"))[1], tensors["scalar"])
    assert list(weights.pieces("empty")) == []


def test_an_index_decides_between_files_and_leaves_others_unread(tmp_path):
    one, other = {"a": torch.ones(2), "b": torch.ones(3)}, {"a": torch.zeros(2), "c": torch.zeros(1)}
    save_file(one, tmp_path / "1.safetensors")
    save_file(other, tmp_path / "2.safetensors")
    (tmp_path / "stale.safetensors").write_bytes(b"no weights")
    listed = {"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": listed}))
    weights = StoredWeights.of(tmp_path)
    assert weights.sharded
    assert torch.equal(weights.read("a"), one["a"])
    assert {name: file.name for name, file in weights.files.items()} == listed
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": listed | {"b": "2.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"names b in 2\.safetensors, which does not hold it"):
        StoredWeights.of(tmp_path)


def test_a_whole_file_goes_before_an_index_as_in_transformers(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    assert torch.equal(StoredWeights.of(tmp_path).read("a"), torch.ones(2))


def test_damaged_and_quantised_files_are_refused(make_base, tmp_path):
    target = shutil.copytree(make_base(), tmp_path / "cut")
    file = target / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"not a whole safetensors file"):
        StoredWeights.of(target)
    weights = {name: tensor.to(torch.float8_e4m3fn) for name, tensor in load_file(make_base() / file.name).items()}
    save_file(weights, file)
    with pytest.raises(CheckpointError, match=r"is stored as F8_E4M3; expected plain numbers"):
        StoredWeights.of(target)

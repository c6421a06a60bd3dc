import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.weights import StoredWeights

INDEX = "model.safetensors.index.json"


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
    with pytest.raises(CheckpointError, match=r"\bb\b.*2\.safetensors"):
        StoredWeights.of(tmp_path)


def test_a_whole_file_goes_before_an_index_as_in_transformers(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    assert torch.equal(StoredWeights.of(tmp_path).read("a"), torch.ones(2))


def test_damaged_and_quantised_files_are_refused(make_base, tmp_path):
    target = shutil.copytree(make_base(), tmp_path / "cut")
    file = target / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="safetensors"):
        StoredWeights.of(target)
    weights = {name: tensor.to(torch.float8_e4m3fn) for name, tensor in load_file(make_base() / file.name).items()}
    save_file(weights, file)
    with pytest.raises(CheckpointError, match="F8_E4M3"):
        StoredWeights.of(target)

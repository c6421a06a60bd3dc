import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from coordexp.coord_tokens.vocab import expand_vocab
from coordexp.errors import TokenizerError
from coordexp.model.checkpoint.stored_model import EMBEDDING, HEAD
from coordexp.model.expand import expand_checkpoint
from coordexp.model.loading import load
from coordexp.model.processor import Processor

INDEX = "model.safetensors.index.json"


def _expand(source: Path, target: Path, **kwargs):
    target.mkdir()
    return expand_checkpoint(source, target, **kwargs)


def _in_memory(source: Path, target: Path, **kwargs) -> Path:
    loaded = load(source)
    expand_vocab(loaded.model, loaded.processor.tokenizer, **kwargs)
    loaded.model.save_pretrained(target)
    loaded.processor.save_pretrained(target)
    return target


def _assert_same(a: Path, b: Path) -> None:
    one, other = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one)
    for file in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "chat_template.jinja"):
        assert (a / file).read_bytes() == (b / file).read_bytes()
    configs = [json.loads((path / "config.json").read_text()) for path in (a, b)]
    assert configs[0]["text_config"]["vocab_size"] == configs[1]["text_config"]["vocab_size"]


@pytest.mark.parametrize(
    ("tied", "init", "structure", "dtype"),
    [
        (True, "numeric", "native", torch.bfloat16),
        (False, "numeric", "spec", torch.float32),
        (False, "mean", "native", torch.float32),
        (True, "mean", "spec", torch.bfloat16),
    ],
)
def test_rows_are_those_of_a_model_in_memory_bit_for_bit(make_base, tmp_path, tied, init, structure, dtype):
    source = make_base(tied=tied, structure=None, dtype=dtype)
    done = _expand(source, tmp_path / "ours", init=init, structure=structure)
    theirs = _in_memory(source, tmp_path / "theirs", init=init, structure=structure)
    _assert_same(tmp_path / "ours", theirs)
    assert done.num_added == (1001 if structure == "native" else 1003)
    assert done.vocab.coord_ids == range(641, 1641)
    model, report = AutoModelForImageTextToText.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values())
    assert model.get_input_embeddings().weight.shape[0] == done.num_rows == model.config.text_config.vocab_size


def _with_rows(source: Path, target: Path, num_rows: int) -> Path:
    """Copy a checkpoint with its tables cut or padded to ``num_rows``."""
    shutil.copytree(source, target)
    weights = load_file(target / "model.safetensors")
    table = weights[EMBEDDING]
    padding = torch.randn(max(0, num_rows - len(table)), table.shape[1], generator=torch.Generator().manual_seed(3))
    weights[EMBEDDING] = torch.cat([table[:num_rows], padding.to(table.dtype)])
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    config["text_config"]["vocab_size"] = num_rows
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize("num_rows", [640, 1641, 1642, 2000])
def test_padding_rows_are_used_up_first(make_base, tmp_path, num_rows):
    source = _with_rows(make_base(structure=None), tmp_path / "source", num_rows)
    done = _expand(source, tmp_path / "ours")
    assert done.num_rows == max(num_rows, 1641)
    _assert_same(tmp_path / "ours", _in_memory(source, tmp_path / "theirs", init="numeric"))


def test_a_native_checkpoint_expanded_for_spec_keeps_its_coord_rows(make_base, tmp_path):
    native = make_base(dtype=torch.bfloat16)
    done = _expand(native, tmp_path / "ours", structure="spec")
    assert done.num_added == 2
    _assert_same(tmp_path / "ours", _in_memory(native, tmp_path / "theirs", init="numeric", structure="spec"))
    before = load_file(native / "model.safetensors")[EMBEDDING]
    assert torch.equal(load_file(tmp_path / "ours" / "model.safetensors")[EMBEDDING][:1641], before[:1641])


def test_an_expanded_checkpoint_is_copied_as_it_is(make_base, tmp_path):
    first = _expand(make_base(structure=None), tmp_path / "first")
    second = _expand(tmp_path / "first", tmp_path / "second")
    again = _expand(make_base(structure=None), tmp_path / "again")
    assert second.num_added == 0
    assert (second.vocab, second.num_rows) == (first.vocab, first.num_rows) == (again.vocab, again.num_rows)
    for path in (tmp_path / "second", tmp_path / "again"):
        assert {file.name: file.read_bytes() for file in path.iterdir()} == {
            file.name: file.read_bytes() for file in (tmp_path / "first").iterdir()
        }


@pytest.mark.parametrize("link", [True, False])
def test_only_the_shards_of_the_tables_are_written_anew(make_base, sharded, tmp_path, link):
    source = sharded(make_base(tied=False, structure=None), tmp_path / "source")
    stages: list[tuple[int, int]] = []
    target = tmp_path / "ours"
    target.mkdir()
    expand_checkpoint(source, target, link=link, progress=lambda _, done, total: stages.append((done, total)))
    done = [place for place, _ in stages]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, stages[0][1])
    assert len(set(done)) > 2  # not only at the end
    assert stages[0][1] >= json.loads((target / INDEX).read_text())["metadata"]["total_size"]
    theirs = load_file(
        _in_memory(make_base(tied=False, structure=None), tmp_path / "t", init="numeric") / "model.safetensors"
    )
    index = json.loads((target / INDEX).read_text())
    assert index["weight_map"] == json.loads((source / INDEX).read_text())["weight_map"]
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in theirs.values())
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(target / file)[name], theirs[name])
    tables = {index["weight_map"][name] for name in (EMBEDDING, HEAD)}
    for file in {*index["weight_map"].values()} - tables:
        assert (target / file).is_symlink() is link
        assert (target / file).read_bytes() == (source / file).read_bytes()


def test_a_digit_of_two_tokens_needs_the_mean(make_base, tmp_path, monkeypatch):
    right = type(Processor.from_directory(make_base(structure=None)).tokenizer).encode
    monkeypatch.setattr(
        "transformers.PreTrainedTokenizerBase.encode", lambda self, text, **kw: right(self, text * 2, **kw)
    )
    with pytest.raises(TokenizerError, match="digit 0.*2 tokens.*init: mean"):
        _expand(make_base(structure=None), tmp_path / "a", init="numeric")
    assert _expand(make_base(structure=None), tmp_path / "b", init="mean").num_added == 1001


@pytest.mark.parametrize(
    ("stored", "dtype"), [(torch.bfloat16, "float32"), (torch.float32, "bfloat16"), (torch.float32, "float16")]
)
def test_another_dtype_is_that_of_a_model_loaded_in_it(make_base, tmp_path, stored, dtype):
    source = make_base(tied=False, structure=None, dtype=stored)
    done = _expand(source, tmp_path / "ours", dtype=dtype, structure="spec")
    loaded = load(source, dtype=dtype)
    expand_vocab(loaded.model, loaded.processor.tokenizer, init="numeric", structure="spec")
    loaded.model.save_pretrained(tmp_path / "theirs")
    loaded.processor.save_pretrained(tmp_path / "theirs")
    _assert_same(tmp_path / "ours", tmp_path / "theirs")
    assert done.num_added == 1003
    ours = load(tmp_path / "ours").model
    assert ours.dtype == getattr(torch, dtype)
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert {config["dtype"], config["text_config"]["dtype"], config["vision_config"]["dtype"]} == {dtype}
    again = _expand(tmp_path / "ours", tmp_path / "again", dtype=dtype, structure="spec")
    assert again.num_added == 0
    _assert_same(tmp_path / "again", tmp_path / "ours")

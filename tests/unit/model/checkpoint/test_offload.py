"""A checkpoint run from disk: bit for bit the loaded model, in the memory of one block."""

import importlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from coordexp.errors import CheckpointError, TokenizerError
from coordexp.model.checkpoint import weights as module
from coordexp.model.checkpoint.adapter import read_adapter
from coordexp.model.checkpoint.offload import offload
from coordexp.model.checkpoint.stored_model import EMBEDDING, HEAD, StoredModel
from coordexp.model.checkpoint.weights import StoredWeights
from coordexp.model.load import load
from coordexp.model.merge.parity import compare, default_samples, logits_of
from coordexp.model.processor import Processor

# By import_module: the package's name ``merge`` is the function, not its module.
readable = importlib.import_module("coordexp.model.merge.merge").readable

TIES = [(True, True), (True, False), (False, True), (False, False)]
QUICK = [(*ties, tuning) for ties, tuning in zip(TIES, ("dora", "lora", "lora", "dora"), strict=True)]
SLOW = [
    pytest.param(*ties, tuning, marks=pytest.mark.slow)
    for ties, tuning in zip(TIES, ("lora", "dora", "dora", "lora"), strict=True)
]


@torch.no_grad()
def _logits(model, processor):
    return model(**default_samples(processor)[0], use_cache=False).logits


def _from_disk(base, *, dtype=torch.float32):
    model = offload(StoredModel.of(base), dtype=dtype).model
    return _logits(model, Processor.from_directory(base))


def _edited(base, target, change):
    """Copy a checkpoint with its tensors changed by ``change(weights)``."""
    shutil.copytree(base, target)
    weights = load_file(target / "model.safetensors")
    change(weights)
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    return target


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("stored", "computed"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_from_disk_is_bit_equal_to_loaded(make_base, tied, stored, computed):
    base, dtype = make_base(tied=tied, dtype=getattr(torch, stored)), getattr(torch, computed)
    loaded = AutoModelForImageTextToText.from_pretrained(base, dtype=dtype).eval()
    expected = _logits(loaded, Processor.from_directory(base))
    assert torch.equal(_from_disk(base, dtype=dtype), expected)


@pytest.mark.parametrize(("tied", "tie_head", "tuning"), QUICK + SLOW)
def test_an_adapter_on_disk_is_bit_equal_to_a_loaded_one(make_base, make_adapter, tied, tie_head, tuning):
    base = make_base(tied=tied, dtype=torch.bfloat16)
    adapter = make_adapter(base, tuning=tuning, tie_head=tie_head)
    loaded = load(base, adapter, dtype="float32")
    expected = _logits(loaded.model, loaded.processor)
    tokenizer = loaded.processor.tokenizer
    model = offload(StoredModel.of(base), adapter=read_adapter(adapter), tokenizer=tokenizer).model
    assert torch.equal(_logits(model, loaded.processor), expected)
    with model.disable_adapter():
        plain = _logits(model, loaded.processor)
    assert not torch.allclose(plain, expected, atol=1e-2)  # the adapter acts
    assert torch.equal(plain, _logits(load(base, dtype="float32").model, loaded.processor))


def test_tables_go_by_parts(make_base, monkeypatch):
    base = make_base()
    expected = _from_disk(base)
    read, listed = StoredWeights.read, StoredWeights.listed_rows
    rows_of_ids: list[int] = []

    def watched(self, name):
        assert name != EMBEDDING
        return read(self, name)

    def counted(self, name, ids):
        rows_of_ids.append(len(ids))
        return listed(self, name, ids)

    monkeypatch.setattr(StoredWeights, "read", watched)
    monkeypatch.setattr(StoredWeights, "listed_rows", counted)
    monkeypatch.setattr(module, "PIECE_BYTES", 100 * 128 * 4)  # the head in 17 chunks
    found = _from_disk(base)
    assert (found - expected).abs().max() <= 1e-6 * expected.abs().max()
    ids = default_samples(Processor.from_directory(base))[0]["input_ids"]
    assert rows_of_ids == [ids.unique().numel()]


def test_at_most_one_block_is_there_at_a_time(make_base, make_adapter):
    base = make_base()
    stored = StoredModel.of(base)
    adapter = read_adapter(make_adapter(base, tuning="dora"))
    present: list[int] = []
    model = offload(stored, adapter=adapter, tokenizer=Processor.from_directory(base).tokenizer).model

    def count(*_: object) -> None:
        parameters = {name.replace("base_layer.", ""): one for name, one in model.base_model.model.named_parameters()}
        loaded = (parameters[name] for name in stored.shapes)
        present.append(sum(one.nbytes for one in loaded if one.device.type != "meta"))

    handle = torch.nn.modules.module.register_module_forward_hook(count)  # after each module, with its weights
    try:
        _logits(model, Processor.from_directory(base))
    finally:
        handle.remove()
    count()
    sizes = {name: spec.num_bytes for name, spec in stored.weights.specs.items()}
    blocks = [
        sum(size for name, size in sizes.items() if name.startswith(f"model.{part}.{number}."))
        for part, number in (("language_model.layers", 0), ("visual.blocks", 0), ("visual.deepstack_merger_list", 0))
    ]
    assert max(present) == max(blocks) < 0.15 * sum(sizes.values())
    assert present[-1] == 0


def test_a_weight_read_wrong_is_seen(make_base, monkeypatch):
    """Negative control: the comparisons above can fail."""
    base = make_base()
    expected = _from_disk(base)
    read = StoredWeights.read
    monkeypatch.setattr(
        StoredWeights, "read", lambda self, name: read(self, name.replace("layers.1.mlp.up", "layers.0.mlp.up"))
    )
    assert not torch.allclose(_from_disk(base), expected, atol=1e-4)


def test_headers_are_checked_as_strictly_as_from_pretrained_does(make_base, tmp_path):
    key = "model.visual.merger.linear_fc1.weight"
    cases = {
        "missing": (lambda weights: weights.pop(key), rf"1 weights are missing, e\.g\. {key}"),
        "mismatched": (
            lambda weights: weights.update({key: torch.ones(2, 3)}),
            rf"1 weights are mismatched, e\.g\. {key} is \[2, 3\], expected \[384, 384\]",
        ),
        "unexpected": (
            lambda weights: weights.update({"mtp.weight": torch.ones(2)}),
            r"1 weights are unexpected, e\.g\. mtp\.weight",
        ),
        "untied": (
            lambda weights: weights.update({HEAD: weights[EMBEDDING] * 2}),
            r"says tie_word_embeddings: true, but loads with two tables",
        ),
    }
    for name, (change, message) in cases.items():
        with pytest.raises(CheckpointError, match=message):
            readable(_edited(make_base(), tmp_path / name, change))
    same = _edited(make_base(), tmp_path / "same", lambda weights: weights.update({HEAD: weights[EMBEDDING].clone()}))
    assert StoredModel.of(same).tied
    assert torch.equal(_from_disk(same), _from_disk(make_base()))


def test_an_untied_base_needs_its_head(make_base, tmp_path):
    with pytest.raises(CheckpointError, match=r"1 weights are missing, e\.g\. lm_head\.weight"):
        StoredModel.of(_edited(make_base(tied=False), tmp_path / "b", lambda weights: weights.pop(HEAD)))


def test_a_number_that_is_none_never_agrees(make_base):
    loaded = load(make_base())
    samples = [default_samples(loaded.processor)[0], {"input_ids": torch.tensor([[1, 2]])}]
    before = logits_of(loaded.model, samples)
    for broken in (torch.nan, torch.inf):
        for place in (0, 1):  # NaN does not win a comparison, so the order must not matter
            after = [one.clone() for one in before]
            after[place][0, 0, 3] = broken
            assert not compare(before, after, stored="bfloat16").holds
            with pytest.raises(CheckpointError, match=r"the model itself gives logits that are no numbers"):
                compare(after, before, stored="bfloat16")
    assert compare(before, before, stored="float32").holds


def test_an_adapter_of_another_vocabulary_or_with_more_layers_is_refused(make_base, make_adapter, tmp_path):
    base = make_base()
    adapter = make_adapter(base, tuning="lora")
    other = Path(shutil.copytree(adapter, tmp_path / "other"))
    weights = load_file(other / "adapter_model.safetensors")
    for key in weights:
        if key.endswith("coord_ids"):
            weights[key] = weights[key] - 1  # from the wildcard on
    save_file(weights, other / "adapter_model.safetensors")
    tokenizer = Processor.from_directory(base).tokenizer
    with pytest.raises(TokenizerError, match=r"coord_offset\.ids lack 1 coord tokens"):
        offload(StoredModel.of(base), adapter=read_adapter(other), tokenizer=tokenizer)
    fewer = Path(shutil.copytree(adapter, tmp_path / "fewer"))
    config = json.loads((fewer / "adapter_config.json").read_text())
    config["target_modules"] = config["target_modules"].replace(r"|model\.visual\.merger\.linear_fc2", "")
    (fewer / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"2 tensors are on one side only, e\.g\. .*merger\.linear_fc2"):
        offload(StoredModel.of(base), adapter=read_adapter(fewer), tokenizer=tokenizer)

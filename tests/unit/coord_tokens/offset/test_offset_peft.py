"""The adapter under PEFT: what trains, switching, deleting, merging, unloading, loading."""

import copy
from pathlib import Path

import peft
import pytest
import torch
import transformers
from packaging.version import Version
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import Qwen3VLForConditionalGeneration
from transformers.integrations.peft import MIN_PEFT_VERSION

from coordexp.coord_tokens.offset_adapter import active_offset, install_coord_offset_adapter
from coordexp.errors import CheckpointError, ConfigError
from coordexp.model.checkpoint.adapter import save_adapter
from coordexp.model.checkpoint.stored_model import quiet
from tests.support.fold_oracle import fold_coord_offset_adapter
from tests.support.offsets import COORD_IDS, FIRST, IDS, TIES, fresh, installed, logits, randomise, wrapped

QUICK = [(*ties, tuning) for ties, tuning in zip(TIES, ("lora", "dora", "dora", "lora"), strict=True)]
SLOW = [
    pytest.param(*ties, tuning, marks=pytest.mark.slow)
    for ties, tuning in zip(TIES, ("dora", "lora", "lora", "dora"), strict=True)
]


@pytest.mark.parametrize(("tied", "tie_head", "tuning"), QUICK + SLOW)
def test_the_copy_trains_and_disabling_gives_the_base(tied, tie_head, tuning):
    model = fresh(tied)
    base_logits = logits(model)
    original = install_coord_offset_adapter(model, coord_ids=COORD_IDS, tie_head=tie_head)
    outer = wrapped(model, tuning=tuning)
    active = active_offset(outer)
    assert active is not original
    torch.testing.assert_close(logits(outer), base_logits, rtol=0, atol=1e-6)

    outer(input_ids=IDS, labels=IDS).loss.backward()
    trainable = {name: parameter for name, parameter in outer.named_parameters() if parameter.requires_grad}
    assert all("lora_" in name or "coord_offset_adapter.modules_to_save" in name for name in trainable)
    assert original.embed_offset.grad is None
    assert all(table.grad is not None for table in active.parameters())
    randomise(active)
    changed = logits(outer)
    assert not torch.equal(changed, base_logits)
    with outer.disable_adapter():
        assert torch.equal(logits(outer), base_logits)
    assert torch.equal(logits(outer), changed)


def _two_adapters():
    outer = wrapped(installed())
    outer.add_adapter("second", copy.deepcopy(outer.peft_config["default"]))
    randomise(outer, seed=1)
    first = logits(outer)
    outer.set_adapter("second")
    randomise(outer, seed=2)
    return outer, {"default": first, "second": logits(outer)}


def test_each_adapter_has_its_own_offsets():
    outer, said = _two_adapters()
    base = logits(fresh())
    assert not torch.equal(said["default"], said["second"])
    for name in ("default", "second", "default"):
        outer.set_adapter(name)
        assert torch.equal(logits(outer), said[name])
        trainable = [key for key, p in outer.named_parameters() if p.requires_grad and "embed_offset" in key]
        assert trainable == [f"base_model.model.coord_offset_adapter.modules_to_save.{name}.embed_offset"]
    with outer.disable_adapter():
        assert torch.equal(logits(outer), base)


def test_an_adapter_without_offsets_leaves_them_out():
    outer, said = _two_adapters()
    outer.add_adapter("third", LoraConfig(target_modules=["q_proj"]))
    outer.set_adapter("third")
    assert torch.equal(logits(outer), logits(fresh()))
    outer.set_adapter("default")
    assert torch.equal(logits(outer), said["default"])


@pytest.mark.filterwarnings("ignore:Adapter .* was active which is now deleted")
def test_half_an_adapter_is_refused():
    """PEFT moves its layers on to another adapter, but modules_to_save only if the deleted one had some."""
    outer = wrapped(installed())
    randomise(outer)
    expected = logits(outer)
    outer.add_adapter("second", LoraConfig(target_modules=["q_proj"]))
    outer.set_adapter("second")
    outer.delete_adapter("second")
    with pytest.raises(ConfigError, match=r"'default'.*set_adapter"):
        logits(outer)
    outer.set_adapter("default")
    assert torch.equal(logits(outer), expected)


def _trained(tied: bool, tie_head: bool, tuning: str = "lora") -> PeftModel:
    outer = wrapped(installed(tied, tie_head=tie_head), tuning=tuning)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in outer.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return outer


@pytest.mark.parametrize(("tied", "tie_head"), TIES)
def test_merging_in_memory_keeps_the_offsets_and_folding_bakes_them(tied, tie_head, tmp_path):
    outer = _trained(tied, tie_head, tuning="dora")
    expected = logits(outer)
    with quiet():
        merged = outer.merge_and_unload()
    torch.testing.assert_close(logits(merged), expected, rtol=0, atol=1e-4)
    with pytest.raises(CheckpointError, match=r"coordexp\.model\.merge"):
        merged.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())

    fold_coord_offset_adapter(merged)
    assert type(merged) is Qwen3VLForConditionalGeneration
    assert not any("coord_offset" in name for name in merged.state_dict())
    torch.testing.assert_close(logits(merged), expected, rtol=0, atol=1e-4)
    assert (merged.get_output_embeddings().weight is merged.get_input_embeddings().weight) is (tied and tie_head)
    with quiet():
        merged.save_pretrained(tmp_path)
        loaded, report = type(merged).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert torch.equal(logits(loaded.eval()), logits(merged))
    assert loaded.config.tie_word_embeddings is (tied and tie_head)


def test_folding_moves_only_listed_rows():
    model = installed(tie_head=False)
    table = model.get_input_embeddings().weight.detach().clone()
    adapter = randomise(model)
    fold_coord_offset_adapter(model)
    for module, offset in (
        (model.get_input_embeddings(), adapter.embed_offset),
        (model.get_output_embeddings(), adapter.head_offset),
    ):
        assert torch.equal(module.weight[:FIRST], table[:FIRST])
        assert torch.equal(module.weight[FIRST:], table[FIRST:] + offset)
    model.resize_token_embeddings(1650, mean_resizing=False)  # nothing of the adapter is left to be in the way
    install_coord_offset_adapter(model, coord_ids=COORD_IDS)


def test_unloading_keeps_the_active_offsets_without_lora():
    """As PEFT does with everything in modules_to_save; wrapped and loaded again, nothing is added twice."""
    outer = _trained(True, True)
    only_offsets = fresh()
    with torch.no_grad():
        only_offsets.get_input_embeddings().weight[FIRST : FIRST + 1000] += active_offset(outer).embed_offset
    with quiet():
        bare = outer.unload()
    torch.testing.assert_close(logits(bare), logits(only_offsets), rtol=0, atol=1e-4)
    again = wrapped(bare)
    torch.testing.assert_close(logits(again), logits(only_offsets), rtol=0, atol=1e-4)


def _reloaded(outer: PeftModel, directory: Path, base: Qwen3VLForConditionalGeneration, **options) -> PeftModel:
    save_adapter(outer, directory)
    with quiet():
        return PeftModel.from_pretrained(base, directory, **options).eval()


@pytest.mark.parametrize("options", [{}, {"low_cpu_mem_usage": True}, {"adapter_name": "other"}])
def test_plain_peft_loads_onto_an_installed_adapter(options, tmp_path):
    outer = _trained(False, False)
    assert torch.equal(logits(_reloaded(outer, tmp_path, installed(False, tie_head=False), **options)), logits(outer))


def test_an_adapter_loaded_beside_another(tmp_path):
    outer = _trained(True, True)
    save_adapter(outer, tmp_path)
    other = wrapped(installed())
    randomise(other, seed=9)
    before = logits(other)
    with quiet():
        other.load_adapter(str(tmp_path), "saved")
    assert torch.equal(logits(other), before)
    other.set_adapter("saved")
    assert torch.equal(logits(other), logits(outer))


def test_one_table_is_not_loaded_into_two_or_two_into_one(tmp_path):
    with pytest.raises(CheckpointError, match="tie_head: false.*true"):
        _reloaded(_trained(True, False), tmp_path / "two", installed(tie_head=True))
    with pytest.raises(KeyError, match="coord_offset_adapter.head_offset"):  # PEFT's own, before ours is asked
        _reloaded(_trained(True, True), tmp_path / "one", installed(tie_head=False))


def test_a_float32_table_of_a_bfloat16_model_is_not_rounded(tmp_path):
    model = fresh().to(torch.bfloat16)
    install_coord_offset_adapter(model, coord_ids=COORD_IDS, dtype="float32")
    outer = wrapped(model)
    randomise(outer)
    base = fresh().to(torch.bfloat16)
    install_coord_offset_adapter(base, coord_ids=COORD_IDS)
    loaded = _reloaded(outer, tmp_path, base)
    assert active_offset(loaded).embed_offset.dtype == torch.float32
    assert torch.equal(logits(loaded), logits(outer))
    rounded = fresh().to(torch.bfloat16)
    install_coord_offset_adapter(rounded, coord_ids=COORD_IDS, dtype="bfloat16")  # asked for, so it is kept
    assert active_offset(_reloaded(outer, tmp_path, rounded)).embed_offset.dtype == torch.bfloat16


def test_training_offsets_that_peft_does_not_know_of_is_refused():
    outer = get_peft_model(installed(), LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(ConfigError, match=r"modules_to_save=\['coord_offset_adapter'\]"):
        outer.train()(input_ids=IDS, use_cache=False)
    assert torch.equal(logits(outer.eval()), logits(fresh()))  # to look at, there is nothing wrong with it


@pytest.mark.skipif(
    Version(peft.__version__) < Version(MIN_PEFT_VERSION),
    reason=f"transformers {transformers.__version__} loads adapters by itself only with PEFT {MIN_PEFT_VERSION}",
)
def test_transformers_own_peft_integration(tmp_path):
    config = LoraConfig(target_modules=["q_proj"], modules_to_save=["coord_offset_adapter"])
    model, other = installed(), installed()
    with quiet():
        model.add_adapter(config)
    randomise(model)
    with quiet():
        model.save_pretrained(tmp_path)
        other.load_adapter(str(tmp_path))
    assert torch.equal(logits(other), logits(model))

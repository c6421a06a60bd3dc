"""Loading checkpoints and adapters, good and bad."""

import importlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText, Qwen3VLForConditionalGeneration

from coordexp.coord_tokens.offset.hooks import GUARD_NAME
from coordexp.coord_tokens.offset_adapter import active_offset, install_coord_offset_adapter
from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.adapter import TrainedBase, name_base, read_adapter, save_adapter
from coordexp.model.expand import expand_checkpoint
from coordexp.model.loading import load
from coordexp.model.merging.proof import default_samples
from tests.support.checkpoints import edit_json
from tests.support.offsets import QUICK, SLOW


@torch.no_grad()
def _logits(loaded_or_model, processor):
    return loaded_or_model(**default_samples(processor)[0], use_cache=False).logits


def _copy(directory: Path, target: Path) -> Path:
    return Path(shutil.copytree(directory, target))


def test_a_base_loads_with_processor_and_vocabulary(make_base):
    loaded = load(make_base())
    assert isinstance(loaded.model, Qwen3VLForConditionalGeneration)
    assert not loaded.model.training
    assert loaded.vocab.coord_ids == range(641, 1641)
    assert loaded.processor.tokenizer.convert_tokens_to_ids("<|coord_0|>") == 641
    assert _logits(loaded.model, loaded.processor).shape[-1] == 1641


def test_an_unexpanded_base_has_no_vocabulary_yet(make_base):
    assert load(make_base(structure=None)).vocab is None
    assert load(make_base(), structure="spec").vocab is None  # native tokens only: spec is not complete


def test_structure_is_recognised_by_the_tokenizer(make_base):
    vocab = load(make_base(structure="spec")).vocab
    assert (vocab.structure, vocab.box_start_id) == ("spec", None)
    assert vocab.added_structure_ids == (1641, 1642)
    assert load(make_base(structure="spec"), structure="native").vocab.structure == "native"


@pytest.mark.parametrize(
    ("dtype", "expected"), [(name, getattr(torch, name)) for name in ("bfloat16", "float16", "float32")]
)
def test_dtype(make_base, dtype, expected):
    assert load(make_base(dtype=torch.bfloat16)).model.dtype == torch.bfloat16  # auto: as stored
    assert load(make_base(), dtype="auto").model.dtype == torch.float32
    model = load(make_base(dtype=torch.bfloat16), dtype=dtype).model
    assert {parameter.dtype for parameter in model.parameters()} == {expected}


@pytest.mark.parametrize(("tied", "tie_head", "tuning"), QUICK + SLOW)
def test_a_saved_adapter_loads_bit_equal(make_base, make_adapted, tmp_path, tied, tie_head, tuning):
    base = make_base(tied=tied)
    trained = make_adapted(base, tuning=tuning, tie_head=tie_head)
    save_adapter(trained, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert not any("embed_tokens" in key or "lm_head" in key for key in read_adapter(tmp_path).keys)

    loaded = load(base, tmp_path)
    expected = _logits(trained, loaded.processor)
    assert torch.equal(_logits(loaded.model, loaded.processor), expected)
    assert active_offset(loaded.model).tie_head is tie_head
    plain = load(base)
    with loaded.model.disable_adapter():
        assert torch.equal(_logits(loaded.model, loaded.processor), _logits(plain.model, plain.processor))

    # The other way: plain PEFT, on a base on which the adapter was installed.
    install_coord_offset_adapter(plain.model, coord_ids=plain.vocab.coord_ids, tie_head=tie_head)
    assert torch.equal(_logits(PeftModel.from_pretrained(plain.model, tmp_path).eval(), plain.processor), expected)


@pytest.mark.parametrize("structure", ["native", None])
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")
def test_peft_and_transformers_alone_refuse_coord_offsets(make_base, make_adapter, tmp_path, structure):
    """On the base with coord tokens and without them; what they say is what to do."""
    adapter = make_adapter(make_base(), tuning="lora")
    needs_us = pytest.raises(ValueError, match=f"{GUARD_NAME}.* not found in the base model")
    assert "coordexp_model_load" in GUARD_NAME
    base = make_base(structure=structure)
    with needs_us:
        PeftModel.from_pretrained(load(base).model, adapter)
    with needs_us:
        load(base).model.load_adapter(str(adapter))
    other = get_peft_model(load(base).model, LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    with needs_us:
        other.load_adapter(str(adapter), "second")
    named = _copy(adapter, tmp_path / "adapter")
    edit_json(named / "adapter_config.json", base_model_name_or_path=str(base))
    with needs_us:
        AutoModelForImageTextToText.from_pretrained(named)


def test_an_adapter_says_what_its_base_was_made_by(make_base, make_adapted, tmp_path):
    """Markers, start of the new rows and dtype: the checkpoint that was given becomes what training made of it."""
    given = make_base(structure=None, dtype=torch.bfloat16)
    (tmp_path / "base").mkdir()
    expand_checkpoint(given, tmp_path / "base", init="mean", structure="spec", dtype="float32")
    trained = make_adapted(tmp_path / "base", tie_head=None)  # no offsets, by which the structure could be known
    name_base(trained, TrainedBase(str(given), None, "float32", "mean", "spec"))
    save_adapter(trained, tmp_path / "adapter")
    assert read_adapter(tmp_path / "adapter").base == TrainedBase(str(given), None, "float32", "mean", "spec")
    loaded = load(given, tmp_path / "adapter")
    assert loaded.vocab.structure == "spec"
    expected = _logits(trained, loaded.processor)
    assert torch.equal(_logits(loaded.model, loaded.processor), expected)
    other = load(given, tmp_path / "adapter", vocab_init="numeric")
    assert not torch.equal(_logits(other.model, other.processor), expected)
    for changes in ({"vocab_init": "random"}, {"structure": 3}, {"dtype": None}):
        made_by = {"dtype": "auto", "vocab_init": "mean", "structure": None} | changes
        edit_json(tmp_path / "adapter" / "adapter_config.json", auto_mapping={"coordexp_base": made_by})
        with pytest.raises(CheckpointError, match=rf"adapter_config\.json.*{next(iter(changes))}"):
            read_adapter(tmp_path / "adapter")


@pytest.mark.parametrize("structure", ["native", "spec"])
def test_an_adapter_expands_a_base_that_lacks_its_tokens(make_base, make_adapter, structure):
    expanded = make_base(structure=structure)
    adapter = make_adapter(expanded, tuning="lora")
    loaded, again = load(expanded, adapter), load(make_base(structure=None), adapter)
    assert again.vocab == loaded.vocab
    assert active_offset(again.model).num_ids == (1000 if structure == "native" else 1002)
    assert torch.equal(_logits(again.model, again.processor), _logits(loaded.model, loaded.processor))


def test_bfloat16_and_lora_without_offsets(make_base, make_adapted, tmp_path):
    base = make_base(dtype=torch.bfloat16)
    for tie_head in (True, None):
        trained = make_adapted(base, tuning="dora", tie_head=tie_head)
        save_adapter(trained, tmp_path / str(tie_head))
        loaded = load(base, tmp_path / str(tie_head))
        assert torch.equal(_logits(loaded.model, loaded.processor), _logits(trained, loaded.processor))
        assert (active_offset(loaded.model) is None) is (tie_head is None)


def test_a_loaded_adapter_is_frozen_unless_it_is_to_train(make_base, make_adapter):
    base = make_base()
    adapter = make_adapter(base, tuning="lora")
    assert not any(p.requires_grad for p in load(base, adapter).model.parameters())
    trainable = [n for n, p in load(base, adapter, trainable=True).model.named_parameters() if p.requires_grad]
    assert any("embed_offset" in name for name in trainable)
    assert not any("embed_tokens" in name or "lm_head" in name for name in trainable)


@pytest.mark.parametrize(
    ("name", "damage", "facts"),
    [
        ("config.json", lambda f: f.unlink(), r"config\.json.*not found"),
        ("config.json", lambda f: f.write_text('{"model_type": '), r"config\.json.*JSON"),
        ("model.safetensors", lambda f: f.unlink(), "not found.*safetensors"),
        ("model.safetensors", lambda f: f.write_bytes(f.read_bytes()[:-100]), "safetensors"),
        ("tokenizer.json", lambda f: f.unlink(), "tokenizer"),
        ("preprocessor_config.json", lambda f: f.unlink(), "image processor"),
        ("chat_template.jinja", lambda f: f.unlink(), r"chat_template\.jinja"),
        ("model.safetensors", lambda f: f.rename(f.with_name("pytorch_model.bin")), r"pytorch_model\.bin"),
    ],
)
def test_damaged_checkpoints_are_refused_before_weights_are_read(make_base, tmp_path, monkeypatch, name, damage, facts):
    base = _copy(make_base(), tmp_path / "base")
    damage(base / name)
    module = importlib.import_module("coordexp.model.loading")
    monkeypatch.setattr(module, "load_stock", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(CheckpointError, match=facts) as raised:
        load(base)
    assert str(base) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_and_misshapen_weights_are_not_filled_with_random_numbers(make_base, tmp_path):
    base = _copy(make_base(), tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    name = "model.language_model.norm.weight"
    save_file(
        {key: value for key, value in weights.items() if key != name}, base / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(CheckpointError, match=f"1 weights.*missing.*{name}"):
        load(base)
    save_file(weights | {name: torch.ones(3)}, base / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"norm\.weight.*\[3\]"):
        load(base)


@pytest.mark.parametrize(
    ("name", "damage", "facts"),
    [
        ("adapter_config.json", lambda f: f.unlink(), r"adapter_config\.json.*not found"),
        ("adapter_config.json", lambda f: edit_json(f, peft_type="IA3"), "peft_type.*'IA3'"),
        ("adapter_config.json", lambda f: edit_json(f, r=8), "r: 8"),
        ("adapter_config.json", lambda f: edit_json(f, target_modules=["q_proj"]), "tensors"),
        ("adapter_model.safetensors", lambda f: f.unlink(), "not found"),
        ("adapter_model.safetensors", lambda f: f.write_bytes(f.read_bytes()[:200]), "safetensors"),
    ],
)
def test_damaged_adapters_are_refused(make_base, make_adapter, tmp_path, name, damage, facts):
    adapter = _copy(make_adapter(make_base(), tuning="lora"), tmp_path / "adapter")
    damage(adapter / name)
    with pytest.raises(CheckpointError, match=facts):
        load(make_base(), adapter)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod."])
@pytest.mark.parametrize("tuning", ["lora", "dora"])
def test_an_adapter_saved_under_a_wrapper_is_read(make_base, make_adapter, tmp_path, prefix, tuning):
    original = make_adapter(make_base(), tuning=tuning)
    adapter = _copy(original, tmp_path / "adapter")
    file = adapter / "adapter_model.safetensors"
    save_file({prefix + key: tensor for key, tensor in load_file(file).items()}, file, {"format": "pt"})
    loaded, expected = load(make_base(), adapter), load(make_base(), original)
    found = get_peft_model_state_dict(loaded.model, save_embedding_layers=False)
    for key, tensor in get_peft_model_state_dict(expected.model, save_embedding_layers=False).items():
        assert torch.equal(found[key], tensor), key
    assert read_adapter(adapter).tensors().keys() == set(read_adapter(original).keys)


def test_an_adapter_for_another_size_is_refused_with_the_base_it_was_trained_on(make_base, make_adapter, tmp_path):
    adapter = _copy(make_adapter(make_base(), tuning="lora"), tmp_path / "adapter")
    weights = load_file(adapter / "adapter_model.safetensors")
    wider = {key: it.repeat(1, 2) if key.endswith("lora_A.weight") else it for key, it in weights.items()}
    save_file(wider, adapter / "adapter_model.safetensors", {"format": "pt"})
    edit_json(adapter / "adapter_config.json", base_model_name_or_path="Qwen/Qwen3-VL-8B-Instruct")
    with pytest.raises(CheckpointError, match="Qwen/Qwen3-VL-8B-Instruct"):
        load(make_base(), adapter)


def test_an_adapter_of_zero_3_whose_tensors_are_empty_is_called_so(make_base, make_adapter, tmp_path):
    adapter = _copy(make_adapter(make_base(), tuning="lora"), tmp_path / "adapter")
    file = adapter / "adapter_model.safetensors"
    weights = load_file(file)
    emptied = {key: tensor[:0] if "lora" in key else tensor for key, tensor in weights.items()}
    save_file(emptied, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"empty.*ZeRO-3.*zero_to_fp32\.py"):
        load(make_base(), adapter)


def test_a_pickled_adapter_is_refused_with_the_command_that_converts_it(make_base, make_adapter, tmp_path):
    adapter = _copy(make_adapter(make_base(), tuning="lora"), tmp_path / "adapter")
    file = adapter / "adapter_model.safetensors"
    torch.save(load_file(file), adapter / "adapter_model.bin")
    file.unlink()
    with pytest.raises(CheckpointError, match=r"adapter_model\.bin.*pickle") as refused:
        load(make_base(), adapter)
    program = shlex.split(re.search("python -c .*", str(refused.value))[0])
    subprocess.run([sys.executable, *program[1:]], cwd=adapter, check=True)
    load(make_base(), adapter)

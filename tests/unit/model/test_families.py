"""Each family on a tiny random model: expand, adapt, train, save, load, merge, and read again by stock transformers."""

import json

import pytest
import torch
from safetensors import safe_open
from torch.nn import functional as F  # noqa: N812
from transformers import AutoModelForImageTextToText

from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.data.prompt import Prompt
from coordexp.errors import CheckpointError, TokenizerError
from coordexp.model.checkpoint.adapter import TrainedBase, name_base, save_adapter
from coordexp.model.checkpoint.directory import model_config
from coordexp.model.expand import expand_to
from coordexp.model.families import FAMILIES, family_of
from coordexp.model.loading import load
from coordexp.model.lora import apply_tuning
from coordexp.model.merging.merge import merge
from coordexp.model.merging.proof import default_samples, logits_of
from coordexp.model.tiny.parts import write_tiny


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def family(request):
    """A family."""
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def checkpoint(family, tmp_path_factory):
    """A tiny random checkpoint of it."""
    folder = tmp_path_factory.mktemp(family.model_type) / "base"
    write_tiny(family, folder)
    return folder


@pytest.fixture(scope="module")
def expanded(checkpoint, tmp_path_factory):
    """The checkpoint with coord tokens."""
    folder = tmp_path_factory.mktemp("expanded") / "base"
    expansion = expand_to(checkpoint, folder)
    assert expansion.num_added == 1001
    return folder


def test_an_expanded_checkpoint_is_stock_and_keeps_every_other_weight(checkpoint, expanded):
    before = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype="auto")
    after, report = AutoModelForImageTextToText.from_pretrained(expanded, dtype="auto", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    ids = load(expanded).vocab.coord_ids
    for name, tensor in before.state_dict().items():
        grown = after.state_dict()[name]
        rows = len(tensor) if grown.shape == tensor.shape else ids.start - 1
        assert torch.equal(grown[:rows], tensor[:rows]), name
    assert after.get_input_embeddings().weight[ids.stop - 1].any()


@pytest.mark.parametrize(("tuning", "tie_head"), [("lora", True), pytest.param("dora", False, marks=pytest.mark.ci)])
def test_two_steps_are_saved_merged_and_read_by_stock_transformers(family, expanded, tmp_path, tuning, tie_head):
    loaded = load(expanded)
    base = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    install_coord_offset_adapter(loaded.model, coord_ids=loaded.vocab.coord_ids, tie_head=tie_head)
    model = apply_tuning(loaded.model, tuning=tuning, rank=2, alpha=4.0, dropout=0.0, vision=True, seed=0)
    samples = default_samples(loaded.processor)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    model.train()
    for _ in range(2):
        logits = model(**samples[0], use_cache=False).logits
        F.cross_entropy(logits[0, :-1], samples[0]["input_ids"][0, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    name_base(model, TrainedBase(str(expanded), structure="native"))
    save_adapter(model, tmp_path / "adapter")
    trained = logits_of(model, samples)

    again = load(expanded, tmp_path / "adapter")
    torch.testing.assert_close(logits_of(again.model, samples), trained, atol=1e-5, rtol=1e-4)

    report = merge(tmp_path / "adapter", tmp_path / "merged")
    assert report.num_merged_layers > 0
    assert report.num_offset_rows == 1000
    merged = AutoModelForImageTextToText.from_pretrained(tmp_path / "merged", dtype="auto")
    torch.testing.assert_close(logits_of(merged, samples), trained, atol=2e-3, rtol=2e-3)
    frozen = [name for name in base if not family.frozen.isdisjoint(name.split("."))]
    assert bool(frozen) == bool(family.frozen)
    for name in frozen:
        assert torch.equal(merged.state_dict()[name], base[name]), name


def test_full_tuning_leaves_routed_experts_alone(family, expanded):
    model = load(expanded).model
    apply_tuning(model, tuning="full", rank=2, alpha=4.0, dropout=0.0, vision=False, seed=0)
    for name, parameter in model.named_parameters():
        frozen = ".visual." in name or not family.frozen.isdisjoint(name.split("."))
        assert parameter.requires_grad != frozen, name


def test_a_prompt_ends_with_a_closed_thought(expanded):
    tokenizer = load(expanded).processor.tokenizer
    closing = "{%- if enable_thinking is false -%}<think></think>{%- else -%}<think>{%- endif -%}"
    plain = tokenizer.chat_template
    tokenizer.chat_template = plain + closing
    assert tokenizer.decode(Prompt.build(tokenizer).after).endswith("<think></think>")
    tokenizer.chat_template = plain + "<think>"
    with pytest.raises(TokenizerError, match="enable_thinking"):
        Prompt.build(tokenizer)
    tokenizer.chat_template = plain


def test_qwen2_5_as_on_the_hub_with_a_flat_configuration_and_old_names(tmp_path):
    write_tiny(FAMILIES["qwen2_5_vl"], tmp_path / "base")
    with safe_open(tmp_path / "base" / "model.safetensors", framework="pt") as handle:
        assert any(name.startswith("model.layers.") for name in handle.keys())  # noqa: SIM118
    file = tmp_path / "base" / "config.json"
    nested = json.loads(file.read_text())
    text = nested.pop("text_config")
    file.write_text(json.dumps({**text, **nested}))
    assert model_config(tmp_path / "base").get_text_config().vocab_size == 704
    assert expand_to(tmp_path / "base", tmp_path / "expanded").num_added == 1001
    assert load(tmp_path / "expanded").vocab is not None


def test_other_families_are_refused_with_the_known_ones(tmp_path):
    with pytest.raises(CheckpointError, match=r"qwen4_exp.*n-gram.*qwen3_5"):
        family_of("qwen4_exp", where="config.json")
    with pytest.raises(CheckpointError, match=r"llava.*qwen2_5_vl"):
        family_of("llava", where="config.json")

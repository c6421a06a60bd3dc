"""Faults of a merge are found at the weights, however little was trained and however deep the model is."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from coordexp.coord_tokens.offset_adapter import active_offset, install_coord_offset_adapter
from coordexp.coord_tokens.vocab import expand_vocab
from coordexp.errors import CheckpointError
from coordexp.model import load, merge
from coordexp.model.checkpoint.adapter import read_adapter, save_adapter
from coordexp.model.checkpoint.stored_model import EMBEDDING, HEAD, StoredModel, load_stock
from coordexp.model.lora import apply_tuning
from coordexp.model.merging.delta import AdapterDelta
from coordexp.model.merging.proof import default_samples, prove_weights
from coordexp.model.tiny.parts import build_model, build_tokenizer, save_base
from tests.support.checkpoints import WEIGHTS

DEPTH = 28
LAYER = "model.language_model.layers.20.self_attn.v_proj.weight"
STEPS = [1, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (2, 60))]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return base, adapter and merged checkpoint of a deep, narrow model after some steps of AdamW."""
    root = tmp_path_factory.mktemp("deep")

    def make(dtype: torch.dtype, steps: int, *, tuning: str, tie_head: bool, tied: bool = True) -> tuple[Path, Path]:
        name = f"{str(dtype)[6:]}-{'tied' if tied else 'untied'}"
        base, adapter = root / name, root / f"{name}-{tuning}-{tie_head}-{steps}"
        if not base.exists():
            tokenizer = build_tokenizer()
            model = build_model(tokenizer, tie_word_embeddings=tied)
            layers = model.model.language_model.layers
            layers.extend(build_model(tokenizer, seed=seed).model.language_model.layers[0] for seed in range(4, DEPTH))
            model.config.text_config.num_hidden_layers = DEPTH
            model.config.text_config.layer_types = ["full_attention"] * DEPTH
            for module in model.modules():  # the spread that gives logits like a trained model's
                if isinstance(module, nn.Linear):
                    nn.init.normal_(module.weight, std=0.9 / module.in_features**0.5)
            expand_vocab(model, tokenizer, init="numeric", structure="native")
            save_base(base, model.to(dtype), tokenizer)
        if not adapter.exists():
            loaded = load(base)
            install_coord_offset_adapter(
                loaded.model, coord_ids=loaded.vocab.coord_ids, tie_head=tie_head, dtype="float32"
            )
            adapted = apply_tuning(loaded.model, tuning=tuning, rank=8, alpha=16, dropout=0, vision=False, seed=0)
            sample = default_samples(loaded.processor)[0]
            optimizer = torch.optim.AdamW((p for p in adapted.parameters() if p.requires_grad), lr=1e-4)
            for _ in range(steps):
                adapted(**sample, labels=sample["input_ids"], use_cache=False).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            assert active_offset(adapted).embed_offset.any()
            save_adapter(adapted, adapter)
            merge(adapter, root / f"{adapter.name}.merged", base=base)
        return base, adapter

    return make


def without_offsets(merged, base, delta):
    merged[EMBEDDING] = base[EMBEDDING]
    if HEAD in merged:
        merged[HEAD] = base.get(HEAD, base[EMBEDDING])


def offset_at_the_input_only(merged, base, delta):
    merged[HEAD] = base.get(HEAD, base[EMBEDDING])


def one_layer_left_out(merged, base, delta):
    merged[LAYER] = base[LAYER]


def wrong_scaling(merged, base, delta):
    layer = delta.linear[LAYER]
    merged[LAYER] = (base[LAYER].float() + 2 * layer.scaling * layer.b @ layer.a).to(base[LAYER].dtype)


def magnitudes_left_out(merged, base, delta):
    layer = delta.linear[LAYER]
    merged[LAYER] = (base[LAYER].float() + layer.scaling * layer.b @ layer.a).to(base[LAYER].dtype)


def rows_one_off(merged, base, delta):
    ids = delta.offset.ids
    table = base[EMBEDDING].clone()
    table[ids - 1] = (table[ids - 1].float() + delta.offset.tables[EMBEDDING].float()).to(table.dtype)
    merged[EMBEDDING] = table


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("fault", "tuning", "tied", "tie_head"),
    [
        (without_offsets, "lora", True, True),
        pytest.param(offset_at_the_input_only, "lora", False, True, marks=pytest.mark.ci),
        pytest.param(offset_at_the_input_only, "dora", True, False, marks=pytest.mark.ci),
        pytest.param(one_layer_left_out, "lora", True, True, marks=pytest.mark.ci),
        pytest.param(wrong_scaling, "lora", True, True, marks=pytest.mark.ci),
        pytest.param(magnitudes_left_out, "dora", True, False, marks=pytest.mark.ci),
        (rows_one_off, "lora", True, True),
    ],
)
def test_a_fault_is_found_and_a_sound_merge_is_not(trained, tmp_path, fault, tuning, tied, tie_head, dtype, steps):
    base, adapter = trained(dtype, steps, tuning=tuning, tie_head=tie_head, tied=tied)
    bad = Path(shutil.copytree(adapter.with_name(f"{adapter.name}.merged"), tmp_path / "bad"))
    proof = _prove(bad, base, adapter)
    assert proof.num_compared > 10_000
    assert proof.num_ties < 1e-3 * proof.num_compared or dtype == torch.float32
    merged = load_file(bad / WEIGHTS)
    fault(merged, load_file(base / WEIGHTS), AdapterDelta.read(read_adapter(adapter)))
    save_file({name: tensor.clone() for name, tensor in merged.items()}, bad / WEIGHTS, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"\.weight\b"):
        _prove(bad, base, adapter)


@pytest.mark.ci
def test_a_head_that_the_merged_model_ties_again_is_found(trained, tmp_path):
    base, adapter = trained(torch.bfloat16, 1, tuning="dora", tie_head=False)
    bad = Path(shutil.copytree(adapter.with_name(f"{adapter.name}.merged"), tmp_path / "bad"))
    merged = load_file(bad / WEIGHTS)
    del merged[HEAD]
    save_file(merged, bad / WEIGHTS, {"format": "pt"})
    config = json.loads((bad / "config.json").read_text())
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = True
    (bad / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        _prove(bad, base, adapter)


def test_a_short_trial_in_bfloat16_is_merged_and_says_what_it_loses(trained):
    _, adapter = trained(torch.bfloat16, 2, tuning="lora", tie_head=True)
    report = json.loads((adapter.with_name(f"{adapter.name}.merged") / "merge_report.json").read_text())
    assert 0.1 < report["lost_at_logits"] < 1
    assert 0.1 < report["lost_at_weights"]["v_proj"] < 1
    assert report["lost_at_weights"].keys() >= {"coord rows", "q_proj", "down_proj"}


def _prove(directory: Path, base: Path, adapter: Path):
    return prove_weights(
        load_stock(directory, dtype="auto")[0], StoredModel.of(base), load(base, adapter).model, trained=None
    )

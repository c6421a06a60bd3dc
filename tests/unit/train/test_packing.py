"""Packing is exact in one form only: the same loss and gradients as padded, and the leaks of every other form."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from coordexp.config.schema import ExperimentConfig
from coordexp.data.batch import collate, collate_packed, rope_positions
from coordexp.errors import ConfigError
from coordexp.model.tiny.parts import build_model, build_tokenizer, save_base
from coordexp.train.forward import count_units, model_inputs
from coordexp.train.setup.components import build_components
from coordexp.train.setup.prepare import prepare_experiment


@pytest.fixture(scope="module")
def make_parts(tmp_path_factory):
    """Components of a hybrid objective on generated images of several sizes, adapters not at zero."""
    root = tmp_path_factory.mktemp("packing")
    tokenizer = build_tokenizer()
    save_base(root / "base", build_model(tokenizer), tokenizer)

    def make(*, tuning="lora", attention="sdpa", packing=False, structure="native"):
        config = ExperimentConfig.model_validate(
            {
                "experiment": {"name": f"packing-{structure}", "runs_dir": str(root)},
                "model": {"path": str(root / "base"), "dtype": "float32", "attn_implementation": attention},
                "data": {"shapes": {"num_train": 8, "num_val": 2}, "packing": packing, "structure": structure},
                "training": {
                    "optimizer": "multimodal" if tuning == "full" else "multimodal_coord_offset",
                    "tuning": tuning,
                },
                "custom": {
                    "coord_offset": {"enabled": tuning != "full"},
                    "coord_soft_ce_w1": {"enabled": True},
                },
                "objective": {"use_coord_ce": True, "use_coordexp_loss": True, "use_geom_loss": True},
            }
        )
        prepare_experiment(config)
        parts = build_components(config)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in parts.model.parameters():
                if parameter.requires_grad:
                    parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
        return parts

    return make


def samples_of(parts, num=5):
    dataset = parts.encoding.dataset(parts.train.samples)
    samples = [dataset[index] for index in range(num)]
    assert len({sample.grid for sample in samples}) > 1
    assert len({sample.length for sample in samples}) > 2
    return samples


def step(parts, samples):
    """Loss and gradients of one batch as the trainer computes them."""
    parts.model.train()
    batch = parts.encoding.collate(samples)
    terms = parts.forward_terms(parts.model, batch)
    loss, _ = parts.criterion(terms, count_units([batch]))
    parts.model.zero_grad()
    loss.backward()
    return loss.detach(), {n: p.grad.clone() for n, p in parts.model.named_parameters() if p.grad is not None}


def assert_equal_steps(found, expected):
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-6)
    assert found[1].keys() == expected[1].keys()
    assert any("visual" in name for name in expected[1])
    for name, gradient in expected[1].items():
        scale = max(gradient.abs().max().item(), 1e-3)
        assert (found[1][name] - gradient).abs().max().item() < 1e-4 * scale, name


@pytest.mark.parametrize(
    ("tuning", "attention", "structure"),
    [
        ("lora", "sdpa", "native"),
        ("lora", "eager", "spec"),
        ("dora", "sdpa", "native"),
        ("full", "eager", "native"),
    ],
)
def test_packed_steps_are_padded_steps(make_parts, tuning, attention, structure):
    padded = make_parts(tuning=tuning, attention=attention, structure=structure)
    expected = step(padded, samples_of(padded))
    packed = make_parts(tuning=tuning, attention=attention, structure=structure, packing=True)
    found = step(packed, samples_of(packed))
    assert_equal_steps(found, expected)


def test_with_gradient_checkpointing_too(make_parts):
    padded = make_parts()
    expected = step(padded, samples_of(padded))
    packed = make_parts(packing=True)
    packed.model.activation_checkpointing_enable({"use_reentrant": False})  # as HF's Trainer does
    assert any(
        module.gradient_checkpointing for module in packed.model.modules() if hasattr(module, "gradient_checkpointing")
    )
    assert_equal_steps(step(packed, samples_of(packed)), expected)


def test_a_sample_on_its_own_is_a_packed_row(make_parts):
    padded, packed = make_parts(), make_parts(packing=True)
    alone = samples_of(padded)[:1]
    assert_equal_steps(step(packed, alone), step(padded, alone))


def test_the_comparison_sees_a_leak(make_parts, monkeypatch):
    """Negative control: with a mask of ones the samples of a row read each other."""
    padded = make_parts()
    expected = step(padded, samples_of(padded))
    packed = make_parts(packing=True)
    real = packed.encoding.collate

    def leaking(samples):
        batch = real(samples)
        return replace(batch, attention_mask=torch.ones_like(batch.input_ids))

    samples = samples_of(packed)
    object.__setattr__(packed.encoding, "collate", leaking)
    with pytest.raises(AssertionError):
        assert_equal_steps(step(packed, samples), expected)


def logits_alone(parts, samples):
    rows = []
    for sample in samples:
        encoding = parts.encoding
        batch = collate([sample], pad_id=0, image_token_id=encoding.prompt.image_token_id)
        inputs = model_inputs(batch, parts.encoding.image_spec, dtype=torch.float32)
        rows.append(parts.model(**inputs, use_cache=False).logits[0])
    return torch.cat(rows)


def gap(logits, alone, samples):
    """Largest difference in the second and later samples; the first has none before it."""
    ends = torch.tensor([sample.length for sample in samples]).cumsum(0).tolist()
    return max((logits[0, start:end] - alone[start:end]).abs().max().item() for start, end in pairwise(ends))


@pytest.fixture(scope="module")
def forms(make_parts):
    """Logits of packed rows in the exact form and in each wrong one, for both kinds of attention."""
    found = {}
    for attention in ("sdpa", "eager"):
        parts = make_parts(attention=attention)
        parts.model.eval()
        samples = samples_of(parts, num=3)
        keys = {"image_token_id": parts.encoding.prompt.image_token_id, "merge_size": 2}
        batch = collate_packed(samples, **keys)
        inputs = model_inputs(batch, parts.encoding.image_spec, dtype=torch.float32)
        three = torch.cat([torch.from_numpy(rope_positions(sample, **keys)) for sample in samples], dim=1)
        without = {name: value for name, value in inputs.items() if name != "position_ids"}
        with torch.no_grad():
            alone = logits_alone(parts, samples)
            tried = {
                "exact": parts.model(**inputs, use_cache=False),
                "three rows of ids": parts.model(**{**inputs, "position_ids": three[:, None]}, use_cache=False),
                "no ids": parts.model(**without, use_cache=False),
                "a mask of ones": parts.model(
                    **inputs, attention_mask=torch.ones_like(inputs["input_ids"]), use_cache=False
                ),
                "a cache": parts.model(**inputs, use_cache=True),
                "the cache by default": parts.model(**inputs),
            }
        found[attention] = {name: gap(output.logits, alone, samples) for name, output in tried.items()}
    return found


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_exact_form_keeps_samples_apart(forms, attention):
    assert forms[attention]["exact"] < 1e-5


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("form", ["three rows of ids", "no ids", "a mask of ones", "a cache", "the cache by default"])
def test_every_other_form_leaks(forms, attention, form):
    """If one of these stops leaking, transformers has changed how it notices packed rows: look again."""
    assert forms[attention][form] > 0.1


def test_the_form_that_was_not_shown_is_refused():
    with pytest.raises(ValueError, match=r"data\.packing.*sdpa and eager only"):
        ExperimentConfig.model_validate(
            {"data": {"packing": True}, "model": {"attn_implementation": "flash_attention_2"}}
        )
    assert issubclass(ConfigError, ValueError)

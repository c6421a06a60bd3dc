"""The adapter with images in the batch: attention kernels, gradient checkpointing, bfloat16."""

import functools

import pytest
import torch

from coordexp.coord_tokens.offset_adapter import active_offset
from coordexp.model.checkpoint.stored_model import quiet
from tests.support.adapters import (
    adapted,
    changed_rows,
    encode,
    gradients,
    logits,
    loss_sum,
    make_base,
    num_targets,
    offset_ids,
    samples,
    trainable,
)
from tests.support.fold_oracle import fold_coord_offset_adapter

QUICK = [("lora", "sdpa", False), ("lora", "eager", None)]
OTHERS = [("lora", "sdpa", True), ("lora", "eager", True), ("lora", "eager", False)]
OTHERS += [("dora", *rest) for _, *rest in QUICK + OTHERS]
VARIANTS = QUICK + [pytest.param(*variant, marks=pytest.mark.slow) for variant in OTHERS]


def _run(tuning: str, attention: str, use_reentrant: bool | None):
    """Return logits and gradients of one batch."""
    model = adapted(make_base(attention=attention), tuning=tuning, tie_head=tuning == "lora").train()
    inner = model.get_base_model()
    assert inner.config.text_config._attn_implementation == attention
    assert inner.config.vision_config._attn_implementation == attention
    if use_reentrant is not None:
        inner.activation_checkpointing_enable({"use_reentrant": use_reentrant})
        inner.enable_input_require_grads()
        if use_reentrant:  # torch's rule for reentrant: some input of each part must need a gradient, in vision too
            inner.model.visual.patch_embed.register_forward_hook(lambda _, __, output: output.requires_grad_(True))
        assert inner.is_activation_checkpointing
    batch = encode(samples())
    (loss_sum(model, batch) / num_targets(batch)).backward()
    with torch.no_grad():
        return logits(model.eval(), batch), gradients(model)


@functools.cache
def _plain(tuning: str):
    return _run(tuning, "sdpa", None)


@pytest.mark.parametrize(("tuning", "attention", "use_reentrant"), VARIANTS)
def test_attention_and_checkpointing_change_nothing(tuning, attention, use_reentrant):
    expected_logits, expected = _plain(tuning)
    found_logits, found = _run(tuning, attention, use_reentrant)
    torch.testing.assert_close(found_logits, expected_logits, rtol=1e-5, atol=2e-5)
    assert found.keys() == expected.keys()
    for part in ("visual.blocks", "visual.merger", "deepstack_merger_list", "embed_offset"):
        assert any(part in name for name in expected)
    for name, gradient in expected.items():
        assert float(gradient.abs().sum()) > 0, name
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("dtype", "expected", "tie_head"),
    [
        ("auto", torch.bfloat16, True),
        pytest.param("float32", torch.float32, False, marks=pytest.mark.ci),
        pytest.param("auto", torch.bfloat16, False, marks=pytest.mark.slow),
        pytest.param("float32", torch.float32, True, marks=pytest.mark.slow),
    ],
)
def test_bfloat16_training_lowers_the_loss_and_moves_listed_rows_only(dtype, expected, tie_head):
    base = make_base(dtype=torch.bfloat16)
    model = adapted(make_base(dtype=torch.bfloat16), dtype=dtype, tie_head=tie_head, tuning="dora").train()
    batch = encode(samples())
    table = base.get_input_embeddings().weight
    start = [offsets.detach().clone() for offsets in active_offset(model).parameters()]
    optimizer = torch.optim.AdamW(trainable(model).values(), lr=5e-3, weight_decay=0.0)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = loss_sum(model, batch) / num_targets(batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]
    for offsets, before in zip(active_offset(model).parameters(), start, strict=True):
        assert offsets.dtype == expected
        assert not torch.equal(offsets, before)
    assert torch.equal(model.get_input_embeddings().weight, table)
    assert torch.equal(model.get_output_embeddings().weight, table)
    assert set(changed_rows(model, base)) == set(offset_ids(model))
    hidden = torch.randn(2, 128).to(torch.bfloat16)
    moved = (model.get_output_embeddings()(hidden) != base.get_output_embeddings()(hidden)).any(dim=0)
    assert set(moved.nonzero().flatten().tolist()) <= set(offset_ids(model))
    with torch.no_grad(), model.eval().disable_adapter():
        assert torch.equal(logits(model, batch), logits(base, batch))


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_generation_from_an_image_equals_that_of_the_folded_model(settings):
    model = adapted(make_base(), tie_head=False).eval()
    with torch.no_grad():
        active_offset(model).head_offset.mul_(10)  # so that coord tokens are likely
    batch = {key: value for key, value in encode(samples()[:1]).items() if key != "labels"}
    settings = {"max_new_tokens": 8, "do_sample": False} | settings
    length, listed = batch["input_ids"].shape[1], set(offset_ids(model))
    tokens = model.generate(**batch, **settings)
    with model.disable_adapter():
        assert not torch.equal(model.generate(**batch, **settings), tokens)
    with quiet():
        merged = model.merge_and_unload()
    fold_coord_offset_adapter(merged)
    assert torch.equal(merged.generate(**batch, **settings), tokens)
    assert any(int(token) in listed for token in tokens[0, length:])

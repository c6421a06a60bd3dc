"""Counted operations against torch's own count of a forward and backward pass."""

from dataclasses import replace

import pytest
from torch.utils.flop_counter import FlopCounterMode

from coordexp.model.loading import load
from coordexp.train.loop.throughput import count_flops, flop_units
from coordexp.train.setup.components import build_components
from tests.support.training import prepared, small_config, with_changes


def _sums(batch, num_supervised):
    return {name: float(value) for name, value in flop_units(batch).items()} | {"num_tokens": float(num_supervised)}


def _one_sample(parts):
    dataset = parts.encoding.dataset(parts.train.samples)
    return parts.encoding.collate([dataset[0]])


@pytest.mark.parametrize("vision", [True, False])
def test_a_step_asks_for_what_torch_counts(base, tmp_path, vision):
    config = small_config(base, tmp_path / "runs", lora={"vision": vision})
    config = with_changes(config, model={"attn_implementation": "eager"})  # each product is seen
    parts = build_components(prepared(config))
    batch = _one_sample(parts)
    counter = count_flops(parts.model, parts.model.config)
    # The eager product covers the whole square; a causal one needs half of it.
    whole = replace(counter, per_token_squared=2 * counter.per_token_squared)
    parts.model.train()
    with FlopCounterMode(display=False) as counted:
        terms, _ = parts.forward_terms(parts.model, batch)
        terms.head.ce_T.sum().backward()
    asked = whole.step_flops(_sums(batch, batch.targets.shape[0]))
    assert asked == pytest.approx(counted.get_total_flops(), rel=0.03)


def test_full_tuning_asks_for_half_as_much_again(base):
    loaded = load(base).model.requires_grad_(False)
    frozen = count_flops(loaded, loaded.config)
    full = count_flops(loaded.requires_grad_(), loaded.config)
    assert full.per_token / frozen.per_token == 1.5
    assert full.per_supervised_token / frozen.per_supervised_token == 1.5  # the output table trains too
    # A tower without anything to train has no backward at all.
    assert 2.5 < full.per_patch / frozen.per_patch < 3

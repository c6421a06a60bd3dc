"""Which layers train, and that equal seeds start alike."""

import pytest
import torch
from torch import nn

from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.errors import ConfigError
from coordexp.model.loading import load
from coordexp.model.lora import apply_tuning
from coordexp.model.merging.proof import default_samples

SETTINGS = {"rank": 4, "alpha": 8.0, "dropout": 0.0}


def _adapted_modules(model) -> set[str]:
    names = (name for name, _ in model.named_parameters() if ".lora_A." in name)
    return {name.split(".lora_A.")[0].removeprefix("base_model.model.") for name in names}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("vision", [True, False])
def test_every_linear_layer_but_the_head_is_adapted(make_base, tied, vision):
    base = load(make_base(tied=tied)).model
    linear = {name for name, module in base.named_modules() if isinstance(module, nn.Linear)}
    expected = {name for name in linear if name != "lm_head" and (vision or ".visual." not in name)}
    assert any(".merger." in name for name in expected) is vision
    model = apply_tuning(base, tuning="lora", vision=vision, seed=0, **SETTINGS)
    assert _adapted_modules(model) == expected  # in particular not the patch convolution, a "proj" too


@pytest.mark.parametrize("tuning", ["lora", "dora"])
def test_equal_seeds_give_equal_weights_and_leave_the_random_state_alone(make_base, tuning):
    torch.manual_seed(5)
    expected_draw = torch.rand(3)
    weights = []
    for seed, global_seed in ((1, 5), (1, 6), (2, 5)):
        loaded = load(make_base())
        torch.manual_seed(global_seed)
        model = apply_tuning(loaded.model, tuning=tuning, vision=True, seed=seed, **SETTINGS)
        if global_seed == 5:
            assert torch.equal(torch.rand(3), expected_draw)
        weights.append({name: p for name, p in model.named_parameters() if p.requires_grad})
    same, again, other = weights
    assert all(torch.equal(same[name], again[name]) for name in same)
    assert not all(torch.equal(same[name], other[name]) for name in same)


def test_full_tuning_trains_everything_and_refuses_offsets(make_base):
    loaded = load(make_base())
    model = apply_tuning(loaded.model, tuning="full", vision=True, seed=0, **SETTINGS)
    assert model is loaded.model
    assert all(parameter.requires_grad for parameter in model.parameters())
    install_coord_offset_adapter(loaded.model, coord_ids=loaded.vocab.coord_ids)
    with pytest.raises(ConfigError, match="tuning: full"):
        apply_tuning(loaded.model, tuning="full", vision=True, seed=0, **SETTINGS)


@pytest.mark.parametrize(("tuning", "vision"), [("lora", False), ("lora", True), ("full", False), ("full", True)])
def test_a_frozen_vision_tower_gets_no_gradient(make_base, tuning, vision):
    """Its outputs still reach the loss; a tower that trains gets a gradient by the same batch."""
    loaded = load(make_base())
    batch = default_samples(loaded.processor)[0]
    model = apply_tuning(loaded.model, tuning=tuning, vision=vision, seed=0, **SETTINGS)
    before = {name: p.clone() for name, p in model.named_parameters() if ".visual." in name}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(**batch, labels=batch["input_ids"]).loss.backward()
    optimizer.step()
    graded = {name for name, p in model.named_parameters() if p.grad is not None}
    assert any(".visual." not in name for name in graded)
    assert any(".visual." in name for name in graded) is vision
    moved = [n for n, p in model.named_parameters() if n in before and not torch.equal(p, before[n])]
    assert bool(moved) is vision

"""Parameter groups of the optimizer."""

import pytest
import torch

from coordexp.errors import ConfigError
from coordexp.model.loading import load
from coordexp.model.lora import apply_tuning
from coordexp.model.param_groups import build_param_groups, describe, part_of

RATES = {
    "learning_rate": 1e-4,
    "vit_lr": 2e-5,
    "aligner_lr": 3e-5,
    "weight_decay": 0.1,
    "embed_lr": 4e-3,
    "head_lr": 5e-3,
}


def _groups(model, optimizer="multimodal_coord_offset", **changes):
    return build_param_groups(model, optimizer=optimizer, **(RATES | changes))


@pytest.mark.parametrize("tuning", ["lora", "dora"])
@pytest.mark.parametrize("tie_head", [True, False])
def test_every_trainable_parameter_is_in_exactly_one_group(make_base, make_adapted, tuning, tie_head):
    model = make_adapted(make_base(), tuning=tuning, tie_head=tie_head)
    grouped = [id(parameter) for group in _groups(model) for parameter in group["params"]]
    trainable = [id(parameter) for parameter in model.parameters() if parameter.requires_grad]
    assert sorted(grouped) == sorted(trainable)
    torch.optim.AdamW(_groups(model))  # accepts them, extra keys and all


def test_rates_and_decay_of_each_group(make_base, make_adapted):
    model = make_adapted(make_base(), tuning="dora", tie_head=False)
    table = {row.name: (row.learning_rate, row.weight_decay) for row in describe(_groups(model))}
    assert table == {
        "vision": (2e-5, 0.1),
        "vision_no_decay": (2e-5, 0.0),
        "aligner": (3e-5, 0.1),
        "aligner_no_decay": (3e-5, 0.0),
        "llm": (1e-4, 0.1),
        "llm_no_decay": (1e-4, 0.0),
        "coord_embed_offset": (4e-3, 0.0),
        "coord_head_offset": (5e-3, 0.0),
    }


def test_a_tied_head_has_one_offset_group_that_says_so(make_base, make_adapted):
    rows = {row.name: row for row in describe(_groups(make_adapted(make_base()), offset_weight_decay=0.2))}
    assert "coord_head_offset" not in rows
    row = rows["coord_embed_offset"]
    assert (row.num_tensors, row.num_parameters, row.learning_rate, row.weight_decay) == (1, 128_000, 4e-3, 0.2)
    assert "head_lr has no effect" in row.note
    assert rows["llm"].note == ""


def test_full_tuning_decays_matrices_but_no_norm_or_bias(make_base):
    model = apply_tuning(load(make_base()).model, tuning="full", rank=1, alpha=1.0, dropout=0.0, vision=True, seed=0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = _groups(model, optimizer="multimodal")
    by_group = {group["name"]: [names[id(p)] for p in group["params"]] for group in groups}
    assert set(by_group) == {f"{part}{end}" for part in ("vision", "aligner", "llm") for end in ("", "_no_decay")}
    for name, members in by_group.items():
        unlike = [m for m in members if ("norm" in m or m.endswith("bias")) is not name.endswith("_no_decay")]
        assert unlike == []
    assert "model.language_model.embed_tokens.weight" in by_group["llm"]
    assert "model.visual.deepstack_merger_list.1.linear_fc2.weight" in by_group["aligner"]
    assert sum(map(len, by_group.values())) == len(names)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.visual.blocks.0.attn.qkv.weight", "vision"),
        ("module.base_model.model.model.visual.patch_embed.proj.weight", "vision"),
        ("base_model.model.model.visual.merger.linear_fc1.lora_A.default.weight", "aligner"),
        ("model.visual.deepstack_merger_list.0.norm.weight", "aligner"),
        ("model.language_model.layers.0.mlp.up_proj.weight", "llm"),
        ("lm_head.weight", "llm"),
        ("base_model.model.coord_offset_adapter.modules_to_save.default.embed_offset", "coord_embed_offset"),
        ("coord_offset_adapter.head_offset", "coord_head_offset"),
    ],
)
def test_part_of(name, part):
    assert part_of(name) == part


def test_a_rate_without_parameters_is_an_error(make_base, make_adapted):
    model = make_adapted(make_base(), vision=False)
    with pytest.raises(ConfigError, match=r"training\.vit_lr.*2e-05.*vision"):
        _groups(model)
    with pytest.raises(ConfigError, match=r"training\.aligner_lr"):
        _groups(model, vit_lr=None)
    assert {group["name"] for group in _groups(model, vit_lr=None, aligner_lr=None)} == {"llm", "coord_embed_offset"}


def test_optimizer_and_offsets_go_together(make_base, make_adapted):
    with pytest.raises(ConfigError, match=r"training\.optimizer.*multimodal_coord_offset"):
        _groups(make_adapted(make_base()), optimizer="multimodal")
    frozen = load(make_base()).model.requires_grad_(False)
    with pytest.raises(ConfigError, match="train"):
        _groups(frozen, optimizer="multimodal")

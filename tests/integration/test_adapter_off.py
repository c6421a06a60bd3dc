"""Without ``custom.coord_offset`` nothing of the adapter is there: parameters, groups, outputs, hooks."""

import pytest
import torch

from coordexp.coord_tokens.offset_adapter import active_offset, reattach_coord_offset_hooks
from coordexp.model.loading import load
from coordexp.model.lora import apply_tuning
from coordexp.model.param_groups import build_param_groups
from coordexp.runs.folder import ExperimentFolder
from coordexp.train.setup.components import build_components
from tests.support.adapters import encode, logits, samples
from tests.support.training import prepared, small_config, write_base

OFF = {"omitted": {}, "disabled": {"coord_offset": {"enabled": False, "tie_head": False, "embed_lr": 0.5}}}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("off")
    return prepared(small_config(write_base(folder / "base"), folder / "runs", tuning="dora", vit_lr=1e-4))


def _without(config, custom):
    tree = config.model_dump(mode="json")
    tree["training"]["optimizer"] = "multimodal"
    return type(config).model_validate(tree | {"custom": custom})


def _without_any_offset(config):
    """The same run by the parts below the configuration, none of which names an offset."""
    model = load(ExperimentFolder.of(config).base(config)).model
    lora = config.training.lora
    model = apply_tuning(
        model, tuning="dora", rank=lora.rank, alpha=lora.alpha, dropout=lora.dropout, vision=lora.vision, seed=0
    )
    groups = build_param_groups(
        model, optimizer="multimodal", learning_rate=config.training.learning_rate, vit_lr=config.training.vit_lr
    )
    return model, groups


def _described(model, groups):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [{**group, "params": [names[id(p)] for p in group["params"]]} for group in groups]


def _num_hooks(model):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_load_state_dict_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


@pytest.mark.parametrize("custom", OFF.values(), ids=OFF)
def test_off_is_the_same_as_without_any_offset(config, custom):
    parts = build_components(_without(config, custom))
    model, groups = _without_any_offset(config)
    assert active_offset(parts.model) is None
    assert reattach_coord_offset_hooks(parts.model) is None
    assert parts.model.peft_config["default"].modules_to_save is None
    assert _described(parts.model, parts.param_groups) == _described(model, groups)
    assert _num_hooks(parts.model) == _num_hooks(model)
    expected = model.state_dict()
    assert parts.model.state_dict().keys() == expected.keys()
    for name, tensor in parts.model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    batch = encode(samples())
    with torch.no_grad():
        assert torch.equal(logits(parts.model, batch), logits(model, batch))

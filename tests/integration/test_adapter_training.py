"""CoordTrainer with the adapter: gradient checkpointing by configuration, and what a checkpoint holds."""

import pytest
import torch
from safetensors import safe_open

from coordexp.coord_tokens.offset_adapter import inner_model
from coordexp.model.checkpoint.adapter import read_adapter
from coordexp.train.setup import components
from tests.integration.adapter_training_support import train
from tests.integration.training_support import first_step, prepared, small_config, write_base


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    return prepared(small_config(write_base(folder / "base"), folder / "runs", tuning="dora", max_steps=1))


def test_gradient_checkpointing_by_configuration_changes_no_gradient(config, monkeypatch):
    expected, loss = first_step(config)
    models = []
    original = components.apply_tuning
    monkeypatch.setattr(components, "apply_tuning", lambda *a, **k: models.append(original(*a, **k)) or models[-1])
    checkpointing = config.training.model_copy(update={"gradient_checkpointing": True})
    found, same_loss = first_step(config.model_copy(update={"training": checkpointing}))
    assert inner_model(models[0]).is_activation_checkpointing
    assert same_loss == pytest.approx(loss, rel=1e-6)
    assert found.keys() == expected.keys()
    for part in ("visual.blocks", "visual.merger", "language_model", "embed_offset"):
        assert any(part in name for name in found)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_a_checkpoint_holds_the_adapter_and_nothing_of_the_base(config, tmp_path):
    train(config, tmp_path)
    folder = tmp_path / "adapter"
    weights = [path.name for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".pt", ".pth")]
    assert weights == ["adapter_model.safetensors"]
    keys = read_adapter(folder).keys
    offsets = {key.rsplit(".", 1)[1] for key in keys if "coord_offset_adapter" in key}
    assert offsets == {"coord_ids", "embed_offset"}
    assert all("lora_" in key or "coord_offset_adapter" in key for key in keys)
    with safe_open(folder / "adapter_model.safetensors", framework="pt") as handle:
        assert max(handle.get_slice(key).get_shape()[0] for key in keys) == 1000  # no table of 1,641 rows

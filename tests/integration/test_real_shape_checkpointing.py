"""``training.gradient_checkpointing``: computed again in the backward pass, and nothing else changes."""

import pytest
import torch

from coordexp.runs.reporter import LocalReporter
from coordexp.train.run import TrainingRun, make_trainer
from coordexp.train.schedule import Schedule
from coordexp.train.setup.components import build_components
from tests.support.training import KeepGradients, prepared, small_config


def _first_step(config):
    """Return loss and gradients of one step, and how often a text layer and a vision block were run."""
    parts = build_components(config)
    runs = {"text": 0, "vision": 0}

    def count(kind):
        def hook(*_):
            runs[kind] += 1

        return hook

    for name, module in parts.model.named_modules():
        if name.endswith("language_model.layers.1.mlp"):
            module.register_forward_pre_hook(count("text"))
        elif name.endswith("visual.blocks.1.mlp"):
            module.register_forward_pre_hook(count("vision"))
    run = TrainingRun.of(config, parts, reporter=LocalReporter(config.experiment.runs_dir / "unused"), print_line=str)
    trainer = make_trainer(run, config.experiment.runs_dir / "scratch")
    keep = KeepGradients()
    trainer.remove_callback(Schedule)
    trainer.add_callback(keep)
    trainer.args.max_steps = 1
    trainer.train()
    return run.log.rows[0].metrics["train_total_loss"], keep.gradients, runs


@pytest.mark.parametrize("vision", [True, False])
def test_checkpointing_changes_no_bit(base, tmp_path, vision):
    steps = {}
    for checkpointing in (False, True):
        config = small_config(
            base, tmp_path / str(checkpointing), gradient_checkpointing=checkpointing, lora={"vision": vision}
        )
        steps[checkpointing] = _first_step(prepared(config))
    (loss, gradients, runs), (loss_again, gradients_again, runs_again) = steps[False], steps[True]
    assert runs == {"text": 1, "vision": 1}
    assert runs_again == {"text": 2, "vision": 2 if vision else 1}  # a frozen tower has no backward pass
    assert loss_again == loss
    assert gradients_again.keys() == gradients.keys()
    assert any("visual" in name for name in gradients) is vision
    for name, gradient in gradients.items():
        assert torch.equal(gradients_again[name], gradient), name

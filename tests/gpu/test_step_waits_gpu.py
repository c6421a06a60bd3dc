"""CUDA's own word on what waits: no step between two records does."""

import warnings

import pytest
import torch

from coordexp.runs.folder import RunFolder
from coordexp.runs.reporter import LocalReporter
from coordexp.train.run import Run, make_trainer
from coordexp.train.setup.components import build_components
from tests.integration.training_support import prepared, small_config, write_base

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STEPS = 6


@pytest.mark.parametrize("group", ["A", "C"])
def test_no_step_between_two_records_waits(tmp_path, group):
    steps = {"max_steps": STEPS, "logging_steps": STEPS, "checkpoint_steps": STEPS}
    config = prepared(small_config(write_base(tmp_path / "base"), tmp_path, group=group, **steps))
    run = Run.of(config, build_components(config), reporter=LocalReporter(RunFolder.of(config).path), print_line=print)
    trainer = make_trainer(run, tmp_path / "scratch")
    take, begun = trainer.get_batch_samples, []

    def get_batch_samples(*args):
        # The first step makes what is made once, and the last one is recorded.
        torch.cuda.set_sync_debug_mode("warn" if 0 < len(begun) < STEPS - 1 else "default")
        begun.append(True)
        return take(*args)

    trainer.get_batch_samples = get_batch_samples
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.train()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [f"{one.filename}:{one.lineno}" for one in caught if "synchronizing CUDA" in str(one.message)] == []

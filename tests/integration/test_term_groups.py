"""Each shipped group with a term beyond the specification's trains for some steps, by the real trainer."""

from math import isfinite
from pathlib import Path

import pytest

from coordexp.config import load_config
from coordexp.runs.reporter import LocalReporter
from coordexp.train.run import TrainingRun, make_trainer
from coordexp.train.schedule import Schedule
from coordexp.train.setup.components import build_components
from tests.support.training import prepared, write_base

ROOT = Path(__file__).parents[2]
GROUPS = ("D_gauss", "D_exp", "D_two_bin", "D_ordinal", "A_emd2", "C_diou", "C_ciou", "C_centre")


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("terms")
    few = {"data.shapes.num_train": 8, "data.shapes.num_val": 2, "training.per_device_batch_size": 4}
    few |= {"training.max_steps": 2, "training.logging_steps": 1, "training.checkpoint_steps": 2}
    few |= {"model.path": write_base(folder / "base"), "experiment.runs_dir": folder}
    overrides = [f"ablation.groups=[{', '.join(GROUPS)}]", *(f"{key}={value}" for key, value in few.items())]
    return prepared(load_config(ROOT / "experiments" / "tiny.yaml", overrides))


# One trains here; the values and gradients of every term are tests of their own.
@pytest.mark.parametrize("group", [GROUPS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in GROUPS[1:])])
def test_a_ready_group_trains(group, experiment, tmp_path):
    config = experiment.run(group, 0)
    (term,) = config.objective.extra
    run = TrainingRun.of(config, build_components(config), reporter=LocalReporter(tmp_path), print_line=lambda _: None)
    trainer = make_trainer(run, tmp_path / "scratch")
    trainer.remove_callback(Schedule)
    trained = {name: values for name, values in trainer.model.named_parameters() if values.requires_grad}
    (offset,) = (values for name, values in trained.items() if "embed_offset" in name)
    trainer.train()
    first, second = (row.metrics for row in run.log.rows)
    assert first[f"train_extra/{term}"] > 0
    assert isfinite(second["train_total_loss"])
    assert second["train_total_loss"] != first["train_total_loss"]
    assert offset.any()  # they begin as zeros

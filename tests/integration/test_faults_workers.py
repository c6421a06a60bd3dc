"""Workers that die, checkpoints that break, runs that fail for good: on a real Ray, all in one ablation."""

from pathlib import Path

import pytest

from tests.integration.ablation_support import make_base
from tests.integration.fault_support import (
    Undisturbed,
    attempts,
    fault_config,
    mlflow_status,
    plans_of,
    points,
    progress,
    run,
    with_faults,
)
from tests.integration.ray_support import private_ray_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GROUPS = ("plain", "mid_step", "in_checkpoint", "half_upload", "truncated", "all_damaged", "fails")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    base = make_base(tmp_path_factory.mktemp("base") / "base")
    return Undisturbed(fault_config(base, tmp_path_factory.mktemp("undisturbed"), GROUPS, executor="inline"))


@pytest.fixture(scope="module")
def broken(undisturbed, tmp_path_factory):
    base = Path(undisturbed.config.model.path)
    config = with_faults(fault_config(base, tmp_path_factory.mktemp("broken"), GROUPS))
    with private_ray_environment():
        code, text = run(config)
    return config, code, text


@pytest.mark.parametrize(
    ("name", "began_at"),
    [
        ("plain-s0", [0]),
        ("mid_step-s0", [0, 2]),
        ("in_checkpoint-s0", [0, 2]),
        ("half_upload-s0", [0, 2]),
        ("truncated-s0", [0, 2]),
        ("all_damaged-s0", [0, 0]),
    ],
)
def test_a_run_that_lost_its_worker_ends_as_if_nothing_had_happened(undisturbed, broken, name, began_at):
    config, _, _ = broken
    plan = plans_of(config)[name]
    assert attempts(plan) == began_at
    assert plan.status().restarts == len(began_at) - 1
    undisturbed.assert_equals(config, name)
    assert ("restart 1 after its workers died" in progress(plan)) == (len(began_at) == 2)


def test_damaged_checkpoints_are_said(broken):
    config, _, text = broken
    for name, sentences in {
        "truncated-s0": ["step_000004 is damaged (state.pt has ", "bytes); the run goes on from step_000002"],
        "all_damaged-s0": [
            "step_000004 is damaged (state.pt has 0 of ",
            "step_000002 is damaged (the content of state.pt has changed); the run starts from the beginning",
        ],
    }.items():
        said = progress(plans_of(config)[name])
        assert all(sentence in said and sentence in text for sentence in sentences), said


def test_a_run_that_fails_for_good_leaves_the_others_and_is_reported(broken):
    config, code, text = broken
    plan = plans_of(config)["fails-s0"]
    assert code == 1
    assert (plan.status().state, plan.status().message) == ("failed", "the loss is nan at step 3")
    assert attempts(plan) == [0]  # trying again mends no NaN
    assert plan.status().restarts == 0
    assert mlflow_status(config, plan) == ("FAILED", "the loss is nan at step 3")
    assert sorted(step for key, step, _ in points(config, plan) if key == "train_total_loss") == [1, 2]
    assert "fails-s0 FAILED at step 2: the loss is nan at step 3" in text

"""What a budget counts, and how it stops an experiment."""

import time

import pytest

from coordexp.config.schema import Cluster, ExperimentConfig
from coordexp.runs.budget import BudgetKeeper, hours_of, unit_name, whole_seeds
from coordexp.runs.plan import plan_runs
from coordexp.runs.status import RunStatus, write_status
from coordexp.runs.stop import stop_reason

B = {"objective": {"use_coord_ce": False, "use_coordexp_loss": True, "use_geom_loss": True}}


def make_config(tmp_path, seeds=(0, 1, 2), **cluster: object) -> ExperimentConfig:
    tree: dict[str, object] = {
        "experiment": {"name": "tiny", "runs_dir": str(tmp_path)},
        "cluster": cluster,
        "ablation": {"groups": {"A": {}, "B": B}, "seeds": list(seeds)},
    }
    return ExperimentConfig.model_validate(tree)


@pytest.mark.parametrize(
    ("cluster", "units", "name"),
    [
        ({"num_workers": 8, "cpus_per_worker": 16, "gpus_per_worker": 1.0}, 8.0, "GPU"),
        ({"num_workers": 2, "gpus_per_worker": 4.0}, 8.0, "GPU"),
        ({"gpus_per_worker": 0.25}, 0.25, "GPU"),
        ({"num_workers": 3, "cpus_per_worker": 2}, 6.0, "CPU"),
    ],
)
def test_an_hour_is_one_of_what_the_run_holds(cluster, units, name):
    asked = Cluster.model_validate(cluster)
    assert hours_of(RunStatus("finished", seconds=3600.0), asked, now=0.0) == units
    assert unit_name(asked) == name


@pytest.mark.parametrize(
    ("status", "hours"),
    [
        (RunStatus("waiting"), 0.0),
        (RunStatus("finished", seconds=1800.0), 1.0),
        (RunStatus("failed", seconds=3600.0), 2.0),
        # an hour of attempts before, and half an hour of this one
        (RunStatus("running", seconds=3600.0, since=8200.0), 3.0),
        # waits for its workers: uses nothing
        (RunStatus("running", seconds=3600.0), 2.0),
    ],
)
def test_a_run_uses_the_time_it_has_had_its_workers(status, hours):
    cluster = Cluster(num_workers=2, gpus_per_worker=1.0)
    assert hours_of(status, cluster, now=10_000.0) == pytest.approx(hours)


def test_an_experiment_is_asked_to_stop_once_its_runs_have_used_the_budget(tmp_path):
    config = make_config(tmp_path, max_gpu_hours=3.0)
    plans = plan_runs(config)
    keeper = BudgetKeeper(config, lambda: plans)
    for plan in plans[:2]:
        write_status(plan.run_dir, RunStatus("finished", seconds=3600.0))
        keeper.on_end(plan)
    assert not keeper.has_stopped
    write_status(plans[2].run_dir, RunStatus("running", seconds=1800.0, since=time.time() - 1800.0))
    keeper.on_look()
    assert keeper.has_stopped
    (reason,) = {stop_reason(plan.run_dir) for plan in plans}
    assert "budget of 3 CPU hours" in reason
    sentence = keeper.sentence()
    for fact in ("3 of 3 CPU hours", "4 of 6 runs", "cluster.max_gpu_hours"):
        assert fact in sentence
    assert whole_seeds(plans) == [0]


def test_a_budget_that_was_spent_before_stops_what_would_begin(tmp_path):
    config = make_config(tmp_path, max_gpu_hours=1.0)
    plans = plan_runs(config)
    write_status(plans[0].run_dir, RunStatus("stopped", seconds=3600.0))

    def has_stopped_at_first_look(budget: ExperimentConfig) -> bool:
        keeper = BudgetKeeper(budget, lambda: plans)
        assert not keeper.has_stopped  # making one asks nothing of anybody
        keeper.on_look()
        return keeper.has_stopped

    assert not has_stopped_at_first_look(make_config(tmp_path, max_gpu_hours=1.1))
    assert not has_stopped_at_first_look(make_config(tmp_path))
    assert stop_reason(plans[1].run_dir) is None
    assert has_stopped_at_first_look(config)
    assert "budget of 1 CPU hours" in stop_reason(plans[1].run_dir)

"""Scheduling on a real Ray that counts four CPUs: order, no idle slot while runs wait, stops and budgets."""

import json
import sys
import threading
import time
from pathlib import Path

import pytest
import ray

from coordexp.cluster.executor import RayExecutor
from coordexp.cluster.session import ray_session
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ResourceError
from coordexp.runs.budget import BudgetKeeper
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.runs.stop import RunStoppedError, request_stop, stop_reason
from tests.support.private_ray import private_ray_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

SECONDS = 3.0


@pytest.fixture(scope="module")
def ray_with_four_cpus():
    with private_ray_environment() as (temporary, patch):
        for name, value in {
            "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
            "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
            "RAY_CHDIR_TO_TRIAL_DIR": "0",
            "OMP_NUM_THREADS": "1",
        }.items():
            patch.setenv(name, value)
        ray.init(
            address="local", num_cpus=4, num_gpus=0, include_dashboard=True, dashboard_host="127.0.0.1",
            object_store_memory=128 * 2**20, log_to_driver=False, _temp_dir=temporary,
        )  # fmt: skip
        with ray_session(threads=1) as ready:  # uses what is there
            ready.result()
            yield
        ray.shutdown()


def make_plans(tmp_path: Path, *, groups: int, seeds: int, **cluster: object) -> list[RunPlan]:
    return plan_runs(make_config(tmp_path, groups=groups, seeds=seeds, **cluster))


def make_config(tmp_path: Path, *, groups: int, seeds: int, **cluster: object) -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {
            "experiment": {"name": "tiny", "runs_dir": str(tmp_path)},
            "cluster": {"max_failures": 0, **cluster},
            "ablation": {"groups": {f"G{number}": {} for number in range(groups)}, "seeds": list(range(seeds))},
        }
    )


def run_dir_of(config) -> Path:
    experiment = config.experiment
    return Path(experiment.runs_dir) / experiment.name / f"{experiment.group}-s{experiment.seed}"


def sleeper(config, *, reporter, print_line):
    """Hold the CPUs for a while, or until asked to stop; write when."""
    began = time.time()
    reason = None
    while time.time() < began + SECONDS and reason is None:
        time.sleep(0.05)
        reason = stop_reason(run_dir_of(config))
    (run_dir_of(config) / "times.json").write_text(json.dumps([began, time.time()]))
    if reason is not None:
        raise RunStoppedError(reason)


def test_a_stop_ends_what_runs_and_begins_nothing(ray_with_four_cpus, tmp_path):
    plans = make_plans(tmp_path, groups=3, seeds=1, cpus_per_worker=4)

    def ask() -> None:
        while plans[0].status().since is None:
            time.sleep(0.05)
        request_stop(plans[0].run_dir.parent, "the test says so")

    asker = threading.Thread(target=ask, daemon=True)
    asker.start()
    RayExecutor().execute(plans, sleeper)
    asker.join(10)

    first = plans[0].status()
    assert (first.state, first.message) == ("stopped", "the test says so")
    assert not any(plan.has_begun() for plan in plans[1:])
    assert not (plans[0].run_dir / "error.log").exists()


def test_a_budget_begins_nothing_once_it_is_spent(ray_with_four_cpus, tmp_path):
    # Runs take at least 3 s on 2 CPUs: the first two spend it.
    hours = 2 * 2 * SECONDS * 0.9 / 3600.0
    config = make_config(tmp_path, groups=2, seeds=3, cpus_per_worker=2, max_gpu_hours=hours)
    plans = plan_runs(config)
    keeper = BudgetKeeper(config, lambda: plans)
    RayExecutor().execute(plans, sleeper, [keeper])
    assert keeper.has_stopped
    assert not any(plan.has_begun() for plan in plans[4:])


@pytest.mark.timeout(120)  # Ray itself waits for ever
def test_what_fits_in_sum_but_on_no_node_is_refused_at_once(ray_with_four_cpus, tmp_path, monkeypatch):
    two = [{"NodeID": node, "Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}} for node in ("a", "b")]
    monkeypatch.setattr(ray, "nodes", lambda: two)
    plans = make_plans(tmp_path, groups=1, seeds=1, gpus_per_worker=4.0)
    with pytest.raises(ResourceError, match=r"4 GPUs\).*\(8 CPUs, 2 GPUs\) \+ \(8 CPUs, 2 GPUs\)"):
        RayExecutor().execute(plans, sleeper)

"""One rank meets wrong input while the other waits for it: the run ends with that rank's sentence, at once."""

import sys

import pytest
import ray
from torch import distributed

from coordexp.cluster.executor import RayExecutor
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import DataError
from coordexp.runs import ranks
from coordexp.runs.plan import plan_runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # gloo itself waits 30 minutes
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


def rank_one_meets_wrong_input(config, *, reporter, print_line):
    distributed.barrier()
    if ranks.rank() == 1:
        raise DataError("a.json: annotation 3 has no bbox")
    distributed.barrier()  # for ever, had nobody ended it


def test_wrong_input_on_one_rank_ends_the_run_with_its_sentence(ray_on_two_cpus, tmp_path):
    experiment = {"name": "ranks", "runs_dir": str(tmp_path)}
    (plan,) = plan_runs(
        ExperimentConfig.model_validate({"experiment": experiment, "cluster": {"num_workers": 2, "max_failures": 1}})
    )
    RayExecutor().execute([plan], rank_one_meets_wrong_input)
    status = plan.status()
    assert (status.state, status.message) == ("failed", "a.json: annotation 3 has no bbox")
    assert status.restarts == 0  # trying again mends no input

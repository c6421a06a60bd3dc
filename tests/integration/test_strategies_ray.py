"""Through Ray Train: a whole run under ZeRO-2."""

import sys

import pytest
import ray

from coordexp.cluster.executor import RayExecutor
from coordexp.runs.folder import RunFolder
from coordexp.runs.plan import plan_runs
from coordexp.runs.reporter import committed_checkpoints
from coordexp.train import train
from tests.support.training import prepared, small_config, with_changes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_zero2_trains_evaluates_and_merges_on_two_workers(ray_on_two_cpus, base, tmp_path):
    small = small_config(base, tmp_path / "runs", max_steps=2, per_device_batch_size=2)
    config = prepared(with_changes(small, cluster={"num_workers": 2, "strategy": "zero2", "max_failures": 0}))
    (plan,) = plan_runs(config)
    plan.run_dir.mkdir(parents=True, exist_ok=True)

    RayExecutor().execute([plan], train)

    assert plan.is_finished(), plan.status()
    (checkpoint,) = committed_checkpoints(RunFolder.of(config).path)
    assert {path.name for path in checkpoint.glob("rng_state*")} == {"rng_state_0.pth", "rng_state_1.pth"}
    assert len(list(checkpoint.glob("global_step2/*optim_states.pt"))) == 2
    assert not plan.folder.scratch.exists()
    assert (plan.run_dir / "merged" / "model.safetensors").is_file()
    assert (plan.run_dir / "eval" / "final" / "constrained" / "detections.expected.json").is_file()

"""Through Ray Train: a whole run under ZeRO-2, and a run that goes on with fewer workers when a node is lost."""

import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from coordexp.cluster.executor import RayExecutor
from coordexp.cluster.session import ray_session
from coordexp.config.schema import ExperimentConfig
from coordexp.runs.commit import committed_checkpoints
from coordexp.runs.folder import RunFolder, step_of
from coordexp.runs.plan import plan_runs
from coordexp.runs.reporter import Row, read_rows
from coordexp.train import train
from tests.integration.ray_support import private_ray_environment
from tests.integration.training_support import prepared, small_config, write_base

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS = 40


@pytest.fixture
def ray_folder():
    with private_ray_environment() as found:
        yield found


def test_zero2_trains_evaluates_and_merges_on_two_workers(ray_folder, tmp_path):
    small = small_config(write_base(tmp_path / "base"), tmp_path / "runs", max_steps=2, per_device_batch_size=2)
    tree = small.model_dump(mode="json")
    tree["cluster"] |= {"num_workers": 2, "strategy": "zero2", "max_failures": 0}
    config = prepared(type(small).model_validate(tree))
    (plan,) = plan_runs(config)
    plan.run_dir.mkdir(parents=True, exist_ok=True)

    with ray_session(threads=1) as ready:
        ready.result()
        RayExecutor().execute([plan], train)

    assert plan.is_finished(), plan.status()
    (checkpoint,) = committed_checkpoints(RunFolder.of(config).path)
    assert {path.name for path in checkpoint.glob("rng_state*")} == {"rng_state_0.pth", "rng_state_1.pth"}
    assert len(list(checkpoint.glob("global_step2/*optim_states.pt"))) == 2
    assert not list(plan.run_dir.glob(".scratch-*/*"))
    assert (plan.run_dir / "merged" / "model.safetensors").is_file()
    assert (plan.run_dir / "eval" / "final" / "constrained" / "detections.expected.json").is_file()


def counts_its_workers(config, *, reporter, print_line):
    """Forty steps with a checkpoint each; notes how many workers took which step."""
    context = ray.train.get_context()
    directory = Path(config.experiment.runs_dir) / config.experiment.name / f"{config.experiment.group}-s0"
    newest = reporter.latest_checkpoint()
    for step in range(step_of(newest) + 1 if newest else 1, STEPS + 1):
        scratch = Path(tempfile.mkdtemp()) / "checkpoint"
        scratch.mkdir()
        (scratch / f"weights-{context.get_world_rank()}").write_text(str(step))
        reporter.commit([Row(step=step, time=float(step), metrics={"x": 1.0})], step=step, checkpoint=scratch)
        if context.get_world_rank() == 0:
            with (directory / "workers").open("a") as handle:
                handle.write(f"{step} {context.get_world_size()}\n")
        time.sleep(0.5)


def workers_of(directory: Path) -> list[tuple[int, int]]:
    path = directory / "workers"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(step), int(count)) for step, count in (line.split() for line in lines)]


def test_a_run_goes_on_with_one_worker_when_the_node_of_the_other_is_lost(ray_folder, tmp_path):
    _, patch = ray_folder
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": True})
    node = cluster.add_node(num_cpus=1)
    config = ExperimentConfig.model_validate(
        {
            "experiment": {"name": "elastic", "runs_dir": str(tmp_path)},
            "cluster": {"num_workers": 2, "min_workers": 1, "max_failures": 3},
        }
    )
    (plan,) = plan_runs(config)
    plan.run_dir.mkdir(parents=True)

    def remove_after_step_3() -> None:
        while len(workers_of(plan.run_dir)) < 3:
            time.sleep(0.1)
        cluster.remove_node(node, allow_graceful=False)

    patch.setenv("RAY_ADDRESS", cluster.address)
    threading.Thread(target=remove_after_step_3, daemon=True).start()
    try:
        with ray_session(threads=1) as ready:
            ready.result()
            RayExecutor().execute([plan], counts_its_workers)
    finally:
        cluster.shutdown()

    assert plan.is_finished(), plan.status()
    seen = workers_of(plan.run_dir)
    assert seen[0] == (1, 2)
    assert seen[-1] == (STEPS, 1)
    assert [row.step for row in read_rows(plan.run_dir / "metrics.jsonl")] == list(range(1, STEPS + 1))

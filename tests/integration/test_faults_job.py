"""The whole job killed, then the same command again; a node lost and replaced; the real trainer through both."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
import ray
import torch
from ray.cluster_utils import Cluster
from safetensors.torch import load_file

from coordexp.config import to_yaml
from coordexp.config.schema import ExperimentConfig
from coordexp.runs.folder import RunFolder
from tests.integration import fault_support
from tests.integration.ablation_support import make_base
from tests.integration.fault_support import (
    REAL_STEPS,
    Undisturbed,
    attempts,
    fault_config,
    plans_of,
    points,
    progress,
    real_config,
    run,
    wait_for,
    with_faults,
)
from tests.integration.ray_support import private_ray_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
ray.cloudpickle.register_pickle_by_value(fault_support)

# Of the clock, not of the training.
_TIMES = ("throughput/", "final/", "constrained/images_per_second", "free/images_per_second")


def start_job(config: ExperimentConfig, function: str, log: Path) -> subprocess.Popen[bytes]:
    """Run an ablation in a process of its own, as the command does."""
    script = (
        "import sys; from rich.console import Console; from coordexp.config import load_config;"
        "from coordexp.cli.ablation import run_and_report; from tests.integration import test_faults_job as faults;"
        "config = load_config(sys.argv[1]);"
        f"sys.exit(run_and_report(config, console=Console(width=200), function={function}))"
    )
    packed = log.with_suffix(".yaml")
    packed.write_text(to_yaml(config), encoding="utf-8")
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-c", script, str(packed)],
            cwd=Path(__file__).parents[2],
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def kill_job(job: subprocess.Popen[bytes]) -> None:
    """SIGKILL the process that runs an ablation; what could still write a run ends by itself, helpers we end."""
    started = psutil.Process(job.pid).children(recursive=True)
    writers = [child for child in started if child.name().startswith(("ray::RayTrain", "ray::TrainContr", "ray::Impl"))]
    assert writers
    job.send_signal(signal.SIGKILL)
    job.wait()
    wait_for(lambda: not any(_is_alive(child) for child in writers), what="the end of the workers", seconds=120)
    for child in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()  # psutil knows a reused pid from the process it saw


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def test_a_killed_job_goes_on_with_the_same_command(tmp_path):
    base = make_base(tmp_path / "base")
    groups = ("plain", "job")
    undisturbed = Undisturbed(fault_config(base, tmp_path / "undisturbed", groups, executor="inline"))
    config = with_faults(fault_config(base, tmp_path / "runs", groups, max_failures=0))
    with private_ray_environment():
        job = start_job(config, "faults.fault_support.small_sgd", tmp_path / "job.log")
        wait_for((tmp_path / "runs" / "faults" / "job-s0" / "happened").exists, what="step 4")
        wait_for((tmp_path / "runs" / "faults" / "plain-s0" / "final.safetensors").exists, what="the other run")
        kill_job(job)
        plan = plans_of(config)["job-s0"]
        assert plan.status().state == "running"  # nobody was left to say otherwise

        again = start_job(config, "faults.fault_support.small_sgd", tmp_path / "again.log")
        assert again.wait(timeout=300) == 0, (tmp_path / "again.log").read_text()
    assert (attempts(plan), plan.status().restarts) == ([0, 2], 1)
    for name in ("plain-s0", "job-s0"):
        undisturbed.assert_equals(config, name)


def test_a_run_goes_on_when_a_lost_node_is_replaced(tmp_path):
    base = make_base(tmp_path / "base")
    undisturbed = Undisturbed(fault_config(base, tmp_path / "undisturbed", ("node",), executor="inline"))
    config = with_faults(fault_config(base, tmp_path / "runs", ("node",), num_workers=2))
    happened = tmp_path / "runs" / "faults" / "node-s0" / "happened"
    with private_ray_environment(), three_nodes() as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", cluster.address)

        def replace_node() -> None:
            wait_for(lambda: happened.exists() and happened.read_text(), what="step 4")
            lost = next(node for node in cluster.worker_nodes if node.node_id == happened.read_text())
            cluster.remove_node(lost, allow_graceful=False)
            time.sleep(2.0)  # meanwhile one worker has no place
            cluster.add_node(num_cpus=1)

        threading.Thread(target=replace_node, daemon=True).start()
        code, text = run(config)
    assert code == 0, text
    plan = plans_of(config)["node-s0"]
    assert attempts(plan) == [0, 2]
    assert plan.status().restarts >= 1
    undisturbed.assert_equals(config, "node-s0")


@contextlib.contextmanager
def three_nodes():
    """A head without CPUs and two nodes with one each: a run of two workers needs both."""
    head = {"num_cpus": 0, "include_dashboard": True, "dashboard_port": 0, "object_store_memory": 80 * 2**20}
    # Its hook at exit sets a signal handler, which the thread that adds a node may not.
    cluster = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


class Watched:
    """A reporter under which the worker dies, once at each of its points."""

    def __init__(self, reporter, where: Path) -> None:
        self._reporter = reporter
        self._where = where

    def observe(self, row):
        self._reporter.observe(row)
        lives = (self._where / "lives").read_text().count("\n")
        if lives == 1 and row.step == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        if lives == 3 and row.step == 7:
            (self._where / "happened").touch()
            time.sleep(120)  # the test kills the job now

    def commit(self, rows, *, step, checkpoint, is_final=False):
        self._reporter.commit(rows, step=step, checkpoint=checkpoint, is_final=is_final)

    def latest_checkpoint(self):
        return self._reporter.latest_checkpoint()


def trainer_under_fire(config, *, reporter, print_line):
    """Run the real trainer core; its worker dies in step 6, while it saves step 8, and with the whole job."""
    from coordexp.train.run import train_run
    from coordexp.train.trainer import CoordTrainer

    where = RunFolder.of(config).path
    with (where / "lives").open("a") as handle:
        handle.write(f"{reporter.latest_checkpoint()}\n")
    lives = (where / "lives").read_text().count("\n")
    save = CoordTrainer._save

    def save_half(self, output_dir=None, state_dict=None):
        save(self, output_dir, state_dict)
        if lives == 2 and self.state.global_step == REAL_STEPS:
            for path in Path(output_dir).rglob("*.safetensors"):
                os.truncate(path, path.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    CoordTrainer._save = save_half
    train_run(config, reporter=Watched(reporter, where), print_line=print_line)


def test_the_real_trainer_ends_as_if_nothing_had_happened(tmp_path):
    from coordexp.train import train

    calm = real_config(tmp_path / "calm", cluster={"executor": "inline"})
    code, text = run(calm, train)
    assert code == 0, text

    config = real_config(tmp_path / "runs")
    folder = tmp_path / "runs" / "real" / "C-s0"
    with private_ray_environment():
        job = start_job(config, "faults.trainer_under_fire", tmp_path / "job.log")
        wait_for(lambda: (folder / "happened").exists() or job.poll() is not None, what="the third life", seconds=400)
        assert job.poll() is None, (tmp_path / "job.log").read_text()
        kill_job(job)
        again = start_job(config, "faults.trainer_under_fire", tmp_path / "again.log")
        assert again.wait(timeout=400) == 0, (tmp_path / "again.log").read_text()

    expected, found = plans_of(calm)["C-s0"], plans_of(config)["C-s0"]
    assert [Path(line).name for line in (folder / "lives").read_text().split()] == ["None", *3 * ["step_000004"]]
    assert found.status().restarts == 3
    weights = load_file(expected.run_dir / "merged" / "model.safetensors")
    for name, tensor in load_file(found.run_dir / "merged" / "model.safetensors").items():
        assert torch.equal(tensor, weights[name]), name
    assert trained_points(config, found) == trained_points(calm, expected)
    assert "resumes at step 4" in progress(found)
    assert not list(folder.glob(".scratch-*"))
    shutil.rmtree(tmp_path / "calm")


def trained_points(config, plan) -> Counter[tuple[str, int, float]]:
    """Return the points that say nothing of the clock."""
    found = points(config, plan)
    kept = Counter(
        {
            point: count
            for point, count in found.items()
            if not point[0].startswith(_TIMES) and "seconds" not in point[0]
        }
    )
    assert {key for key, _, _ in kept} >= {
        "train_total_loss",
        "grad_norm",
        "constrained/expected/AP",
        "learning_rate",
    }
    return kept

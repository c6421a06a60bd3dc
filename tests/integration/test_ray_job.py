"""``ray job submit`` against a real cluster with token authentication: logs, exit codes, stop, kill, submit again."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from coordexp.config.schema.data import Shapes
from coordexp.data.sources.shapes import write_shapes
from coordexp.runs.folder import step_of
from coordexp.runs.reporter import committed_checkpoints, read_rows
from coordexp.runs.status import read_status
from tests.support.ray_head import ROOT, TOKEN, Head, can_hide, ray_head, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SECRET = "hunter2-not-to-be-seen"
FEW_MIB = 8
TINY = [
    "training.per_device_batch_size=4",
    "training.logging_steps=1",
    "evaluation.every_steps=null",
    "evaluation.decoding=[constrained]",
    "evaluation.loss_images=4",
]


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    # A tracking server's password is the cluster's business: the user who submits does not have it.
    with ray_head(RAY_JOB_STOP_WAIT_TIME_S="60", MLFLOW_TRACKING_PASSWORD=SECRET) as started:
        yield started


def submit(
    head: Head, number: str, *arguments: str, waits: bool = True, **options: object
) -> subprocess.CompletedProcess[str]:
    entrypoint = ["python", "ray_jobs/ablation.py", f"experiment.name={number.rsplit('-', 1)[0]}", *TINY, *arguments]
    how = ["--submission-id", number, "--working-dir", str(ROOT), *([] if waits else ["--no-wait"])]
    return head.command("job", "submit", *how, "--", *entrypoint, **options)


def start(head: Head, number: str, *arguments: str) -> None:
    done = submit(head, number, *arguments, waits=False)
    assert done.returncode == 0, done.stderr


def log_of(head: Head, number: str) -> str:
    return head.client().get_job_logs(number)


def is_free(head: Head) -> bool:
    """Return whether nothing of a job is left: no worker, no driver, no placement group, all CPUs there."""
    left = head.command("list", "placement-groups", "--filter", "state!=REMOVED")
    status = head.command("status", "--address", head.address)
    return "No resource in the cluster" in left.stdout and "0.0/2.0 CPU" in status.stdout and not run_processes(head)


def run_processes(head: Head) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in head.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            line = " ".join(process.cmdline())
            if "ablation.py" in line or "RayTrainWorker" in line or "ImplicitFunc" in line:
                found.append(process)
    return found


def test_a_job_from_elsewhere_reads_the_cluster_s_data(head, tmp_path):
    data = tmp_path / "cluster-data"
    write_shapes(data, Shapes(num_train=12, num_val=4, max_objects=2, seed=0))
    paths = {
        "train_annotations": data / "instances_train.json",
        "train_images": data / "train",
        "val_annotations": data / "instances_val.json",
        "val_images": data / "val",
    }
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    done = submit(
        head,
        "far-1",
        "data.format=coco",
        *(f"data.{key}={path}" for key, path in paths.items()),
        "ablation.groups=[A]",
        "training.max_steps=3",
        "training.checkpoint_steps=3",
        cwd=elsewhere,
        home=elsewhere,
        hidden=data if can_hide() else None,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    log = log_of(head, "far-1")
    run = head.home / "coordexp-runs" / "far" / "A-s0"
    steps = [line for line in (run / "progress.log").read_text().splitlines() if line.startswith("A-s0  step ")]
    assert [line.split()[2] for line in steps] == ["1/3", "2/3", "3/3"]
    assert "\x1b" not in log
    assert "\r" not in log
    for event in ("A-s0  starts:", "A-s0  final  AP ", "A-s0  finished at step 3"):
        assert done.stdout.count(event) == 1, done.stdout
    assert (run / "merged").is_dir()
    assert not (elsewhere / "coordexp-runs").exists()
    package = next((head.home.parent / "t").glob("session_2*/runtime_resources/working_dir_files/_ray_pkg_*/"))
    assert not {".git", ".venv", "runs", "tests", "docs"} & {path.name for path in package.iterdir()}
    sent = [path for path in package.rglob("*") if path.is_file() and path.parent.name != "__pycache__"]
    assert sum(path.stat().st_size for path in sent) < FEW_MIB * 2**20
    no_secret_in_sight(head, "far-1", done.stdout + done.stderr)


def no_secret_in_sight(head: Head, number: str, shown: str) -> None:
    """The token and the tracking password are nowhere but in environments."""
    texts = [shown, log_of(head, number), json.dumps(dict(head.job(number)), default=str)]
    for process in head.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            texts.append(" ".join(process.cmdline()))
    assert not [text for text in texts if TOKEN in text or SECRET in text]
    places = [*(head.home / "coordexp-runs").rglob("*"), *(head.home.parent / "t").glob("session_2*/logs/**/*")]
    needles = (TOKEN.encode(), SECRET.encode())
    assert not [p for p in places if p.is_file() and any(needle in p.read_bytes() for needle in needles)]


def test_exit_codes(head):
    wrong = submit(head, "codes-1", "training.max_step=3")
    assert wrong.returncode == 1  # Ray's client knows no other; the job's own is kept
    assert head.job("codes-1").driver_exit_code == 2
    assert "training.max_step" in wrong.stdout
    assert "Traceback" not in wrong.stdout

    # A number no float32 holds: the loss stops being finite. Inline, to spare the seconds of a Ray session.
    failed = submit(
        head,
        "codes-2",
        "--executor=inline",
        "data.shapes.num_train=8",
        "data.shapes.num_val=2",
        "ablation.groups=[A]",
        "training.max_steps=3",
        "training.learning_rate=1.0e+38",
    )
    assert failed.returncode == 1
    assert head.job("codes-2").driver_exit_code == 1
    assert "A-s0 FAILED" in failed.stdout


STEPS = 240  # half a minute: the command that stops a job takes seconds to arrive


def test_stop_then_kill_then_the_same_command_again(head):
    arguments = [
        "data.shapes.num_train=32",
        "data.shapes.num_val=4",
        "ablation.groups=[A]",
        f"training.max_steps={STEPS}",
        "training.checkpoint_steps=1000",
    ]
    run = head.home / "coordexp-runs" / "again" / "A-s0"

    start(head, "again-1", *arguments)
    log = run / "progress.log"
    wait_for(lambda: log.is_file() and "step 3/" in log.read_text(), 120, "the third step")
    stopped = head.command("job", "stop", "again-1")
    assert "was stopped" in stopped.stdout + stopped.stderr
    status = read_status(run)
    assert status is not None
    assert (status.state, status.message) == ("stopped", "the job was stopped")
    first = steps_of_checkpoints(run)
    assert first
    assert first[-1] < STEPS
    assert "the same command continues" in log_of(head, "again-1")
    assert mlflow_states(head) == {"A-s0": "KILLED"}
    wait_for(lambda: is_free(head), 30, "the cluster to have everything back")

    start(head, "again-2", *arguments)
    wait_for(lambda: f"resumes at step {first[-1]}" in log_of(head, "again-2"), 120, "the run to resume")
    (driver,) = [p for p in head.processes() if "ablation.py" in " ".join(p.cmdline()) and is_python(p)]
    os.kill(driver.pid, signal.SIGKILL)
    wait_for(lambda: is_free(head), 60, "the cluster to have everything back after SIGKILL")

    done = submit(head, "again-3", *arguments)
    assert done.returncode == 0, done.stdout
    assert "resumes at step" in done.stdout
    assert [row.step for row in rows(run)].count(STEPS) >= 1
    losses = [row.step for row in rows(run) if "train_total_loss" in row.metrics]
    assert losses == list(range(1, STEPS + 1))  # none doubled, none missing
    assert mlflow_states(head) == {"A-s0": "FINISHED"}


def rows(run: Path) -> list:
    return read_rows(run / "metrics.jsonl")


def steps_of_checkpoints(run: Path) -> list[int]:
    return [step_of(path) for path in committed_checkpoints(run)]


def is_python(process: psutil.Process) -> bool:
    return "python" in Path(process.cmdline()[0]).name


def mlflow_states(head: Head) -> dict[str, str]:
    """Return how MLflow says the runs of ``again`` ended, by name."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{head.home}/coordexp-runs/mlflow.db")
    experiment = client.get_experiment_by_name("again")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id])
    return {run.info.run_name: run.info.status for run in found if "mlflow.parentRunId" in run.data.tags}

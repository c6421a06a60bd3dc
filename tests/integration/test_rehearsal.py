"""The rehearsal of a first real run, narrow but as deep as the 2B; and the trial of docs/cluster.md as a job."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.integration.ray_head_support import ROOT, Head, answers, ray_head, wait_for
from tests.ports_support import free_port
from tests.rehearsal.checkpoint import write_checkpoint
from tests.rehearsal.run import NAME, Rehearsal, write_pictures
from tests.unit.commands_support import Command, blocks
from tests.unit.model.real_vocabulary import ranks_file

PAGE = ROOT / "docs" / "cluster.md"


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory) -> Rehearsal:
    ranks_file()
    folder = tmp_path_factory.mktemp("rehearsal")
    write_pictures(folder / "data")
    rehearsal = Rehearsal(folder, "small")
    rehearsal.run()
    return rehearsal


@pytest.mark.timeout(900)
def test_a_deep_bfloat16_checkpoint_goes_the_whole_way(rehearsed):
    client = MlflowClient(f"sqlite:///{rehearsed.runs}/mlflow.db")
    experiment = client.get_experiment_by_name(NAME)
    states = {run.info.run_name: run.info.status for run in client.search_runs([experiment.experiment_id])}
    assert states == {"A-s0": "FINISHED", "C-s0": "FINISHED", NAME: "FINISHED"}
    for run in ("A-s0", "C-s0"):
        for decoding in ("constrained", "free"):
            answered = rehearsed.runs / NAME / run / "eval" / "final" / decoding / "objects.jsonl"
            assert len(answered.read_text().splitlines()) == 4
    detected = [(rehearsed.folder / "comparison" / "report.csv").read_text().count(f",group,{name},") for name in "AC"]
    assert all(detected)
    memory, *_ = rehearsed.foretold()
    foretold, came = (float(number) for number in re.findall(r"([\d.]+) GiB", memory))
    assert 0.5 * foretold < came < 2 * foretold


def _verb(command: Command) -> str | None:
    return command.argv[0] if command.argv else None


def test_the_rehearsal_runs_what_the_page_prints(rehearsed):
    """Every verb that docs/cluster.md gives for a run, with every option; a sweep and a server are not parts of one."""
    printed = {
        option
        for block in blocks(PAGE)
        for command in block.commands
        if _verb(command) not in (None, "sweep", "mlflow-server")
        for option in (command.argv or [])
        if option == _verb(command) or option.startswith("--")
    }
    run = [part.partition("=")[0] for command in rehearsed.commands for part in command]
    assert printed <= {"ablation", "report", *run}  # these two by doors of their own, ray_jobs/ and coordexp.report
    assert {"ray_jobs/ablation.py", "coordexp.report"} <= set(run)


@contextlib.contextmanager
def _mlflow_server(folder: Path) -> Iterator[str]:
    port = free_port()
    stores = ["--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "store")]
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1", *stores]
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})
    try:
        wait_for(lambda: answers(port), 120, "the tracking server")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _submit(head: Head, places: list[str]) -> subprocess.CompletedProcess[str]:
    """Submit the trial as the page prints it, with the places of this machine."""
    (trial,) = (c for block in blocks(PAGE) for c in block.commands if "experiment.name=trial" in c.words)
    words = [word for word in trial.words[1:] if word != "..."]
    return head.command(*words, *places, timeout=900)


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_trial_of_the_page_is_a_job_that_ends_with_a_table(tmp_path, qwen_tokenizer):
    write_pictures(tmp_path / "data")
    rehearsal = Rehearsal(tmp_path, "small")
    write_checkpoint(rehearsal.model, "small")
    of_the_page = ("training.max_steps", "ablation.groups", "ablation.seeds")
    places = [change for change in rehearsal.overrides if not change.startswith(of_the_page)]

    with _mlflow_server(tmp_path) as server, ray_head(MLFLOW_TRACKING_URI=server) as head:
        first = _submit(head, places)
        assert first.returncode == 0, first.stdout + first.stderr
        assert "step 40/40" in first.stdout
        assert re.search(r"^C +0 +finished +40 ", first.stdout, re.MULTILINE), first.stdout
        again = _submit(head, places)
        assert again.returncode == 0, again.stdout + again.stderr
        assert "C-s0  finished before" in again.stdout
        assert "step 1/40" not in again.stdout
        client = MlflowClient(server)
        (run,) = client.search_runs(
            [client.get_experiment_by_name("trial").experiment_id], "attributes.run_name = 'C-s0'"
        )
        assert run.info.status == "FINISHED"
        assert len(client.get_metric_history(run.info.run_id, "train_total_loss")) == 40
    assert (rehearsal.runs / "trial" / "C-s0" / "merged" / "config.json").is_file()

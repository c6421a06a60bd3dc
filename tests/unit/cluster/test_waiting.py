"""What is known of a cluster without asking it: who submitted this process, and whether the head adds nodes."""

import json
import subprocess
import sys
import time

import pytest

from coordexp.cluster.waiting import has_autoscaler, offers_cpus, submission_number
from coordexp.runs.stop import SUBMITTED_ENV


def test_an_autoscaler_is_known_by_its_process_or_by_the_command_of_kuberay(monkeypatch):
    monkeypatch.delenv("KUBERAY_GEN_RAY_START_CMD", raising=False)
    command = [sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()"]
    with subprocess.Popen(
        [*command, "--autoscaling-config=/x.yaml"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as monitor:
        assert monitor.stdout is not None
        monitor.stdout.readline()
        assert has_autoscaler()
        monitor.communicate("")
    until = time.monotonic() + 10
    while has_autoscaler() and time.monotonic() < until:
        time.sleep(0.1)
    assert not has_autoscaler()
    monkeypatch.setenv("KUBERAY_GEN_RAY_START_CMD", "ray start --head  --no-monitor  --num-cpus=0")
    assert has_autoscaler()


@pytest.mark.parametrize(
    ("nodes", "offers"), [([], False), ([{"memory": 1.0}, {"CPU": 0.0, "GPU": 1.0}], False), ([{}, {"CPU": 0.5}], True)]
)
def test_a_head_alone_offers_no_cpus(nodes, offers):
    assert offers_cpus(nodes) == offers


def test_a_submitted_job_knows_its_number(monkeypatch):
    monkeypatch.delenv(SUBMITTED_ENV, raising=False)
    assert submission_number() is None
    monkeypatch.setenv(SUBMITTED_ENV, json.dumps({"metadata": {"job_submission_id": "raysubmit_1"}}))
    assert submission_number() == "raysubmit_1"
    monkeypatch.setenv(SUBMITTED_ENV, json.dumps({"runtime_env": None, "metadata": None}))
    assert submission_number() is None

"""SIGTERM during an ablation: the run is stopped with its rows, MLflow says KILLED, the same command continues."""

import os
import re
import signal

import pytest

from coordexp.report.records.load import load_experiment
from coordexp.runs.folder import RunFolder
from coordexp.runs.plan import plan_runs
from coordexp.runs.reporter import Row
from coordexp.runs.stop import RunStoppedError, stop_reason
from coordexp.tracking.publish import tracking_uri
from tests.support.ablation import StandIn, make_config, run

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("undrawn")]


class Terminated(StandIn):
    """Gets SIGTERM after its first row, as the entrypoint of a stopped job does, and looks as a real run does."""

    def __call__(self, config, *, reporter, print_line):
        self.done.append(config.experiment.group)
        reporter.commit([Row(step=1, time=1.0, metrics={"train_total_loss": 1.0})], step=1, checkpoint=None)
        os.kill(os.getpid(), signal.SIGTERM)
        reason = stop_reason(RunFolder.of(config).path)
        assert reason is not None
        raise RunStoppedError(reason)


def test_a_terminated_ablation_stops_its_runs_and_goes_on_later(base, runs_dir):
    config = make_config(base, runs_dir, "terminated")
    first = Terminated()

    code, text = run(config, first)

    assert code == 130
    assert first.done == ["A"]  # C was asked to stop before it began
    assert re.search(r"stopping: .*\bcheckpoint\b", text)
    assert re.search(r"stopped: the job was stopped; .*\bsame command\b", text)
    a, c = plan_runs(config)
    assert a.status().state == "stopped"
    assert (a.status().message, a.status().step) == ("the job was stopped", 1)
    assert not c.has_begun()
    states = {found.name: found.state for found in load_experiment(tracking_uri(config), "terminated").runs}
    assert states == {"A-s0": "stopped", "C-s0": "stopped"}  # MLflow's KILLED

    # With more CPUs, and a step divided otherwise: the same runs, and both the command and its report say so.
    otherwise = {
        "cluster": {"executor": "inline", "cpus_per_worker": 2},
        "training": {"per_device_batch_size": 4, "gradient_accumulation_steps": 2},
    }
    second = StandIn()
    code, text = run(make_config(base, runs_dir, "terminated", **otherwise), second)
    assert code == 0
    assert second.done == ["A", "C"]
    words = " ".join(text.split())
    assert re.search(r"training\.per_device_batch_size is 4\b.*\b8 in A-s0\b", words)
    assert "cluster.cpus_per_worker (A-s0: 1.0, then 2.0; C-s0: 2.0)" in words
    assert "differ in nothing but the declared factor" in words
    assert [found.name for found in load_experiment(tracking_uri(config), "terminated").runs] == ["A-s0", "C-s0"]
    assert stop_reason(a.run_dir) is None

"""An ablation whose groups are tuned, on a real local Ray: interrupted in both phases, it ends as one without Ray."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import ray

from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.rows import read_rows
from coordexp.search.record import read_record
from tests.support import ablation, tuning
from tests.support.tuning import StandIn, make_config, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.usefixtures("undrawn")]
for module in (sys.modules[__name__], ablation, tuning):
    ray.cloudpickle.register_pickle_by_value(module)

RUNS = ["A-s0", "C-s0"]


class Slow(StandIn):
    """Takes so long for a step that an interruption arrives within it."""

    def wait(self, step: int) -> None:
        time.sleep(0.5)


def interrupt_when(path: Path) -> None:
    """Press Ctrl-C once a file is there."""
    while not path.is_file():
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


def results(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {"record": read_record(folder / "tuning" / "tuning.json")}
    for path in sorted(folder.glob("*-s*/metrics.jsonl")):
        found[path.parent.name] = [(row.step, row.metrics) for row in read_rows(path)]
    return found


def test_interrupted_in_both_phases_it_ends_as_one_without_ray(ray_on_two_cpus, base, runs_dir):
    inline = make_config(base, runs_dir, "inline")
    assert run(inline, StandIn())[0] == 0
    config = make_config(base, runs_dir, "on-ray", cluster={"executor": "tune", "max_concurrent_runs": 2})
    folder = ExperimentFolder.of(config).path

    for moment in (folder / "C.t001-s1000" / "metrics.jsonl", folder / "A-s0" / "metrics.jsonl"):
        stopper = threading.Thread(target=interrupt_when, args=(moment,), daemon=True)
        stopper.start()
        code, text = run(config, Slow())
        stopper.join()
        assert code == 130, text
        assert "the same command continues" in text
    code, text = run(config, Slow())

    assert code == 0, text
    whole = results(ExperimentFolder.of(inline).path)
    assert set(RUNS) < whole.keys()
    assert results(folder) == whole

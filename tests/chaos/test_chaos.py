"""Drawing is repeatable, the judge sees what is wrong, and two whole scenarios end as they must."""

import itertools
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import psutil
import pytest
import torch

from tests.chaos import processes, scenario
from tests.chaos.faults import KINDS, draw
from tests.chaos.judge import Result, differences, of_training, problem_of_words
from tests.chaos.run import campaign, read_records
from tests.chaos.scenario import Command, Record, table
from tests.chaos.world import Point

POINTS = (Point("A-s0", "train_total_loss", 1, 0.5), Point("A-s0", "train_total_loss", 2, 0.25))


@pytest.fixture
def expected():
    return Result({"A-s0": {"w": torch.arange(3.0)}}, Counter(POINTS), {"A-s0": "FINISHED"})


def test_a_seed_draws_the_same_scenarios_again_and_each_kind_comes():
    drawn = [draw(0, number) for number in range(50)]
    assert drawn == [draw(0, number) for number in range(50)]
    assert drawn != [draw(1, number) for number in range(50)]
    assert {fault.kind for faults in drawn for fault in faults} == KINDS.keys()
    assert {len(faults) for faults in drawn} == {1, 2}
    assert all(20 <= fault.seconds <= 60 for faults in drawn for fault in faults if "STOP" in fault.kind)
    assert all(len({fault.at for fault in faults}) == 1 for faults in drawn)  # at once


def test_equal_results_are_equal(expected):
    assert differences(expected, replace(expected, weights={"A-s0": {"w": torch.arange(3.0)}})) == []


def test_one_bit_of_a_weight_is_a_difference(expected):
    weights = torch.arange(3.0)
    weights.view(torch.int32)[2] ^= 1
    assert differences(expected, replace(expected, weights={"A-s0": {"w": weights}})) == ["weights of A-s0 differ"]
    assert differences(expected, replace(expected, weights={})) == ["weights of A-s0 differ"]


def test_a_missing_and_a_doubled_point_are_differences(expected):
    missing = replace(expected, points=Counter(POINTS[:1]))
    assert differences(expected, missing) == [f"1 points missing, such as {POINTS[1]}"]
    doubled = replace(expected, points=Counter([*POINTS, POINTS[0]]))
    assert differences(expected, doubled) == [f"1 points doubled or new, such as {POINTS[0]}"]


def test_a_run_that_mlflow_does_not_call_finished_is_a_difference(expected):
    assert differences(expected, replace(expected, states={"A-s0": "RUNNING"})) == ["runs in MLflow are RUNNING"]


def test_points_of_the_clock_are_left_out_and_the_experiments_own_run_has_no_name():
    points = Counter(
        [Point("chaos_3", "codec_ceiling/AP", 0, 1.0), Point("A-s0", "throughput/images_per_second", 1, 0.3)]
    )
    assert of_training(points, "chaos_3") == Counter([Point("", "codec_ceiling/AP", 0, 1.0)])


@pytest.mark.parametrize(
    "text",
    [
        "A-s0  step 2/6\nerror: the Ray cluster at 10.0.0.1:6379 has lost its head; the same command goes on\n",
        "interrupted; the same command goes on from the last checkpoints\n\n",
        "error: no space left on /runs; free some, or write elsewhere\n",
    ],
)
def test_our_sentences_are_last_words(text):
    assert problem_of_words(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "Traceback (most recent call last):\n  File x\nKeyError: 3\n",
        "Traceback (most recent call last):\nerror: too late; the same command goes on\n",
        "[2026-11-23 08:00:00,123 C 12 34] gcs_client.cc:179: Failed to connect to GCS within 60 seconds.\n",
        "*** SIGABRT received at time=1 on cpu 0 ***\n",
        "(raylet) The node with node id: 3 has been marked dead\n",
        "internal error: KeyError: 3; --debug shows where\n",
        "error: ConnectionError: closed\n",
        "A-s0  step 2/6\n",
        "",
    ],
)
def test_other_last_words_are_a_problem(text):
    assert problem_of_words(text) is not None


def test_a_process_left_behind_is_seen():
    command = [sys.executable, "-c", "import subprocess; subprocess.Popen(['sleep', '300'])"]
    script = (
        "import os, subprocess, sys\n"
        "from tests.chaos.processes import adopt_orphans, descendants, left_behind\n"
        "adopt_orphans()\n"
        f"job = subprocess.Popen({command!r}, start_new_session=True)\n"
        "job.wait()\n"
        "print(left_behind(job.pid, 0.5), left_behind(job.pid + 10**6, 0.5))\n"
        "[process.kill() for process in descendants()]\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['sleep 300'] []"


def test_a_process_that_ray_names_is_seen_and_one_of_the_cluster_is_not(monkeypatch):
    names = ["ray::RayTrainWorker.run_train_fn", "ray::IDLE", "postgres: lab"]
    monkeypatch.setattr(processes, "descendants", lambda: [psutil.Process()] * len(names))
    again = itertools.cycle(names)
    monkeypatch.setattr(processes, "name_of", lambda process: next(again))
    assert processes.left_behind(-1, 0.1) == names[:1]  # 0 would be every session of another namespace


def test_a_scenario_in_which_nothing_broke_is_known():
    faults = ["SIGKILL raylet: came too late", "SIGSTOP job (job) at 3 s for 20 s"]
    assert Record(3, False, faults[:1]).came_too_late()
    assert not Record(3, False, faults).came_too_late()


def test_records_are_read_again_and_the_last_one_of_a_scenario_counts(tmp_path):
    first = Record(3, False, ["SIGKILL worker (worker) at 9 s"], [Command(1, 80.0, "error: a | b")], ["not finished"])
    second = replace(first, problems=[])
    with (tmp_path / "records.jsonl").open("w") as handle:
        for record in (first, second):
            handle.write(scenario.json_of(record) + "\n")
    assert read_records(tmp_path / "records.jsonl") == {3: second}
    row = table([second]).splitlines()[-1]
    assert row == "| 3 | SIGKILL worker (worker) at 9 s | 1 (80) | error: a \\| b | equal |"


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_scenarios_end_as_if_nothing_had_happened(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk that can be full")
    began = time.monotonic()
    records = campaign([10, 19], seed=0, real_every=0, folder=tmp_path)  # a node, and PostgreSQL
    assert [record.problems for record in records] == [[], []], records
    assert all(record.commands[0].seconds < time.monotonic() - began for record in records)

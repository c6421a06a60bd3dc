"""What a process is set to before a run is built in it."""

import tempfile
from multiprocessing.connection import Listener

import pytest
import torch

from coordexp.config.schema import ExperimentConfig
from coordexp.train.run import set_up_process


@pytest.mark.parametrize(
    ("given", "threads"),
    [
        ({}, 1),
        ({"cluster": {"cpus_per_worker": 0.66}}, 1),
        ({"cluster": {"cpus_per_worker": 2}}, 2),
        ({"cluster": {"cpus_per_worker": 2}, "training": {"num_threads": 3}}, 3),
    ],
)
@pytest.mark.parametrize("executor", ["inline", "tune"])
def test_threads_of_a_worker_are_the_same_whatever_started_it(monkeypatch, given, threads, executor):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(5)  # all cores of this machine, say
    try:
        config = ExperimentConfig.model_validate(
            given | {"cluster": {**given.get("cluster", {}), "executor": executor}}
        )
        set_up_process(config)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(deterministic)


def test_a_temporary_folder_too_long_for_the_loaders_sockets_is_left_for_another(monkeypatch, tmp_path):
    (folder := tmp_path / ("x" * 100)).mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        set_up_process(ExperimentConfig())
        with tempfile.TemporaryDirectory(prefix="pymp-") as short, Listener(f"{short}/listener-12345678"):
            assert not short.startswith(str(folder))
    finally:
        torch.use_deterministic_algorithms(deterministic)

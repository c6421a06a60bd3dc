"""What a process is set to before a run is built in it."""

import pytest
import torch

from coordexp.config.schema import ExperimentConfig
from coordexp.train.run import set_up_process


@pytest.mark.parametrize(
    ("sections", "threads"),
    [
        ({}, 1),
        ({"cluster": {"cpus_per_worker": 0.66}}, 1),
        ({"cluster": {"cpus_per_worker": 2}}, 2),
        ({"cluster": {"cpus_per_worker": 2}, "training": {"num_threads": 3}}, 3),
    ],
)
@pytest.mark.parametrize("executor", ["inline", "tune"])
def test_threads_of_a_worker_are_the_same_whatever_started_it(monkeypatch, sections, threads, executor):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    threads_before = torch.get_num_threads()
    deterministic_before = torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(5)  # all cores of this machine, say
    try:
        cluster = {**sections.get("cluster", {}), "executor": executor}
        set_up_process(ExperimentConfig.model_validate(sections | {"cluster": cluster}))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(threads_before)
        torch.use_deterministic_algorithms(deterministic_before)

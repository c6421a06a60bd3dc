"""What is asked of torch before a run's first operation."""

import os
from types import SimpleNamespace

import pytest
import torch

from coordexp.train.setup.arguments import choose_algorithms, steps_on_device

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setenv(WORKSPACE, "to be restored")
    monkeypatch.delenv(WORKSPACE)
    before = torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(before, warn_only=True)


@pytest.mark.parametrize("deterministic", [True, False])
def test_algorithms_are_chosen_anew_by_each_run(deterministic):
    torch.use_deterministic_algorithms(not deterministic)
    choose_algorithms(deterministic=deterministic)
    assert torch.are_deterministic_algorithms_enabled() is deterministic
    assert torch.is_deterministic_algorithms_warn_only_enabled() or not deterministic
    assert not torch.utils.deterministic.fill_uninitialized_memory
    assert WORKSPACE not in os.environ


def test_cublas_is_given_a_workspace_of_fixed_size_where_bits_are_to_repeat(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    choose_algorithms(deterministic=False)
    assert WORKSPACE not in os.environ
    choose_algorithms(deterministic=True)
    assert os.environ[WORKSPACE] == ":4096:8"
    os.environ[WORKSPACE] = ":16:8"
    choose_algorithms(deterministic=True)
    assert os.environ[WORKSPACE] == ":16:8"  # the other size that repeats bits, chosen by whoever starts us


@pytest.mark.parametrize(
    ("device", "deepspeed", "expected"), [("cuda", None, True), ("cpu", None, False), ("cuda", {"zero": 2}, False)]
)
def test_the_optimizer_is_fused_on_cuda_without_deepspeed(device, deepspeed, expected):
    assert steps_on_device(SimpleNamespace(device=torch.device(device), deepspeed=deepspeed)) is expected

"""What the heads allocate, keep for backward and read back; no time is asserted (tests/benchmarks/bench_head.py)."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from coordexp.losses import projections
from tests.support.head import (
    LOSSES,
    Layout,
    full_logits,
    full_loss,
    make_problem,
    run_split_head,
    term_inputs,
    term_loss,
)


class Allocations(TorchDispatchMode):
    """Elements of every tensor an operation returns that is not a view of ``known`` memory."""

    def __init__(self, known):
        super().__init__()
        self.known = known.untyped_storage().data_ptr()
        self.sizes = []
        self.alive = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() != self.known:
                self.sizes.append(value.numel())
                self.alive.append(value.untyped_storage())  # kept, so that an address is not used twice
        return result

    def count_of(self, elements):
        return len({storage.data_ptr() for storage in self.alive if storage.nbytes() >= 4 * elements})


COST = Layout(first_id=4000, vocab=6000)
TOKENS, CHUNK = 32, 70_000  # T x V = 192,000 and V x D = 384,000; T x K = 32,000 and K x D = 64,000


@pytest.fixture
def costly(monkeypatch):
    monkeypatch.setattr(projections, "CHUNK_ELEMENTS_CPU", CHUNK)
    return make_problem(COST, num_boxes=4, num_loose=0, num_text=TOKENS - 16, width=64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_step_makes_full_logits_or_copies_the_table(costly, dtype):
    problem = costly.moved(dtype=dtype)
    with Allocations(problem.weight) as made:
        term_loss(term_inputs(run_split_head(problem), problem), LOSSES).backward()
    assert problem.hidden.grad is not None
    assert max(made.sizes) <= CHUNK


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_as_large_as_the_logits_or_the_table_is_kept_for_backward(costly, dtype):
    problem = costly.moved(dtype=dtype)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda value: kept.append(value) or value, lambda value: value):
        term_loss(term_inputs(run_split_head(problem), problem), LOSSES).backward()
        own = problem.weight.untyped_storage().data_ptr()
        assert max(value.numel() for value in kept if value.untyped_storage().data_ptr() != own) <= 1000 * 64
        full_loss(full_logits(problem), problem, LOSSES)
    assert max(value.numel() for value in kept) >= TOKENS * COST.vocab  # the hook does see what plain autograd keeps

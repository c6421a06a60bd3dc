"""What the heads allocate, keep for backward and read back; no time is asserted (tests/benchmarks/bench_head.py)."""

import pytest
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from coordexp.losses import head as head_module
from coordexp.losses.head import plain_head, split_head
from tests.benchmarks.head_variants import VARIANTS, Sizes, make_batch, make_model, make_offset
from tests.support.head import (
    LOSSES,
    Layout,
    assert_equal,
    full_logits,
    full_loss,
    make_problem,
    run_plain_head,
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
    monkeypatch.setattr(head_module, "CHUNK_ELEMENTS_CPU", CHUNK)
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


def test_the_plain_head_makes_two_tensors_of_the_size_of_logits(costly):
    counts = {}
    for ours in (True, False):
        problem = costly.moved()
        table = problem.weight.requires_grad_()
        with Allocations(table) as made:
            if ours:
                loss = term_loss(term_inputs(run_plain_head(problem, table), problem), LOSSES)
            else:
                loss = full_loss(full_logits(problem), problem, LOSSES)
            torch.autograd.grad(loss, problem.hidden)
        counts[ours] = made.count_of(TOKENS * COST.vocab)
    assert counts[True] == 2
    assert counts[False] > 5


@pytest.mark.parametrize("trained", [False, True], ids=["split", "plain"])
def test_no_value_is_read_back_when_the_coord_rows_are_known(trained):
    problem = make_problem()
    problem.weight.requires_grad_(trained)
    real = problem.hidden, problem.weight, problem.offset, problem.targets, problem.coord_rows
    head = plain_head if trained else split_head
    with FakeTensorMode() as mode:  # tensors without values: reading one raises
        hidden, weight, offset, targets, rows = map(mode.from_tensor, real)
        out = head(hidden, weight, targets, first_id=40, offset_KD=offset, coord_rows_N=rows)
        (out.ce_T.sum() + out.log_z_text_T.sum() + out.coord_logits_NK.sum()).backward()
        with pytest.raises(DynamicOutputShapeException):
            head(hidden, weight, targets, first_id=40, offset_KD=offset)
    assert hidden.grad.shape == problem.hidden.shape


# PEFT warns on tying in general; these tables it does tie.
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
def test_what_the_benchmark_compares_computes_the_same():
    sizes, where = Sizes(batch=2, tokens=40, vocab=1500, hidden=16), {"device": "cpu", "dtype": torch.float32}
    model, results = make_model(sizes, **where), {}
    for key in "bcd":
        variant, batch = VARIANTS[key](model, make_offset(sizes, device="cpu")), make_batch(sizes, 0.5, **where)
        loss = variant.forward(batch)
        loss.backward()
        results[key] = {"loss": loss.detach(), "hidden": batch.hidden_BTD.grad, "trained": variant.trained.grad}
    assert_equal(results["d"], results["b"])
    assert_equal(results["d"], results["c"])

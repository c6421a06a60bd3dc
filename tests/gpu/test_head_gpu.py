"""The split head on CUDA: the same numbers, and no full logits in memory."""

import pytest
import torch

from coordexp.coord_tokens.codec import NUM_BINS
from tests.support.head import (
    EACH_AND_SUM,
    EXTRA,
    LAYOUTS,
    LOSSES,
    Layout,
    assert_equal,
    bfloat16_errors,
    both,
    full_logits,
    full_loss,
    loss_id,
    make_problem,
    run_split_head,
    term_inputs,
    term_loss,
)

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

REAL = Layout(first_id=151_670, vocab=152_670)


@pytest.fixture(autouse=True)
def _full_float32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("layout", [*LAYOUTS.values(), REAL], ids=[*LAYOUTS, "real vocabulary"])
@pytest.mark.parametrize("names", EACH_AND_SUM, ids=loss_id)
def test_float32_equals_full_logits(layout, names):
    assert_equal(*both(make_problem(layout).moved(device="cuda"), names))


@pytest.mark.parametrize("layout", [EXTRA, REAL], ids=["extra rows", "real vocabulary"])
@pytest.mark.parametrize("names", EACH_AND_SUM, ids=loss_id)
def test_bfloat16_is_no_further_from_float32_truth_than_plain_autograd(layout, names):
    def make(seed):
        return make_problem(layout, seed=seed, scale=3.0, width=64).moved(device="cuda", dtype=torch.bfloat16)

    assert all(ours <= plain for ours, plain in bfloat16_errors(make, names, seeds=4).values())


def test_cuda_and_cpu_give_the_same():
    problem = make_problem(EXTRA)
    on_cpu, _ = both(problem, LOSSES)
    on_cuda, _ = both(problem.moved(device="cuda"), LOSSES)
    assert_equal({name: value.cpu() for name, value in on_cuda.items()}, on_cpu)


def test_full_logits_are_never_in_memory():
    num_tokens = 600
    sizes = {"num_boxes": 75, "num_loose": 0, "num_text": num_tokens - 300, "width": 512}
    problem = make_problem(REAL, **sizes).moved(device="cuda", dtype=torch.bfloat16)
    logits_bytes = num_tokens * REAL.vocab * 4
    grown = []
    for ours in (True, False):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        if ours:
            loss = term_loss(term_inputs(run_split_head(problem), problem), LOSSES)
        else:
            loss = full_loss(full_logits(problem), problem, LOSSES)
        problem.gradients(loss)
        grown.append(torch.cuda.max_memory_allocated() - before)
        del loss
    assert grown[0] < logits_bytes / 2 < logits_bytes < grown[1]
    assert grown[0] > NUM_BINS * 512 * 4

"""The split head equals plain full-vocabulary logits: losses and gradients, float32 and bfloat16, and costs less.

Relative errors are norms: of the difference, over that of the plain path's gradient.
"""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.losses import projections
from coordexp.losses.head import plain_head, split_head
from tests.support.head import (
    EACH_AND_SUM,
    END,
    EXTRA,
    LAYOUTS,
    LOSSES,
    MIDDLE,
    Layout,
    assert_equal,
    bfloat16_errors,
    both,
    distance,
    full_logits,
    full_loss,
    loss_id,
    make_problem,
    run_plain_head,
    run_split_head,
    term_inputs,
    term_loss,
)

PARTS = ("log_z_T", "log_z_coord_T", "log_z_text_T", "target_logit_T", "ce_T", "coord_logits_NK")


# Values and gradients


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("names", EACH_AND_SUM, ids=loss_id)
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_each_loss_and_its_gradients_equal_full_logits(layout, names, scale):
    assert_equal(*both(make_problem(layout, scale=scale), names))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("head", [run_split_head, lambda p: run_plain_head(p, p.weight)], ids=["split", "plain"])
@pytest.mark.parametrize("temperature", [2.5, 0.5])
def test_the_text_at_a_temperature_equals_full_logits(layout, head, temperature):
    problem, first = make_problem(layout, scale=3.0), layout.first_id
    logits = full_logits(problem)[problem.coord_rows] / temperature
    text = torch.cat([logits[:, :first], logits[:, first + NUM_BINS :]], dim=1).logsumexp(dim=1)
    found = head(problem).log_z_text_at(temperature)
    assert_equal(*(problem.gradients((one * one).mean()) for one in (found, text)))
    warm = head(problem).log_z_text_T[problem.coord_rows]
    assert not torch.allclose(found, warm, rtol=1e-2)


COUNTS = {
    "no coord token": {"num_boxes": 0, "num_loose": 0},
    "only coord tokens": {"num_text": 0, "num_loose": 0},
    "one coord token": {"num_boxes": 0, "num_loose": 1, "num_text": 0},
    "one text token": {"num_boxes": 0, "num_loose": 0, "num_text": 1},
    "one box": {"num_boxes": 1, "num_loose": 0, "num_text": 0},
}


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("layout", [MIDDLE, END, EXTRA], ids=["middle", "end", "extra rows"])
def test_edge_batches_equal_full_logits(layout, counts):
    assert_equal(*both(make_problem(layout, **counts), LOSSES))


def test_a_comparison_without_the_offset_fails():
    problem = make_problem()
    ours, _ = both(problem, LOSSES)
    without = problem.gradients(full_loss(F.linear(problem.hidden, problem.weight), problem, LOSSES))
    with pytest.raises(AssertionError, match="off by"):
        assert_equal(ours, without)


@pytest.mark.parametrize(("elements", "tokens"), [(1, 4096), (300, 7), (24_000, 1)])
def test_the_size_of_chunks_changes_nothing(monkeypatch, elements, tokens):
    problem = make_problem(EXTRA, num_boxes=2, num_text=6, dtype=torch.float64)
    whole, _ = both(problem, LOSSES)
    monkeypatch.setattr(projections, "CHUNK_ELEMENTS_CPU", elements)
    monkeypatch.setattr(projections, "_CHUNK_TOKENS", tokens)
    assert_equal(both(problem, LOSSES)[0], whole, relative=1e-12)


@pytest.mark.parametrize("names", EACH_AND_SUM, ids=loss_id)
def test_logits_of_ten_thousand_stay_finite_and_right(names):
    problem = make_problem(EXTRA, scale=4000.0, dtype=torch.float64)
    logits = full_logits(problem)
    assert logits.max() > 1e4
    assert logits.min() < -1e4
    low = problem.moved(dtype=torch.float32)
    ours = low.gradients(term_loss(term_inputs(run_split_head(low), low), names))
    assert all(value.isfinite().all() for value in ours.values())
    truth = full_loss(logits, problem, names).detach()
    assert distance(ours["loss"], truth) <= 1e-5 * float(truth)


@pytest.mark.parametrize("num_adapted", [6, 8])
def test_gradcheck(monkeypatch, num_adapted):
    monkeypatch.setattr(projections, "CHUNK_ELEMENTS_CPU", 9)
    layout = Layout(first_id=2, vocab=11, num_adapted=num_adapted)
    torch.manual_seed(0)
    hidden, offset = (torch.randn(rows, 3, dtype=torch.float64, requires_grad=True) for rows in (5, num_adapted))
    weight = torch.randn(11, 3, dtype=torch.float64)
    targets = torch.tensor([0, 3, 7, 8, 10])
    keys = {"first_id": 2, "num_coords": 6, "coord_rows_N": torch.tensor([1, 2])}

    def split(hidden, offset):
        out = split_head(hidden, weight, targets, offset_KD=offset, num_adapted=layout.num_adapted, **keys)
        return tuple(getattr(out, part) for part in PARTS)

    def plain(hidden, offset, table):
        out = plain_head(hidden, table, targets, offset_KD=offset, **keys)
        return tuple(getattr(out, part) for part in PARTS)

    assert torch.autograd.gradcheck(split, (hidden, offset))
    assert torch.autograd.gradcheck(plain, (hidden, offset, weight.requires_grad_()))


# The block of the text arm


def test_a_block_of_ten_digits_is_what_full_logits_give():
    """A digit in a description (row 1) is a token of the block, but no coordinate."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(5, 8, requires_grad=True), torch.randn(60, 8)
    targets, rows = torch.tensor([20, 23, 29, 3, 55]), torch.tensor([0, 2])
    digits = slice(20, 30)
    logits = hidden @ weight.t()
    keys = {"first_id": 20, "num_coords": 10, "coord_rows_N": rows}
    for out in (
        split_head(hidden, weight, targets, offset_KD=None, num_adapted=10, **keys),
        plain_head(hidden, weight, targets, **keys),
    ):
        torch.testing.assert_close(out.ce_T, F.cross_entropy(logits, targets, reduction="none"))
        torch.testing.assert_close(out.log_z_coord_T, logits[:, digits].logsumexp(dim=1))
        rest = torch.cat([logits[:, :20], logits[:, 30:]], dim=1)
        torch.testing.assert_close(out.log_z_text_T, rest.logsumexp(dim=1))
        torch.testing.assert_close(out.coord_logits_NK, logits[rows][:, digits])
        loss, truth = (
            out.ce_T.sum() + out.coord_logits_NK.square().sum(),
            F.cross_entropy(logits, targets, reduction="sum"),
        )
        truth = truth + logits[rows][:, digits].square().sum()
        (found,), (wanted,) = (torch.autograd.grad(value, hidden, retain_graph=True) for value in (loss, truth))
        torch.testing.assert_close(found, wanted)


# bfloat16


def rounded_product(a, b):
    """What tensor cores do with two bfloat16 factors: exact products, added up in float32."""
    return a @ b if a.dtype == b.dtype else a.to(b.dtype).to(a.dtype) @ b.to(a.dtype)


@pytest.fixture(params=["cast in chunks", "as tensor cores do"])
def product(request, monkeypatch):
    if request.param == "as tensor cores do":
        monkeypatch.setattr("coordexp.losses.head.multiplies_low", lambda hidden, weight: True)
        monkeypatch.setattr(projections, "_product", rounded_product)


@pytest.mark.usefixtures("product")
@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("names", EACH_AND_SUM, ids=loss_id)
def test_bfloat16_is_no_further_from_float32_truth_than_plain_autograd(names, scale):
    def make(seed):
        return make_problem(EXTRA, seed=seed, scale=scale, dtype=torch.bfloat16)

    ours, _ = both(make(0), names)
    assert ours["hidden"].dtype == ours["offset"].dtype == torch.bfloat16
    errors = bfloat16_errors(make, names, seeds=4)
    assert errors.keys() == {"loss", "hidden", "offset"}
    assert all(ours <= plain for ours, plain in errors.values())


@pytest.mark.usefixtures("product")
def test_a_trained_bfloat16_table_is_no_further_from_the_truth_than_plain_autograd(monkeypatch):
    monkeypatch.setattr(projections, "CHUNK_ELEMENTS_CPU", 10_000)
    totals = {}
    for seed in range(4):
        problem = make_problem(seed=seed, scale=2.0, dtype=torch.bfloat16)
        exact = problem.moved(dtype=torch.float32)
        results = []
        for case, ours in ((exact, False), (problem, True), (problem, False)):
            table = case.weight.requires_grad_()
            loss = full_loss(full_logits(case), case, LOSSES)
            if ours:
                loss = term_loss(term_inputs(run_plain_head(case, table), case), LOSSES)
            results.append((loss.detach(), *torch.autograd.grad(loss, (case.hidden, case.offset, table))))
        for i, (truth, found, by_autograd) in enumerate(zip(*results, strict=True)):
            a, b = totals.get(i, (0.0, 0.0))
            totals[i] = a + distance(found, truth) ** 2, b + distance(by_autograd, truth) ** 2
    assert all(ours <= plain for ours, plain in totals.values())


# The trainable table


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_full_fine_tuning_gives_the_same_numbers(layout):
    problem = make_problem(layout)
    plain = run_plain_head(problem, problem.weight.clone().requires_grad_())
    split = run_split_head(problem)
    for part in PARTS:
        torch.testing.assert_close(getattr(split, part), getattr(plain, part), rtol=1e-5, atol=1e-5, msg=part)
    inputs = [term_inputs(out, problem) for out in (split, plain)]
    assert_equal(*(problem.gradients(term_loss(each, LOSSES) + each.head.log_z_text_T.sum()) for each in inputs))


@pytest.mark.parametrize("elements", [1, 5000, 2**21])
def test_ce_of_the_plain_head_is_cross_entropy_bit_for_bit(monkeypatch, elements):
    monkeypatch.setattr(projections, "CHUNK_ELEMENTS_CPU", elements)
    problem = make_problem(EXTRA, scale=3.0)
    table = problem.weight.clone().requires_grad_()
    keys = {"first_id": 40, "coord_rows_N": problem.coord_rows}
    for offset, logits in ((problem.offset, full_logits(problem)), (None, problem.hidden @ problem.weight.T)):
        out = plain_head(problem.hidden, table, problem.targets, offset_KD=offset, **keys)
        assert torch.equal(out.ce_T, F.cross_entropy(logits, problem.targets, reduction="none"))
        text = torch.cat([logits[:, :40], logits[:, 40 + NUM_BINS :]], dim=1)[problem.coord_rows]
        torch.testing.assert_close(out.log_z_text_at(2.0), (text / 2).logsumexp(dim=1))


def test_the_table_gets_the_gradient_of_plain_autograd():
    problem = make_problem(EXTRA)
    table, own = (problem.weight.clone().requires_grad_() for _ in range(2))
    inputs = term_inputs(run_plain_head(problem, table), problem)
    term_loss(inputs, LOSSES).backward()
    deltas = F.pad(problem.offset, (0, 0, 40, EXTRA.vocab - 40 - EXTRA.num_adapted))
    full_loss(problem.hidden @ (own + deltas).T, problem, LOSSES).backward()
    assert_equal({"table": table.grad}, {"table": own.grad})


def test_a_trainable_table_is_refused():
    problem = make_problem()
    problem.weight.requires_grad_()
    with pytest.raises(ValueError, match="plain_head"):
        run_split_head(problem)

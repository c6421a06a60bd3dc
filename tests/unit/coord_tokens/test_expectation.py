"""CoordExp against float64 numpy, and its module form.

Tolerance. With u = 2^-24, a softmax over K bins rounds each x - max (u |x - max|; weighted by p that is
at most u ln K) and sums K numbers (about u sqrt(K)); the mean sums K numbers again: together
u (ln K + 2 sqrt(K)) = 4.2e-6 of a value below 1. From bfloat16 logits the same holds against float64 on
the rounded logits. Against logits of size L before rounding: they moved by d = 2^-8 L at most, hence
the distribution by tanh(d) in total variation, and so did the mean of values within [0, 1].
"""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from coordexp.coord_tokens.expectation import CoordExp, expected_values
from coordexp.coord_tokens.layout import parse_targets
from coordexp.coord_tokens.vocab import CoordVocab, NumberTokens

TOLERANCE = 2.0**-24 * (math.log(1000) + 2 * math.sqrt(1000))

# 2,500 random cases: 10 examples, each of 250 rows of logits from a numpy generator whose seed hypothesis draws;
# phases and derandomize keep the number of examples and the cases themselves fixed.
ROWS = 250
MANY = settings(max_examples=10, phases=[Phase.generate], derandomize=True, database=None, deadline=None)
# A busy machine is no failure.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _numpy_expectation(logits):
    values = np.asarray(logits, dtype=np.float64)
    p = np.exp(values - values.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return p @ (np.arange(1000) / 1000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@MANY
@given(
    seed=st.integers(0, 2**63 - 1),
    size=st.sampled_from([0.0, 1.0, 8.0, 40.0]),
    width=st.sampled_from([0.5, 5.0, 60.0, 1e9]),
)
def test_equals_float64_numpy(dtype, seed, size, width):
    """Noise of any size upon a bump of any width, anywhere and beyond the borders."""
    rng = np.random.default_rng(seed)
    bump = -0.5 * ((np.arange(1000) - rng.uniform(-50, 1050, size=(ROWS, 1))) / width) ** 2
    exact = np.clip(bump + size * rng.uniform(-1, 1, size=(ROWS, 1000)), -40, 40)
    logits = torch.from_numpy(exact).to(dtype)
    found = expected_values(logits)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    atol = 1e-13 if dtype == torch.float64 else TOLERANCE
    np.testing.assert_allclose(found, _numpy_expectation(logits.double()), rtol=0, atol=atol)
    if dtype == torch.bfloat16:
        np.testing.assert_allclose(found, _numpy_expectation(exact), rtol=0, atol=math.tanh(40 * 2**-8) + atol)


@UNHURRIED
@given(
    st.lists(
        st.dictionaries(
            st.integers(0, 999) | st.sampled_from([0, 999]),
            st.sampled_from([1e4, -1e4, 88.8]) | st.floats(-1e4, 1e4),
            max_size=4,
        ),
        max_size=3,
    ),
    st.sampled_from([-1e4, 0.0, 1e4]),
)
def test_spiked_logits_are_exact_and_differentiable(rows, floor):
    logits = torch.full((len(rows), 1000), floor)
    for row, spikes in enumerate(rows):
        for k, value in spikes.items():
            logits[row, k] = value
    logits.requires_grad_()
    found = expected_values(logits)
    found.sum().backward()
    np.testing.assert_allclose(found.detach(), _numpy_expectation(logits.detach()), rtol=0, atol=TOLERANCE)
    assert (found >= 0).all()
    assert (found <= 0.999 * (1 + 2**-23)).all()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_one_hot_and_uniform_by_hand():
    logits = torch.full((2, 1000), -1e4)
    logits[0, 137] = 1e4
    logits[1] = 0
    # Uniform: mean of 0, .001, .. .999.
    assert expected_values(logits).tolist() == pytest.approx([0.137, 0.4995], abs=1e-6)


def test_half_precision_around_it_changes_nothing():
    """Autocast does matrix products in bfloat16; there the 1,000 bin values are 507."""
    torch.manual_seed(0)
    logits = torch.randn(50, 1000) * 4
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = expected_values(logits)
        matrix_product = logits.softmax(dim=1) @ (torch.arange(1000) / 1000)
    assert torch.equal(found, expected_values(logits))
    assert (matrix_product.float() - found).abs().max() > 1e-4  # the hazard is there


@pytest.mark.parametrize("shape", [(3, 999), (3, 1001), (1000,), (2, 3, 1000)])
def test_wrong_number_of_bins_is_refused(shape):
    with pytest.raises(ValueError, match=rf"\[N, 1000\].*{re.escape(str(shape))}"):
        expected_values(torch.zeros(shape))


# The module


START, BOX, CLOSE, END, C0 = 2, 3, 4, 5, 10
VOCAB = CoordVocab(NumberTokens(range(C0, C0 + 1000)), 9, START, BOX, CLOSE, END, "native")


@pytest.mark.parametrize("as_lists", [False, True])
def test_parsed_targets_and_a_perfect_model_give_the_boxes_back(as_lists):
    """The model is a next-token model as any: its logits at t say which token stands at t + 1."""
    bins = [[[34, 340, 560, 780], [0, 1, 998, 999]], [], [[500, 20, 501, 40]]]
    rows = []
    for boxes in bins:
        objects = [[START, 7, 8, BOX, *(C0 + k for k in box), CLOSE] for box in boxes]
        rows.append([6, 7, *(token for one in objects for token in one), END])
    length = max(len(row) for row in rows)
    ids_BT = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    logits_BTV = torch.zeros(len(rows), length, C0 + 1000)
    logits_BTV[:, :-1].scatter_(2, ids_BT[:, 1:, None], 1e4)

    positions = [parse_targets(ids_T, VOCAB).coord_positions for ids_T in ids_BT]
    found = CoordExp(VOCAB.coord_ids)(logits_BTV, [one.tolist() for one in positions] if as_lists else positions)

    expected = torch.tensor([box for boxes in bins for box in boxes]) / 1000
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    # The comparison fails for whoever reads the logits at the labels themselves.
    shifted = CoordExp(VOCAB.coord_ids)(logits_BTV, [one + 1 for one in positions])
    assert (shifted - expected).abs().max() > 0.1


def test_module_reads_one_step_before_the_given_positions():
    torch.manual_seed(0)
    logits = torch.randn(2, 9, 1500)
    positions = [torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), torch.zeros(0, 4, dtype=torch.int64)]
    boxes = CoordExp(range(300, 1300))(logits, positions)
    assert boxes.shape == (2, 4)
    assert boxes[1, 2].item() == pytest.approx(expected_values(logits[0, 6:7, 300:1300]).item())


@UNHURRIED
@given(
    counts=st.lists(st.integers(0, 5), max_size=5),
    length=st.integers(2, 12),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    index_dtype=st.sampled_from([torch.int64, torch.int32, torch.uint8]),
    shuffled=st.booleans(),
    seed=st.integers(0, 999),
)
def test_module_equals_a_loop_over_batches_of_mixed_sizes(counts, length, dtype, index_dtype, shuffled, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = (torch.randperm(1000, generator=generator) + 7).tolist() if shuffled else list(range(7, 1007))
    logits = (torch.randn(len(counts), length, 1010, generator=generator) * 3).to(dtype)
    positions = [torch.randint(1, length, (m, 4), generator=generator).to(index_dtype) for m in counts]
    boxes = CoordExp(ids)(logits, positions)
    rows = [logits[b, int(at) - 1, ids] for b, sequence in enumerate(positions) for at in sequence.flatten()]
    assert boxes.shape == (sum(counts), 4)
    assert boxes.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    if rows:
        torch.testing.assert_close(boxes, expected_values(torch.stack(rows)).view(-1, 4), rtol=0, atol=1e-6)


def test_module_has_the_ids_of_qwen3_vl_and_no_weights():
    module = CoordExp()
    assert module.coord_ids.tolist() == list(range(151_670, 152_670))
    assert not module.state_dict()
    assert not list(module.parameters())
    assert CoordExp({"start": 10, "end": 1009}).coord_ids.tolist() == list(range(10, 1010))


def test_module_of_no_boxes_is_differentiable():
    logits = torch.randn(1, 3, 1100, requires_grad=True)
    boxes = CoordExp(range(1000))(logits, [torch.zeros(0, 4, dtype=torch.int64)])
    boxes.sum().backward()
    assert boxes.shape == (0, 4)
    assert logits.grad is not None
    assert not logits.grad.any()


def test_module_gradient_goes_to_the_read_rows_and_coord_columns_only():
    logits = torch.randn(2, 6, 1100, requires_grad=True)
    CoordExp(range(50, 1050))(
        logits, [torch.zeros(0, 4, dtype=torch.int64), torch.tensor([[2, 3, 5, 5]])]
    ).sum().backward()
    assert logits.grad is not None
    touched = logits.grad != 0
    assert not touched[0].any()
    assert touched[1].any(dim=1).tolist() == [False, True, True, False, True, False]
    assert touched[1, 1, 50:1050].sum() > 900
    assert not touched[:, :, :50].any()
    assert not touched[:, :, 1050:].any()


def test_module_refuses_a_wrong_batch():
    with pytest.raises(ValueError, match=r"\[M, 4\].*2 sequences.*1"):
        CoordExp(range(1000))(torch.zeros(2, 3, 1100), [torch.zeros(0, 4)])


@pytest.mark.parametrize(
    ("bad", "facts"),
    [
        (torch.tensor([[1, 2, 3, 8]]), r"positions\[1\].*\b8\b.*1\.\.7"),
        (torch.tensor([[1, 1, 2, 3], [-1, 1, 2, 3]]), r"positions\[1\].*-1\b"),
        (torch.tensor([0, 1, 2, 3]), r"positions\[1\].*\[M, 4\].*int64 \(4,\)"),
        (torch.tensor([[0, 1], [2, 3]]), r"int64 \(2, 2\)"),
        (torch.tensor([[0, 1, 2, 3]]), r"positions\[1\].*\b0\b.*1\.\.7"),
        (torch.tensor([[0.1, 0.2, 0.3, 0.4]]), r"float32 \(1, 4\)"),
        (torch.tensor([[True, False, True, True]]), "bool"),
        ([[1, 2, 3, 4], [5, 6, 7]], r"positions\[1\].*\[M, 4\].*ragged"),
    ],
)
def test_module_refuses_wrong_positions(bad, facts):
    """A negative position would otherwise read the sequence before, one past the end the sequence behind."""
    with pytest.raises(ValueError, match=facts):
        CoordExp(range(1000))(torch.zeros(3, 8, 1100), [torch.zeros(0, 4), bad, torch.zeros(0, 4)])


@pytest.mark.parametrize("shape", [(3, 8, 1000), (8, 1100), (1, 3, 8, 1100)])
def test_module_refuses_wrong_logits(shape):
    with pytest.raises(ValueError, match=rf"coord id 1000.*{re.escape(str(shape))}"):
        CoordExp(range(1, 1001))(torch.zeros(shape), [torch.zeros(0, 4)] * shape[0])


def test_gradcheck():
    logits = torch.randn(2, 1000, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(expected_values, (logits,), fast_mode=True)
    whole = torch.randn(2, 3, 1003, dtype=torch.float64, requires_grad=True)
    positions = [torch.tensor([[1, 2, 1, 2]]), torch.tensor([[2, 2, 1, 1]])]
    assert torch.autograd.gradcheck(lambda x: CoordExp(range(2, 1002))(x, positions), (whole,), fast_mode=True)


def test_module_refuses_a_wrong_number_of_ids():
    with pytest.raises(ValueError, match="1000.*999"):
        CoordExp(range(999))

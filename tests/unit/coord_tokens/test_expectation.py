"""CoordExp against float64 numpy, and its module form."""

import numpy as np
import pytest
import torch

from coordexp.coord_tokens.expectation import CoordExp, expected_values


def _numpy_expectation(logits):
    values = np.asarray(logits, dtype=np.float64)
    p = np.exp(values - values.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return p @ (np.arange(1000) / 1000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_equals_float64_numpy(dtype):
    torch.manual_seed(0)
    logits = (torch.randn(200, 1000) * 4).to(dtype)
    found = expected_values(logits)
    np.testing.assert_allclose(found.double().numpy(), _numpy_expectation(logits.double()), atol=2e-6)


def test_one_hot_and_uniform_by_hand():
    logits = torch.full((2, 1000), -1e4)
    logits[0, 137] = 1e4
    logits[1] = 0
    # Uniform: mean of 0, .001, .. .999.
    assert expected_values(logits).tolist() == pytest.approx([0.137, 0.4995], abs=1e-6)


def test_wrong_number_of_bins_is_refused():
    with pytest.raises(ValueError, match=r"expected logits \[N, 1000\]"):
        expected_values(torch.zeros(3, 999))


def test_module_reads_the_given_positions():
    torch.manual_seed(0)
    logits = torch.randn(2, 9, 1500)
    positions = [torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]]), torch.zeros(0, 4, dtype=torch.int64)]
    boxes = CoordExp(range(300, 1300))(logits, positions)
    assert boxes.shape == (2, 4)
    assert boxes[1, 2].item() == pytest.approx(expected_values(logits[0, 6:7, 300:1300]).item())


def test_module_of_no_boxes_is_differentiable():
    logits = torch.randn(1, 3, 1100, requires_grad=True)
    boxes = CoordExp(range(1000))(logits, [torch.zeros(0, 4, dtype=torch.int64)])
    boxes.sum().backward()
    assert boxes.shape == (0, 4)
    assert logits.grad is not None
    assert not logits.grad.any()


def test_module_refuses_a_wrong_batch():
    with pytest.raises(ValueError, match="one \\[M, 4\\] tensor for each of 2 sequences"):
        CoordExp(range(1000))(torch.zeros(2, 3, 1100), [torch.zeros(0, 4)])


def test_gradcheck():
    logits = torch.randn(2, 1000, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(expected_values, (logits,), fast_mode=True)

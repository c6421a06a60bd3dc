"""The gate, -log P(coord vocabulary), against independents. Tolerances: tests/support/distributions.py."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from torch.nn import functional as F  # noqa: N812

from coordexp.coord_tokens.soft_ce_w1 import coord_gate
from tests.support.distributions import DTYPES, MANY, ROWS, SEEDS, TOLERANCE, UNIT, numpy_lse, random_logits


def test_gate_is_full_ce_minus_slice_ce():
    torch.manual_seed(0)
    logits, bins = torch.randn(20, 1300), torch.randint(0, 1000, (20,))
    full = F.cross_entropy(logits, bins + 200, reduction="none")
    part = F.cross_entropy(logits[:, 200:1200], bins, reduction="none")
    torch.testing.assert_close(coord_gate(logits, range(200, 1200)), full - part)


@DTYPES
@MANY
@given(seed=SEEDS)
def test_gate_equals_float64_numpy(dtype, seed):
    """250 rows of 1,300 logits, with more or less of the mass on the 1,000 coord tokens in the middle."""
    exact = random_logits(seed, columns=1300)
    exact[:, 200:1200] += np.random.default_rng([seed, 2]).uniform(-20, 20, size=(ROWS, 1))
    logits = torch.from_numpy(exact).to(dtype)

    def reference(values):
        return np.logaddexp(0, numpy_lse(np.delete(values, np.s_[200:1200], axis=1)) - numpy_lse(values[:, 200:1200]))

    found = coord_gate(logits, range(200, 1200))
    assert found.dtype == torch.float32
    assert (found >= 0).all()
    atol = 2 * TOLERANCE + 3 * UNIT * 60
    np.testing.assert_allclose(found, reference(logits.double().numpy()), rtol=0, atol=atol)
    if dtype == torch.bfloat16:
        np.testing.assert_allclose(found, reference(exact), rtol=0, atol=2 * 60 * 2**-8 + atol)


@pytest.mark.parametrize(
    "coord_ids", [range(3, 7), {"start": 3, "end": 6}, [3, 4, 5, 6], [6, 3, 5, 4], [0, 3, 9], [9], range(0, 10, 3)]
)
def test_gate_takes_ids_in_any_form(coord_ids):
    torch.manual_seed(0)
    logits = torch.randn(4, 10, dtype=torch.float64)
    ids = [3, 4, 5, 6] if isinstance(coord_ids, dict) else list(coord_ids)
    torch.testing.assert_close(coord_gate(logits, coord_ids), -logits.softmax(dim=1)[:, ids].sum(dim=1).log())


def test_gate_of_the_whole_vocabulary_is_zero():
    logits = torch.randn(3, 10, requires_grad=True)
    value = coord_gate(logits, range(10))
    value.sum().backward()
    assert value.tolist() == [0, 0, 0]
    assert logits.grad is not None
    assert logits.grad.tolist() == [[0] * 10] * 3


@pytest.mark.parametrize(("shape", "ids"), [((3, 10), range(5, 11)), ((10,), range(3)), ((1, 3, 10), [1, 2])])
def test_gate_refuses_logits_without_the_columns(shape, ids):
    with pytest.raises(ValueError, match=f"coord id {max(ids)}.*{re.escape(str(shape))}"):
        coord_gate(torch.zeros(shape), ids)
    with pytest.raises(ValueError, match="coord ids"):
        coord_gate(torch.zeros(3, 10), [])

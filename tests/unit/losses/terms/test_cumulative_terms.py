"""Terms of cumulative distributions, EMD2 and the ordinal cross-entropy: by hand, by plain references, at extremes."""

import math

import numpy as np
import pytest
import torch

from coordexp.losses.terms.emd2 import Emd2
from coordexp.losses.terms.ordinal_ce import OrdinalCe
from coordexp.losses.terms.w1 import W1

BINS, BOX = [200, 300, 600, 700], (0.2, 0.3, 0.6, 0.7)


def _two_peaks(make_one_hot, *, off, share):
    """The share of the mass on the true bin, the rest ``off`` bins above it: four rows alike."""
    case = make_one_hot([30 + k for k in BINS], [30 + k for k in BINS], BOX)
    with torch.no_grad():
        for row, k in enumerate(BINS):
            case.logits[row, 30 + k] = math.log(share)
            case.logits[row, 30 + k + off] = math.log(1 - share)
    return case.inputs


def test_by_hand(make_one_hot):
    """Three quarters on the bin, a quarter 8 above: CDF .75 instead of 1 at 8 thresholds, and right elsewhere."""
    inputs = _two_peaks(make_one_hot, off=8, share=0.75)
    assert Emd2()(inputs).item() == pytest.approx(4 * 8 * 0.25**2 / 999)
    assert OrdinalCe()(inputs).item() == pytest.approx(4 * 8 * -math.log(0.75) / 999, rel=1e-5)
    assert W1(sigma=1e-3)(inputs).item() == pytest.approx(4 * 8 * 0.25 / 999, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [0.5, 8.0])
def test_equals_a_plain_reference(dtype, scale, make_case):
    case = make_case(dtype=dtype, num_boxes=2, num_loose=3, scale=scale)
    logits = case.logits.detach().double()[case.is_coord][:, case.coord].numpy()
    probs = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    emd2 = ordinal = 0.0
    for row, true in zip(probs, case.inputs.coord_bins_N.tolist(), strict=True):
        for j in range(999):
            emd2 += (row[: j + 1].sum() - (true <= j)) ** 2 / 999
            ordinal -= math.log(row[j + 1 :].sum() if true > j else row[: j + 1].sum()) / 999
    rel = 1e-12 if dtype == torch.float64 else 1e-5
    assert Emd2()(case.inputs).item() == pytest.approx(emd2, rel=rel)
    assert OrdinalCe()(case.inputs).item() == pytest.approx(ordinal, rel=rel)

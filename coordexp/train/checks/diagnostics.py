"""Measures of the coord distribution, computed alike for every group and outside every loss.

Shapes: T supervised tokens, N coord tokens, K bins, M boxes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.losses.term import TermInputs

NAMES = (
    "coord_vocab_mass",
    "expected_bin_mae",
    "true_bin_prob",
    "entropy",
    "width",
    "inverted_fraction",
)
P90_NAME = "expected_bin_p90"


@dataclass(frozen=True)
class Diagnostics:
    """Diagnostics of one batch.

    Attributes:
        sums: name -> (sum, count).
        errors_N: ``[N]`` |expected bin - true bin|, whose distribution gives ``expected_bin_p90``.
    """

    sums: dict[str, tuple[Tensor, int]]
    errors_N: Tensor


@torch.no_grad()
def coord_diagnostics(inputs: TermInputs) -> Diagnostics:
    """Measure the coord distributions of one batch.

    - ``coord_vocab_mass``: probability of the coord vocabulary at coord positions. The others look
      at the distribution *within* the coord vocabulary:
    - ``expected_bin_mae``: |expected bin - true bin|, in bins.
    - ``true_bin_prob``: probability of the true bin.
    - ``entropy``: in nats; ln 1000 = 6.9 for a flat one.
    - ``width``: standard deviation, in bins.
    - ``inverted_fraction``: share of expected boxes with x2 < x1 or y2 < y1.
    """
    num_coord, num_boxes = inputs.coord_bins_N.numel(), inputs.box_rows_M4.shape[0]
    mass_T = (inputs.head.log_z_coord_T - inputs.head.log_z_text_T).sigmoid()
    log_p_NK = inputs.head.coord_logits_NK.log_softmax(dim=1)
    p_NK = log_p_NK.exp()
    bins_K = torch.arange(NUM_BINS, dtype=p_NK.dtype, device=p_NK.device)
    expected_N = (p_NK * bins_K).sum(dim=1)  # a matrix product would lose bits under autocast and TF32
    variance_N = (p_NK * (bins_K - expected_N.unsqueeze(1)).square()).sum(dim=1)
    errors_N = (expected_N - inputs.coord_bins_N).abs()
    boxes_M4 = inputs.expected_boxes()
    inverted_M = (boxes_M4[:, 2:] < boxes_M4[:, :2]).any(dim=1)
    sums = {
        "coord_vocab_mass": (mass_T.masked_fill(~inputs.is_coord_T, 0).sum(), num_coord),
        "expected_bin_mae": (errors_N.sum(), num_coord),
        "true_bin_prob": (p_NK.gather(1, inputs.coord_bins_N.unsqueeze(1)).sum(), num_coord),
        "entropy": (torch.special.entr(p_NK).sum(), num_coord),
        "width": (variance_N.sqrt().sum(), num_coord),
        "inverted_fraction": (inverted_M.sum(), num_boxes),
    }
    return Diagnostics(sums=sums, errors_N=errors_N)

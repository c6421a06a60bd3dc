"""Measures of the coord distribution, computed alike for every group and outside every loss.

Shapes: N coord tokens, K bins, M boxes.
"""

import torch
from torch import Tensor

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.expectation import expected_values
from coordexp.losses.coord_box import expected_boxes
from coordexp.losses.term import TermInputs

NAMES = ("coord_vocab_mass", "expected_bin_mae", "inverted_fraction")


@torch.no_grad()
def coord_diagnostics(inputs: TermInputs) -> dict[str, tuple[Tensor, int]]:
    """Return ``name -> (sum, count)``.

    - ``coord_vocab_mass``: probability of the coord vocabulary at coord positions.
    - ``expected_bin_mae``: |expected bin - true bin|, in bins.
    - ``inverted_fraction``: share of expected boxes with x2 < x1 or y2 < y1.
    """
    num_coord, num_boxes = inputs.coord_bins_N.numel(), inputs.box_rows_M4.shape[0]
    mass_T = (inputs.log_z_coord_T - inputs.log_z_T).exp()
    error_N = (expected_values(inputs.coord_logits_NK) * NUM_BINS - inputs.coord_bins_N).abs()
    boxes_M4 = expected_boxes(inputs)
    inverted_M = (boxes_M4[:, 2:] < boxes_M4[:, :2]).any(dim=1)
    return {
        "coord_vocab_mass": (mass_T.masked_fill(~inputs.is_coord_T, 0).sum(), num_coord),
        "expected_bin_mae": (error_N.sum(), num_coord),
        "inverted_fraction": (inverted_M.sum(), num_boxes),
    }

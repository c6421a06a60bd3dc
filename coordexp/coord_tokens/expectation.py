"""CoordExp: decode coordinates as the expectation over the coord vocabulary.

Shapes: N coord tokens, K bins, M boxes, B batch, T sequence, V vocabulary.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from coordexp.coord_tokens.codec import DEFAULT_COORD_IDS, NUM_BINS, CoordIds, as_id_list
from coordexp.coord_tokens.soft_ce_w1 import at_least_float32, is_integer


def expected_values(logits_NK: Tensor) -> Tensor:
    """Decode coordinates as the mean of the bin distribution (CoordExp).

    c = sum_k p_k * k / K with p = softmax(logits). Computed in float32, because in bfloat16 the 1000 bin values
    collapse to 507 distinct ones.

    Args:
        logits_NK: ``[N, K]`` logits of the coord vocabulary only, any float dtype.

    Returns:
        ``[N]`` float32 (float64 for float64 logits) in [0, (K-1)/K], as a fraction of the image width or height.

    Raises:
        ValueError: if ``logits_NK`` is not 2-D with K = NUM_BINS columns.

    Source: the specification, "CoordExp"; soft-argmax.
    """
    if logits_NK.ndim != 2 or logits_NK.shape[1] != NUM_BINS:
        raise ValueError(f"expected logits [N, {NUM_BINS}] of the coord vocabulary, got {tuple(logits_NK.shape)}")
    p_NK = at_least_float32(logits_NK).softmax(dim=1)
    bins_K = torch.arange(NUM_BINS, dtype=p_NK.dtype, device=p_NK.device)
    # Not a matrix product: autocast would compute it in bfloat16, and a GPU may compute it in TF32.
    return (p_NK * bins_K).sum(dim=1) / NUM_BINS


class CoordExp(nn.Module):
    """Full-vocabulary logits and the positions of the coord labels -> expected boxes.

    Positions are those of the coord tokens in the sequence, such as ``coord_positions`` of
    :func:`coordexp.coord_tokens.layout.parse_targets`. A model predicts the token at ``t`` with its logits at
    ``t - 1``, so the logits one step before each position are read.
    """

    def __init__(self, coord_ids: CoordIds = DEFAULT_COORD_IDS) -> None:
        """Keep the token ids of ``<|coord_0|>`` .. ``<|coord_999|>``, in order.

        Raises:
            ValueError: if they are not 1000.
        """
        super().__init__()
        ids = as_id_list(coord_ids)
        if len(ids) != NUM_BINS:
            raise ValueError(f"expected {NUM_BINS} coord ids, got {len(ids)}")
        self.coord_ids: Tensor
        self.register_buffer("coord_ids", torch.tensor(ids), persistent=False)
        self._largest_id = max(ids)

    def forward(self, logits_BTV: Tensor, positions: Sequence[Tensor | Sequence[Sequence[int]]]) -> Tensor:
        """Decode the boxes of a batch.

        Args:
            logits_BTV: ``[B, T, V]`` logits of whole sequences, not shifted.
            positions: for each sequence ``[M, 4]`` integer positions of the labels of x1, y1, x2, y2, as a tensor or as
                lists; M may be 0.

        Returns:
            ``[sum M, 4]`` float32 (float64 for float64 logits) boxes, xyxy fractions, sequence by sequence. Corners may
            be out of order: an undertrained model may decode x2 < x1.

        Raises:
            ValueError: if the shapes do not fit, the logits have no column for a coord id, or a position is outside
                1..T-1 (nothing predicts the first token). Positions on an accelerator are not read back; a coordinate
                at a wrong position is NaN there.
        """
        if logits_BTV.ndim != 3 or logits_BTV.shape[2] <= self._largest_id:
            raise ValueError(
                f"expected logits [B, T, V] with V above the largest coord id {self._largest_id}, "
                f"got {tuple(logits_BTV.shape)}"
            )
        batch, length, _ = logits_BTV.shape
        if len(positions) != batch:
            raise ValueError(
                f"positions must have one [M, 4] tensor or list for each of {batch} sequences, got {len(positions)}"
            )
        positions_by_row = [_checked(position, row=row, length=length) for row, position in enumerate(positions)]
        if not positions_by_row:
            return at_least_float32(logits_BTV.new_zeros(0, 4))
        rows = [torch.full_like(position_M4, row) for row, position_M4 in enumerate(positions_by_row)]
        device = logits_BTV.device
        position_M4 = torch.cat(positions_by_row).to(device, non_blocking=True)
        row_M4 = torch.cat(rows).to(device, non_blocking=True)
        ids_K = self.coord_ids.to(device, non_blocking=True)

        # A wrong position is clamped so that the look-up stays inside, and its coordinate becomes NaN afterwards.
        is_inside_M4 = (position_M4 >= 1) & (position_M4 < length)
        predicting_M4 = (position_M4 - 1).clamp(0, length - 1)
        logits_NK = logits_BTV[row_M4.view(-1, 1), predicting_M4.view(-1, 1), ids_K]
        return expected_values(logits_NK).view(-1, 4).masked_fill(~is_inside_M4, math.nan)


def _checked(positions: Tensor | Sequence[Sequence[int]], *, row: int, length: int) -> Tensor:
    """Return the positions of one sequence as int64 ``[M, 4]``; ``[]`` and a tensor of shape ``[0]`` have none."""
    try:
        position_M4 = torch.as_tensor(positions)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"positions[{row}]: expected integer positions [M, 4], got a ragged list ({error})") from None
    shape = tuple(position_M4.shape)
    if shape in ((0,), (0, 4)):
        return torch.zeros(0, 4, dtype=torch.int64, device=position_M4.device)
    if len(shape) != 2 or shape[1] != 4 or not is_integer(position_M4):
        raise ValueError(f"positions[{row}]: expected integer positions [M, 4], got {position_M4.dtype} {shape}")
    position_M4 = position_M4.to(torch.int64)
    if position_M4.device.type == "cpu":
        is_outside_M4 = (position_M4 < 1) | (position_M4 >= length)
        if bool(is_outside_M4.any()):
            position = int(position_M4[is_outside_M4][0])
            raise ValueError(
                f"positions[{row}]: {position} is outside 1..{length - 1} (nothing predicts the first token)"
            )
    return position_M4

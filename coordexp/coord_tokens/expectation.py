"""CoordExp: decode coordinates as the expectation over the coord vocabulary.

Shapes: N coord tokens, K bins, M boxes, B batch, T sequence, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from coordexp.coord_tokens.codec import NUM_BINS, CoordIds, as_id_list, bin_values


def expected_values(logits_NK: Tensor) -> Tensor:
    """Decode coordinates as the mean of the bin distribution (CoordExp).

    c = sum_k p_k * k / K with p = softmax(logits), in float32: in bfloat16 the 1000 bin
    values collapse to 507 distinct ones.

    Args:
        logits_NK: ``[N, K]`` logits of the coord vocabulary only, any float dtype.

    Returns:
        ``[N]`` float32 (float64 for float64 logits) in [0, (K-1)/K], as a fraction of the image width or height.

    Raises:
        ValueError: if ``logits_NK`` is not 2-D with K = NUM_BINS columns.

    Source: Phase 1 spec, 6.3; soft-argmax.
    """
    if logits_NK.ndim != 2 or logits_NK.shape[1] != NUM_BINS:
        raise ValueError(f"expected logits [N, {NUM_BINS}] of the coord vocabulary, got {tuple(logits_NK.shape)}")
    dtype = torch.promote_types(logits_NK.dtype, torch.float32)
    return logits_NK.to(dtype).softmax(dim=1) @ bin_values(device=logits_NK.device).to(dtype)


class CoordExp(nn.Module):
    """Full-vocabulary logits and coord positions -> expected boxes.

    ``positions`` index the rows whose logits *predict* the coordinate; with the usual shift by
    one, that is the position of the coord token minus 1.
    """

    def __init__(self, coord_ids: CoordIds = range(151_670, 152_670)) -> None:
        """Take the token ids of ``<|coord_0|>`` .. ``<|coord_999|>``, in order.

        Raises:
            ValueError: if there are not NUM_BINS of them.
        """
        super().__init__()
        ids = as_id_list(coord_ids)
        if len(ids) != NUM_BINS:
            raise ValueError(f"expected {NUM_BINS} coord ids, got {len(ids)}")
        self.coord_ids: Tensor
        self.register_buffer("coord_ids", torch.tensor(ids), persistent=False)

    def forward(self, logits_BTV: Tensor, positions: Sequence[Tensor]) -> Tensor:
        """Decode the boxes of a batch.

        Args:
            logits_BTV: ``[B, T, V]`` logits.
            positions: for each sequence ``[M, 4]`` positions of x1, y1, x2, y2 (M may be 0).

        Returns:
            ``[sum M, 4]`` float32 boxes, xyxy fractions, sequence by sequence. Corners are as
            decoded: an undertrained model may give x2 < x1.

        Raises:
            ValueError: if ``positions`` has not one entry for each sequence.
        """
        batch, length, _ = logits_BTV.shape
        if len(positions) != batch:
            raise ValueError(
                f"positions must have one [M, 4] tensor for each of {batch} sequences, got {len(positions)}"
            )
        flat = [position.reshape(-1, 4) + row * length for row, position in enumerate(positions)]
        rows_M4 = torch.cat(flat).to(device=logits_BTV.device, dtype=torch.int64)
        rows_NV = logits_BTV.reshape(batch * length, -1)[rows_M4.flatten()]
        return expected_values(rows_NV.index_select(1, self.coord_ids)).view(-1, 4)

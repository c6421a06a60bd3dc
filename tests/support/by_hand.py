"""A batch written by hand, for tests of a loss term: logits and true boxes, without a model, a tokenizer or the head.

The vocabulary is small: some rows of text, the 1000 bins, some rows of text.

Shapes: T supervised tokens, N of them coord tokens, V vocabulary, M boxes.
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.losses.head import HeadOutput
from coordexp.losses.term import TermInputs

FIRST_ID = 30
"""Column of the logits that is bin 0."""
VOCABULARY = FIRST_ID + NUM_BINS + 20
"""Columns of the logits."""


def inputs_by_hand(
    logits_TV: Tensor, targets_T: Tensor, boxes_norm_xyxy_M4: Tensor, *, first_id: int = FIRST_ID
) -> TermInputs:
    """Return a batch of one image, of full logits: in the plainest way, which the head of training is compared with.

    Args:
        logits_TV: ``[T, V]`` logits at supervised positions.
        targets_T: ``[T]`` true tokens; the first four coord tokens are the first box, and so on, left-over ones none.
        boxes_norm_xyxy_M4: ``[M, 4]`` true boxes.
        first_id: column of bin 0.
    """
    bins = slice(first_id, first_id + NUM_BINS)
    is_coord_T = (targets_T >= bins.start) & (targets_T < bins.stop)
    rest = torch.cat([logits_TV[:, : bins.start], logits_TV[:, bins.stop :]], dim=1)
    head = HeadOutput(
        log_z_T=logits_TV.logsumexp(dim=1),
        log_z_coord_T=logits_TV[:, bins].logsumexp(dim=1),
        log_z_text_T=rest.logsumexp(dim=1),
        target_logit_T=logits_TV.gather(1, targets_T.unsqueeze(1)).squeeze(1),
        ce_T=F.cross_entropy(logits_TV, targets_T, reduction="none"),
        coord_logits_NK=logits_TV[is_coord_T][:, bins],
        log_z_text_at=lambda temperature: (rest[is_coord_T] / temperature).logsumexp(dim=1),
    )
    return term_inputs(head, targets_T, boxes_norm_xyxy_M4, first_id=first_id)


def term_inputs(
    head: HeadOutput,
    targets_T: Tensor,
    boxes_norm_xyxy_M4: Tensor,
    *,
    first_id: int,
    coord_rows: Tensor | None = None,
    box_rows: Tensor | None = None,
) -> TermInputs:
    """Join a head's output and the truth: the first four coord tokens are the first box, all of one image.

    Args:
        head: of any making.
        targets_T: ``[T]`` true tokens.
        boxes_norm_xyxy_M4: ``[M, 4]`` true boxes.
        first_id: column of bin 0.
        coord_rows: rows of the tokens that carry coordinates; None: those whose true token is a bin.
        box_rows: rows of x1, y1, x2, y2 of each box among them; None: four by four.
    """
    is_coord_T = (targets_T >= first_id) & (targets_T < first_id + NUM_BINS)
    bins_N = targets_T[is_coord_T] if coord_rows is None else targets_T.index_select(0, coord_rows)
    if box_rows is None:
        box_rows = torch.arange(boxes_norm_xyxy_M4.numel(), device=targets_T.device).view(-1, 4)
    return TermInputs(
        head=head,
        is_coord_T=is_coord_T,
        coord_bins_N=bins_N - first_id,
        coord_places_N=torch.zeros_like(bins_N),
        box_rows_M4=box_rows,
        boxes_norm_xyxy_M4=boxes_norm_xyxy_M4,
        box_image_M=torch.zeros_like(box_rows[:, 0]),
        box_object_M=torch.arange(len(boxes_norm_xyxy_M4), device=targets_T.device),
    )

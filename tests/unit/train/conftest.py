"""Term inputs of a batch, from random hidden states through the plain head."""

from collections.abc import Callable

import pytest
import torch

from coordexp.config.schema import ExperimentConfig
from coordexp.losses.head import plain_head
from coordexp.losses.term import TermInputs
from coordexp.train.setup.objective import build_criterion

FIRST, VOCAB, HIDDEN = 30, 1050, 8

MakeInputs = Callable[..., TermInputs]


@pytest.fixture
def make_inputs() -> MakeInputs:
    """Return the inputs of ``num_boxes`` boxes and ``num_text`` text tokens, with the given coord logits."""

    def make(*, num_boxes=2, num_text=5, seed=0, coord_logits=None, weight=None, hidden=None) -> TermInputs:
        generator = torch.Generator().manual_seed(seed)
        num_coord = 4 * num_boxes
        targets = torch.cat(
            [
                torch.randint(FIRST, FIRST + 1000, (num_coord,), generator=generator),
                torch.randint(0, FIRST, (num_text,), generator=generator),
            ]
        )
        if weight is None:
            weight = torch.randn(VOCAB, HIDDEN, generator=generator)
        drawn = torch.randn(num_coord + num_text, HIDDEN, generator=generator).requires_grad_()
        hidden = drawn if hidden is None else hidden
        head = plain_head(hidden, weight, targets, first_id=FIRST)
        is_coord = (targets >= FIRST) & (targets < FIRST + 1000)
        bins = targets[is_coord] - FIRST
        return TermInputs(
            log_z_T=head.log_z_T,
            log_z_coord_T=head.log_z_coord_T,
            log_z_text_T=head.log_z_text_T,
            target_logit_T=head.target_logit_T,
            ce_T=head.ce_T,
            is_coord_T=is_coord,
            coord_logits_NK=head.coord_logits_NK if coord_logits is None else coord_logits(bins),
            coord_bins_N=bins,
            box_rows_M4=torch.arange(num_coord).view(num_boxes, 4),
            boxes_norm_xyxy_M4=(bins / 1000).view(num_boxes, 4),
        )

    return make


@pytest.fixture
def make_criterion() -> Callable[..., object]:
    """Return the criterion of some objective keys, as a configuration would give it."""

    def make(**objective):
        return build_criterion(ExperimentConfig.model_validate({"objective": objective}))

    return make

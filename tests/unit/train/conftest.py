"""Term inputs of a batch, from random hidden states through the plain head."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from coordexp.config.schema import ExperimentConfig
from coordexp.losses.head import plain_head
from coordexp.losses.term import TermInputs
from coordexp.train.setup.weighted_terms import build_criterion
from tests.support.by_hand import term_inputs

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
        head = plain_head(hidden, weight, targets, first_id=FIRST, coord_rows_N=torch.arange(num_coord))
        is_coord = (targets >= FIRST) & (targets < FIRST + 1000)
        bins = targets[is_coord] - FIRST
        inputs = term_inputs(head, targets, (bins / 1000).view(num_boxes, 4), first_id=FIRST)
        if coord_logits is None:
            return inputs
        return replace(inputs, head=replace(head, coord_logits_NK=coord_logits(bins)))

    return make


@pytest.fixture
def make_criterion() -> Callable[..., object]:
    """Return the criterion of some objective keys, as a configuration would give it."""

    def make(**objective):
        return build_criterion(ExperimentConfig.model_validate({"objective": objective}))

    return make

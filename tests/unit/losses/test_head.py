"""The split head equals plain full-vocabulary logits: values and gradients."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from coordexp.losses import head as head_module
from coordexp.losses.head import plain_head, split_head

FIRST, NUM_COORD, VOCAB, HIDDEN = 40, 1000, 1103, 12


def _inputs(num_tokens, *, dtype=torch.float64, num_adapted=NUM_COORD):
    torch.manual_seed(0)
    hidden = torch.randn(num_tokens, HIDDEN, dtype=dtype, requires_grad=True)
    weight = torch.randn(VOCAB, HIDDEN, dtype=dtype)
    offset = (0.1 * torch.randn(num_adapted, HIDDEN, dtype=dtype)).requires_grad_()
    targets = torch.randint(0, VOCAB, (num_tokens,))
    targets[: num_tokens // 2] = torch.randint(FIRST, FIRST + NUM_COORD, (num_tokens // 2,))
    return hidden, weight, offset, targets


def _full_logits(hidden, weight, offset):
    padding = (0, 0, FIRST, VOCAB - FIRST - offset.shape[0])
    return hidden @ (weight + F.pad(offset, padding)).T


@pytest.mark.parametrize("num_adapted", [NUM_COORD, NUM_COORD + 2])
@pytest.mark.parametrize("chunk_elements", [1, 16 * 1024 * 1024])
def test_cross_entropy_and_gradients_equal_full_logits(monkeypatch, num_adapted, chunk_elements):
    monkeypatch.setattr(head_module, "_CHUNK_ELEMENTS", chunk_elements)
    hidden, weight, offset, targets = _inputs(30, num_adapted=num_adapted)
    targets[0] = FIRST + num_adapted - 1
    out = split_head(hidden, weight, targets, first_id=FIRST, offset_KD=offset, num_adapted=num_adapted)
    loss = (out.log_z_T - out.target_logit_T).sum()
    reference = F.cross_entropy(_full_logits(hidden, weight, offset), targets, reduction="sum")
    torch.testing.assert_close(loss, reference)
    found = torch.autograd.grad(loss, (hidden, offset))
    for a, b in zip(found, torch.autograd.grad(reference, (hidden, offset)), strict=True):
        torch.testing.assert_close(a, b)


def test_every_part_equals_the_plain_head():
    hidden, weight, offset, targets = _inputs(20)
    split = split_head(hidden, weight, targets, first_id=FIRST, offset_KD=offset)
    plain = plain_head(hidden, weight.clone().requires_grad_(), targets, first_id=FIRST, offset_KD=offset)
    for name in ("log_z_T", "log_z_coord_T", "log_z_text_T", "target_logit_T", "coord_logits_NK"):
        torch.testing.assert_close(getattr(split, name), getattr(plain, name), msg=name)
    is_coord = (targets >= FIRST) & (targets < FIRST + NUM_COORD)
    torch.testing.assert_close(
        split.coord_logits_NK, _full_logits(hidden, weight, offset)[is_coord][:, FIRST : FIRST + NUM_COORD]
    )


def test_any_mix_of_outputs_has_the_right_gradient():
    hidden, weight, offset, targets = _inputs(16)
    out = split_head(hidden, weight, targets, first_id=FIRST, offset_KD=offset)
    logits = _full_logits(hidden, weight, offset)
    coord = logits[:, FIRST : FIRST + NUM_COORD].logsumexp(1)
    loss = (out.log_z_T * 0.3 - 1.7 * out.log_z_coord_T + out.log_z_text_T.square()).sum()
    text = torch.cat([logits[:, :FIRST], logits[:, FIRST + NUM_COORD :]], 1).logsumexp(1)
    reference = (logits.logsumexp(1) * 0.3 - 1.7 * coord + text.square()).sum()
    found = torch.autograd.grad(loss, (hidden, offset))
    for a, b in zip(found, torch.autograd.grad(reference, (hidden, offset)), strict=True):
        torch.testing.assert_close(a, b)


def test_bfloat16_is_no_further_from_the_truth_than_plain_autograd():
    hidden, weight, offset, targets = _inputs(200, dtype=torch.float32)
    low = [t.detach().to(torch.bfloat16).requires_grad_(t.requires_grad) for t in (hidden, weight, offset)]
    exact = [t.detach().to(torch.float32) for t in low]
    truth = F.cross_entropy(_full_logits(*exact), targets)
    out = split_head(low[0], low[1], targets, first_id=FIRST, offset_KD=low[2])
    ours = (out.log_z_T - out.target_logit_T).mean()
    plain = F.cross_entropy(_full_logits(*low), targets).float()
    assert (ours - truth).abs() <= (plain - truth).abs() + 1e-6


def test_a_trainable_table_is_refused():
    hidden, weight, offset, targets = _inputs(4)
    with pytest.raises(ValueError, match="frozen table"):
        split_head(hidden, weight.requires_grad_(), targets, first_id=FIRST, offset_KD=offset)


def test_no_supervised_token():
    hidden, weight, offset, targets = _inputs(0)
    out = split_head(hidden, weight, targets, first_id=FIRST, offset_KD=offset)
    (out.log_z_T.sum() + out.coord_logits_NK.sum()).backward()
    assert out.coord_logits_NK.shape == (0, NUM_COORD)
    assert hidden.grad is not None


def test_an_evaluation_forward_stores_nothing():
    hidden, weight, offset, targets = _inputs(8)
    with torch.no_grad():
        out = split_head(hidden, weight, targets, first_id=FIRST, offset_KD=offset)
    assert not out.log_z_T.requires_grad

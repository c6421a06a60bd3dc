"""The head in float32 for evaluation, whatever the model's dtype."""

import pytest
import torch

from coordexp.model import head_bypass
from coordexp.model.head_bypass import float32_head
from coordexp.model.loading import load


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("chunk_rows", [100, 16_384])
def test_a_bfloat16_head_gives_float32_logits(make_base, monkeypatch, tied, chunk_rows):
    monkeypatch.setattr(head_bypass, "_CHUNK_ROWS", chunk_rows)
    model = load(make_base(tied=tied, dtype=torch.bfloat16)).model
    head = model.get_output_embeddings()
    hidden = 5 * torch.randn(2, 3, head.weight.shape[1]).to(torch.bfloat16)
    truth = hidden.double() @ head.weight.detach().double().T
    with torch.no_grad(), float32_head(model):
        logits = head(hidden)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), truth, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        rounded = head(hidden)  # restored, and the reason for it all
    assert rounded.dtype == torch.bfloat16
    assert float((rounded.double() - truth).abs().max()) > 100 * float((logits.double() - truth).abs().max())


def test_a_float32_head_is_left_alone(make_base):
    model = load(make_base()).model
    head = model.get_output_embeddings()
    hidden = torch.randn(2, 3, head.weight.shape[1])
    with torch.no_grad():
        before = head(hidden)
        with float32_head(model):
            assert "forward" not in vars(head)
            assert torch.equal(head(hidden), before)

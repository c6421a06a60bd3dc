"""Replace the head's projection for a while: by nothing for the split head, by float32 products for evaluation."""

import contextlib
from collections.abc import Callable, Generator

import torch
from torch import Tensor, nn

from coordexp.coord_tokens.offset_adapter import inner_model

_CHUNK_ROWS = 16_384  # vocabulary rows cast to float32 at a time on a CPU, whose product cannot accumulate in it


@contextlib.contextmanager
def pass_through_head(model: nn.Module) -> Generator[None]:
    """Make the output embedding return its input inside the block.

    ``model(**batch).logits`` is then ``[B, L, D]``, the hidden states before the head, at no cost. The hook of the
    offset adapter adds nothing, because it sees that nothing was projected. Works through PEFT, DDP and DeepSpeed;
    blocks may be nested; the head is always restored.
    """
    with _head_forward(_head_of(model), lambda hidden: hidden):
        yield


@contextlib.contextmanager
def float32_head(model: nn.Module) -> Generator[None]:
    """Make the output embedding return float32 logits inside the block, for inference.

    A bfloat16 head rounds logits to 8 bits. Near 20 they have steps of 1/8, which changes probabilities by 6 % and
    expected coordinates with them. Training computes these products in float32 (``losses/head.py``), so evaluation does
    too. A float32 head is not changed.
    """
    head = _head_of(model)
    weight_VD = head.get_parameter("weight")
    if weight_VD.dtype in (torch.float32, torch.float64):
        yield
        return

    def logits(hidden: Tensor) -> Tensor:
        # Neither branch makes a float32 copy of the whole table.
        hidden_TD = hidden.flatten(0, -2)
        if hidden.is_cuda:
            logits_TV = torch.mm(hidden_TD, weight_VD.t(), out_dtype=torch.float32)
        else:
            chunks = weight_VD.split(_CHUNK_ROWS)
            logits_TV = torch.cat([hidden_TD.float() @ rows_RD.float().t() for rows_RD in chunks], dim=1)
        return logits_TV.view(*hidden.shape[:-1], weight_VD.shape[0])

    with _head_forward(head, logits):
        yield


def _head_of(model: nn.Module) -> nn.Module:
    head = inner_model(model).get_output_embeddings()
    if head is None:
        raise ValueError("the model has no head; expected a causal language model")
    return head


@contextlib.contextmanager
def _head_forward(head: nn.Module, forward: Callable[[Tensor], Tensor]) -> Generator[None]:
    """Replace the forward of a head inside the block."""
    # An instance attribute shadows the method. accelerate may have set one before, which is restored.
    previous = vars(head).get("forward")
    head.forward = forward
    try:
        yield
    finally:
        if previous is None:
            del head.forward
        else:
            head.forward = previous

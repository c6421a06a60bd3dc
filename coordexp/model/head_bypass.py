"""Reach the hidden states: let the head return its input while the split head does the projection."""

import contextlib
from collections.abc import Generator

from torch import Tensor, nn

from coordexp.coord_tokens.offset_adapter import inner_model


@contextlib.contextmanager
def pass_through_head(model: nn.Module) -> Generator[None]:
    """Make the output embedding return its input inside the block.

    ``model(**batch, logits_to_keep=mask_BT).logits`` is then ``[T, D]``: the hidden states at the
    marked positions, before the head and without the offset adapter's part (its hook sees that
    nothing was projected). Works through PEFT, DDP and DeepSpeed, nests, and always restores.

    Args:
        model: a Hugging Face model with a head, in any wrappers.

    Yields:
        Nothing.
    """
    head = inner_model(model).get_output_embeddings()
    if head is None:
        raise ValueError("the model has no head to bypass; expected a causal language model")
    # An instance attribute shadows the method; whoever set one before (accelerate does) gets it back.
    earlier = vars(head).get("forward")
    head.forward = _identity
    try:
        yield
    finally:
        if earlier is None:
            del head.forward
        else:
            head.forward = earlier


def _identity(input: Tensor) -> Tensor:
    return input

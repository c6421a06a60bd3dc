"""The autograd functions of the head: chunked over the vocabulary, and no ``[T, V]`` kept without need.

Shapes: T supervised tokens, D hidden, V vocabulary, K adapted ids (coord tokens first), C vocabulary
rows of one chunk. All are differentiable once.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F  # noqa: N812

from coordexp.coord_tokens.codec import NUM_BINS

# Elements of the largest temporary: what a CPU's cache holds, and what keeps a GPU's kernels long.
CHUNK_ELEMENTS_CPU = 2 * 1024 * 1024
CHUNK_ELEMENTS_GPU = 16 * 1024 * 1024
_CHUNK_TOKENS = 4096


class _Context(FunctionCtx):
    """What the functions below use of their context, typed."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    first_id: int
    delta_width: int
    keep_low: bool


class FrozenRows(torch.autograd.Function):
    """Log-sum-exp over the frozen rows outside ``block``, and the true logit of the tokens among them.

    ``apply(wide_TD, weight_VD, targets_T, block, keep_low)`` gives two ``[T]``. The gradient of a log-sum-exp
    in ``h_n`` is a scalar times ``E_n = sum_v p_nv W_v``: the forward pass keeps ``E`` ``[T, D]``.
    """

    @staticmethod
    def forward(
        ctx: _Context, wide_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, block: range, keep_low: bool
    ) -> tuple[Tensor, Tensor]:
        """Return log-sum-exp ``[T]`` and true logit ``[T]``; the latter is not for use where that is in the block."""
        num_tokens = wide_TD.shape[0]
        log_z_T, target_logit_T = wide_TD.new_zeros(num_tokens), wide_TD.new_zeros(num_tokens)
        mean_TD = torch.empty_like(wide_TD) if ctx.needs_input_grad[0] else None
        for start in range(0, num_tokens, _CHUNK_TOKENS):
            part = slice(start, start + _CHUNK_TOKENS)
            log_z_T[part], target_logit_T[part] = _scan(
                wide_TD[part],
                weight_VD,
                targets_T[part],
                block=block,
                keep_low=keep_low,
                mean_out_TD=None if mean_TD is None else mean_TD[part],
            )
        if mean_TD is not None:
            ctx.save_for_backward(mean_TD, weight_VD, targets_T)
        return log_z_T, target_logit_T

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradient of the hidden states."""
        mean_TD, weight_VD, targets_T = ctx.saved_tensors
        grad_log_z_T, grad_target_T = grads
        grad_TD = weight_VD[targets_T].to(mean_TD.dtype).mul_(grad_target_T.unsqueeze(1))
        grad_TD.addcmul_(mean_TD, grad_log_z_T.unsqueeze(1))
        return grad_TD, None, None, None, None


def _scan(
    wide_TD: Tensor,
    weight_VD: Tensor,
    targets_T: Tensor,
    *,
    block: range,
    keep_low: bool,
    mean_out_TD: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return log-sum-exp and true logit over the rows outside ``block``; write sum_v p_v W_v to ``mean_out_TD``.

    One pass over the table with a running maximum (online softmax): each chunk is read, perhaps cast,
    and used for both products while it is near.
    """
    peak_T = wide_TD.new_full((wide_TD.shape[0],), float("-inf"))
    total_T, target_logit_T = torch.zeros_like(peak_T), torch.zeros_like(peak_T)
    if mean_out_TD is not None:
        mean_out_TD.zero_()
    for start, stop in _chunks(weight_VD, num_tokens=wide_TD.shape[0], without=block):
        rows_CD = weight_VD[start:stop] if keep_low else weight_VD[start:stop].to(wide_TD.dtype)
        logits_TC = _product(wide_TD, rows_CD.t())
        inside_T = (targets_T >= start) & (targets_T < stop)
        place_T1 = (targets_T - start).clamp(0, stop - start - 1).unsqueeze(1)
        target_logit_T = torch.where(inside_T, logits_TC.gather(1, place_T1).squeeze(1), target_logit_T)
        higher_T = torch.maximum(peak_T, logits_TC.amax(dim=1))
        decay_T = (peak_T - higher_T).exp_()
        terms_TC = logits_TC.sub_(higher_T.unsqueeze(1)).exp_()
        total_T = total_T.mul_(decay_T).add_(terms_TC.sum(dim=1))
        if mean_out_TD is not None:
            mean_out_TD.mul_(decay_T.unsqueeze(1)).add_(_product(terms_TC, rows_CD))
        peak_T = higher_T
    if mean_out_TD is not None:
        mean_out_TD.div_(total_T.unsqueeze(1))
    return peak_T + total_T.log(), target_logit_T


class LowPrecisionProduct(torch.autograd.Function):
    """``h @ W^T`` in float32 for a trained low-precision ``W``, which is never cast as a whole.

    ``apply(wide_TD, weight_VD, keep_low)`` gives ``[T, V]``.
    """

    @staticmethod
    def forward(ctx: _Context, wide_TD: Tensor, weight_VD: Tensor, keep_low: bool) -> Tensor:
        """Return the logits."""
        ctx.save_for_backward(wide_TD, weight_VD)
        ctx.keep_low = keep_low
        logits_TV = wide_TD.new_empty(wide_TD.shape[0], weight_VD.shape[0])
        for start, stop in _chunks(weight_VD, num_tokens=wide_TD.shape[0]):
            rows_CD = weight_VD[start:stop] if keep_low else weight_VD[start:stop].to(wide_TD.dtype)
            logits_TV[:, start:stop] = _product(wide_TD, rows_CD.t())
        return logits_TV

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradients of hidden states and table."""
        wide_TD, weight_VD = ctx.saved_tensors
        (grad_TV,) = grads
        grad_TD = torch.zeros_like(wide_TD)
        grad_VD = torch.empty_like(weight_VD) if ctx.needs_input_grad[1] else None
        factor_TD = wide_TD.to(weight_VD.dtype) if ctx.keep_low else wide_TD
        for start, stop in _chunks(weight_VD, num_tokens=wide_TD.shape[0]):
            rows_CD = weight_VD[start:stop] if ctx.keep_low else weight_VD[start:stop].to(wide_TD.dtype)
            grad_TD += _product(grad_TV[:, start:stop], rows_CD)
            if grad_VD is not None:
                grad_VD[start:stop] = _product(grad_TV[:, start:stop].t(), factor_TD)
        return grad_TD, grad_VD, None


class Summaries(torch.autograd.Function):
    """Logits -> CE, true logit, log-sum-exp of text, coord block; one ``[T, V]`` buffer in backward.

    ``apply(logits_TV, delta_TK, targets_T, first_id)``: ``delta_TK`` is already in the logits, and an input
    so that it gets its gradient.
    """

    @staticmethod
    def forward(
        ctx: _Context, logits_TV: Tensor, delta_TK: Tensor | None, targets_T: Tensor, first_id: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return ``ce_T``, ``target_logit_T``, ``log_z_text_T`` and the ``[T, NUM_BINS]`` coord logits."""
        ctx.set_materialize_grads(False)
        ctx.first_id, ctx.delta_width = first_id, 0 if delta_TK is None else delta_TK.shape[1]
        coord, before, after = _columns(first_id)
        ce_T, text_T = logits_TV.new_empty(logits_TV.shape[0]), logits_TV.new_empty(logits_TV.shape[0])
        for part in _token_parts(logits_TV):
            ce_T[part] = F.cross_entropy(logits_TV[part], targets_T[part], reduction="none")
            text_T[part] = torch.logaddexp(
                logits_TV[part, before].logsumexp(dim=1), logits_TV[part, after].logsumexp(dim=1)
            )
        ctx.save_for_backward(logits_TV, targets_T, text_T)
        target_logit_T = logits_TV.gather(1, targets_T.unsqueeze(1)).squeeze(1)
        return ce_T, target_logit_T, text_T, logits_TV[:, coord].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradients of ``logits_TV`` and ``delta_TK``."""
        logits_TV, targets_T, text_T = ctx.saved_tensors
        grad_ce_T, grad_target_T, grad_text_T, grad_coord_TK = grads
        coord, before, after = _columns(ctx.first_id)
        grad_TV = torch.zeros_like(logits_TV) if grad_ce_T is None else torch.empty_like(logits_TV)
        for part in _token_parts(logits_TV):
            if grad_ce_T is not None:
                grad_TV[part] = logits_TV[part].softmax(dim=1).mul_(grad_ce_T[part].unsqueeze(1))
            if grad_text_T is not None:
                for columns in (before, after):
                    probs = (logits_TV[part, columns] - text_T[part].unsqueeze(1)).exp_()
                    grad_TV[part, columns].addcmul_(probs, grad_text_T[part].unsqueeze(1))
        for grad_T, sign in ((grad_target_T, 1), (grad_ce_T, -1)):
            if grad_T is not None:
                at_T1 = targets_T.unsqueeze(1)
                grad_TV.scatter_(1, at_T1, grad_TV.gather(1, at_T1).add_(grad_T.unsqueeze(1), alpha=sign))
        if grad_coord_TK is not None:
            grad_TV[:, coord] += grad_coord_TK
        adapted = slice(ctx.first_id, ctx.first_id + ctx.delta_width)
        return grad_TV, grad_TV[:, adapted].clone() if ctx.delta_width else None, None, None


def _columns(first_id: int) -> tuple[slice, slice, slice]:
    return slice(first_id, first_id + NUM_BINS), slice(0, first_id), slice(first_id + NUM_BINS, None)


def _token_parts(logits_TV: Tensor) -> Iterator[slice]:
    step = max(1, _chunk_elements(logits_TV) // logits_TV.shape[1])
    return (slice(start, start + step) for start in range(0, logits_TV.shape[0], step))


def _chunks(weight_VD: Tensor, *, num_tokens: int, without: range | None = None) -> Iterator[tuple[int, int]]:
    """Yield row ranges of the table whose logits, and whose own copy, stay below the chunk size."""
    num_rows, width = weight_VD.shape
    step = max(1, _chunk_elements(weight_VD) // max(num_tokens, width))
    for low, high in ((0, num_rows),) if without is None else ((0, without.start), (without.stop, num_rows)):
        for start in range(low, high, step):
            yield start, min(start + step, high)


def _chunk_elements(like: Tensor) -> int:
    return CHUNK_ELEMENTS_CPU if like.device.type == "cpu" else CHUNK_ELEMENTS_GPU


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype the head computes in: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def multiplies_low(hidden_TD: Tensor, weight_VD: Tensor) -> bool:
    """Whether tensor cores multiply both as they are and add up in float32; else chunks are cast."""
    return hidden_TD.is_cuda and hidden_TD.dtype == weight_VD.dtype and weight_VD.dtype.itemsize < 4


def _product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of constants in the dtype of ``a``, accumulated there."""
    if a.dtype == b.dtype:
        return a @ b
    return torch.mm(a.to(b.dtype), b, out_dtype=a.dtype)

"""Chunked passes over the table of the head with gradients of their own, for :mod:`coordexp.losses.head`.

Hidden states and results are float32 ("wide"). A bfloat16 table is cast chunk by chunk, or not at all if tensor cores
can multiply it and accumulate in float32 (``keep_low``, :func:`multiplies_low`).

Shapes: T supervised tokens, D hidden, V vocabulary, K adapted ids, C vocabulary rows of one chunk.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F  # noqa: N812

# Elements of the largest temporary. On a CPU a chunk should stay in the cache; on a GPU each kernel should run long.
CHUNK_ELEMENTS_CPU = 2 * 1024 * 1024
CHUNK_ELEMENTS_GPU = 16 * 1024 * 1024
_CHUNK_TOKENS = 4096


class _Context(FunctionCtx):
    """What the functions below use of their context, typed."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    block: range
    delta_width: int
    keep_low: bool


class FrozenRows(torch.autograd.Function):
    """Log-sum-exp over the frozen rows outside ``block``, and the true logit of the tokens among them.

    ``apply(wide_TD, weight_VD, targets_T, block, keep_low)`` returns two ``[T]``.

    The gradient of ``log sum_v exp(h . W_v)`` in ``h`` is the mean row ``E = sum_v p_v W_v`` under the softmax ``p``.
    The forward pass has ``p`` chunk by chunk anyway, so it keeps ``E`` ``[T, D]``; backward does not read the table
    again, except for one row per token.
    """

    @staticmethod
    def forward(
        ctx: _Context, wide_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, block: range, keep_low: bool
    ) -> tuple[Tensor, Tensor]:
        """Compute both numbers of every token.

        Args:
            ctx: keeps what backward needs.
            wide_TD: ``[T, D]`` hidden states, float32 or float64.
            weight_VD: ``[V, D]`` frozen table.
            targets_T: ``[T]`` true token ids.
            block: ids that are left out.
            keep_low: whether chunks are multiplied in the dtype of the table (:func:`multiplies_low`).

        Returns:
            Log-sum-exp ``[T]`` and true logit ``[T]``; the latter has no meaning where the true token is in ``block``.
        """
        num_tokens = wide_TD.shape[0]
        log_z_T = wide_TD.new_zeros(num_tokens)
        target_logit_T = wide_TD.new_zeros(num_tokens)
        mean_row_TD = torch.empty_like(wide_TD) if ctx.needs_input_grad[0] else None
        for start in range(0, num_tokens, _CHUNK_TOKENS):
            tokens = slice(start, start + _CHUNK_TOKENS)
            log_z_T[tokens], target_logit_T[tokens] = _scan(
                wide_TD[tokens],
                weight_VD,
                targets_T[tokens],
                block=block,
                keep_low=keep_low,
                mean_row_out_TD=None if mean_row_TD is None else mean_row_TD[tokens],
            )
        if mean_row_TD is not None:
            ctx.save_for_backward(mean_row_TD, weight_VD, targets_T)
        return log_z_T, target_logit_T

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradient of ``wide_TD``, ``[T, D]``, from those of the two ``[T]`` outputs."""
        mean_row_TD, weight_VD, targets_T = ctx.saved_tensors
        grad_log_z_T, grad_target_T = grads
        grad_TD = weight_VD[targets_T].to(mean_row_TD.dtype).mul_(grad_target_T.unsqueeze(1))
        grad_TD.addcmul_(mean_row_TD, grad_log_z_T.unsqueeze(1))
        return grad_TD, None, None, None, None


def _scan(
    wide_TD: Tensor,
    weight_VD: Tensor,
    targets_T: Tensor,
    *,
    block: range,
    keep_low: bool,
    mean_row_out_TD: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Read the table once, with a running maximum (online softmax).

    Each chunk of rows is read, cast if it must be, and used for both products while it is still in the cache.

    Args:
        wide_TD: ``[T, D]`` hidden states.
        weight_VD: ``[V, D]`` table.
        targets_T: ``[T]`` true token ids.
        block: ids that are left out.
        keep_low: whether chunks are multiplied in the dtype of the table.
        mean_row_out_TD: ``[T, D]``, overwritten with ``sum_v p_v W_v``; None if no gradient is needed.

    Returns:
        Log-sum-exp and true logit over the rows outside ``block``, ``[T]`` each.
    """
    peak_T = wide_TD.new_full((wide_TD.shape[0],), float("-inf"))
    total_T = torch.zeros_like(peak_T)  # sum of exp(logit - peak) so far
    target_logit_T = torch.zeros_like(peak_T)
    if mean_row_out_TD is not None:
        mean_row_out_TD.zero_()
    for start, stop in _chunks(weight_VD, num_tokens=wide_TD.shape[0], without=block):
        rows_CD = weight_VD[start:stop] if keep_low else weight_VD[start:stop].to(wide_TD.dtype)
        logits_TC = _product(wide_TD, rows_CD.t())

        is_target_here_T = (targets_T >= start) & (targets_T < stop)
        column_T1 = (targets_T - start).clamp(0, stop - start - 1).unsqueeze(1)
        target_logit_T = torch.where(is_target_here_T, logits_TC.gather(1, column_T1).squeeze(1), target_logit_T)

        new_peak_T = torch.maximum(peak_T, logits_TC.amax(dim=1))
        decay_T = (peak_T - new_peak_T).exp_()
        exponentials_TC = logits_TC.sub_(new_peak_T.unsqueeze(1)).exp_()
        total_T = total_T.mul_(decay_T).add_(exponentials_TC.sum(dim=1))
        if mean_row_out_TD is not None:
            mean_row_out_TD.mul_(decay_T.unsqueeze(1)).add_(_product(exponentials_TC, rows_CD))
        peak_T = new_peak_T
    if mean_row_out_TD is not None:
        mean_row_out_TD.div_(total_T.unsqueeze(1))
    return peak_T + total_T.log(), target_logit_T


class LowPrecisionProduct(torch.autograd.Function):
    """``h @ W^T`` in float32 for a trained low-precision ``W``, which is never cast as a whole.

    ``apply(wide_TD, weight_VD, keep_low)`` returns ``[T, V]``.
    """

    @staticmethod
    def forward(ctx: _Context, wide_TD: Tensor, weight_VD: Tensor, keep_low: bool) -> Tensor:
        """Return the ``[T, V]`` logits of ``[T, D]`` hidden states, chunk by chunk of the ``[V, D]`` table."""
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
        """Return the gradients of hidden states ``[T, D]`` and, if it trains, of the table ``[V, D]`` in its dtype."""
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
    """Reduce full logits to what the terms need, with one ``[T, V]`` buffer in backward.

    ``apply(logits_TV, delta_TK, targets_T, block)`` returns ``ce_T``, ``target_logit_T``, ``log_z_text_T`` and
    ``coord_TK``. Plain autograd would make a ``[T, V]`` gradient for each of the four and then add them.
    """

    @staticmethod
    def forward(
        ctx: _Context, logits_TV: Tensor, delta_TK: Tensor | None, targets_T: Tensor, block: range
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute the four outputs.

        Args:
            ctx: keeps what backward needs.
            logits_TV: ``[T, V]`` logits, with ``delta_TK`` already added to the columns from ``block.start`` on.
            delta_TK: ``[T, K]`` what the offsets added, given so that it gets a gradient; None without offsets.
            targets_T: ``[T]`` true token ids.
            block: ids of the coordinate block.

        Returns:
            ``ce_T``, ``target_logit_T``, ``log_z_text_T`` ``[T]`` each, and the coord logits ``[T, block]``.
        """
        ctx.set_materialize_grads(False)  # an output that no term reads has the gradient None and costs nothing
        ctx.block = block
        ctx.delta_width = 0 if delta_TK is None else delta_TK.shape[1]
        before = slice(block.start)
        after = slice(block.stop, None)
        ce_T = logits_TV.new_empty(logits_TV.shape[0])
        text_T = logits_TV.new_empty(logits_TV.shape[0])
        for tokens in _token_slices(logits_TV):
            ce_T[tokens] = F.cross_entropy(logits_TV[tokens], targets_T[tokens], reduction="none")
            log_z_before_T = logits_TV[tokens, before].logsumexp(dim=1)
            log_z_after_T = logits_TV[tokens, after].logsumexp(dim=1)
            text_T[tokens] = torch.logaddexp(log_z_before_T, log_z_after_T)
        ctx.save_for_backward(logits_TV, targets_T, text_T)
        target_logit_T = logits_TV.gather(1, targets_T.unsqueeze(1)).squeeze(1)
        return ce_T, target_logit_T, text_T, logits_TV[:, block.start : block.stop].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradients of ``logits_TV`` and ``delta_TK``, added up in one buffer.

        d ce / dz = softmax(z) - onehot(y);  d log_z_text / dz = softmax over the text columns alone;
        d target_logit / dz = onehot(y).
        """
        logits_TV, targets_T, text_T = ctx.saved_tensors
        grad_ce_T, grad_target_T, grad_text_T, grad_coord_TK = grads
        before = slice(ctx.block.start)
        after = slice(ctx.block.stop, None)
        grad_TV = torch.zeros_like(logits_TV) if grad_ce_T is None else torch.empty_like(logits_TV)
        for tokens in _token_slices(logits_TV):
            if grad_ce_T is not None:
                grad_TV[tokens] = logits_TV[tokens].softmax(dim=1).mul_(grad_ce_T[tokens].unsqueeze(1))
            if grad_text_T is not None:
                for columns in (before, after):
                    probs = (logits_TV[tokens, columns] - text_T[tokens].unsqueeze(1)).exp_()
                    grad_TV[tokens, columns].addcmul_(probs, grad_text_T[tokens].unsqueeze(1))

        target_T1 = targets_T.unsqueeze(1)
        for grad_T, sign in ((grad_target_T, 1), (grad_ce_T, -1)):
            if grad_T is not None:
                at_target_T1 = grad_TV.gather(1, target_T1).add_(grad_T.unsqueeze(1), alpha=sign)
                grad_TV.scatter_(1, target_T1, at_target_T1)
        if grad_coord_TK is not None:
            grad_TV[:, ctx.block.start : ctx.block.stop] += grad_coord_TK

        grad_delta_TK = None
        if ctx.delta_width:
            grad_delta_TK = grad_TV[:, ctx.block.start : ctx.block.start + ctx.delta_width].clone()
        return grad_TV, grad_delta_TK, None, None


def _token_slices(logits_TV: Tensor) -> Iterator[slice]:
    """Return slices of tokens whose logits stay below the chunk size."""
    step = max(1, _chunk_elements(logits_TV) // logits_TV.shape[1])
    return (slice(start, start + step) for start in range(0, logits_TV.shape[0], step))


def _chunks(weight_VD: Tensor, *, num_tokens: int, without: range | None = None) -> Iterator[tuple[int, int]]:
    """Yield row ranges of the table whose logits, and whose own copy, stay below the chunk size."""
    num_rows, width = weight_VD.shape
    step = max(1, _chunk_elements(weight_VD) // max(num_tokens, width))
    ranges = [(0, num_rows)]
    if without is not None:
        ranges = [(0, without.start), (without.stop, num_rows)]
    for low, high in ranges:
        for start in range(low, high, step):
            yield start, min(start + step, high)


def _chunk_elements(tensor: Tensor) -> int:
    return CHUNK_ELEMENTS_CPU if tensor.device.type == "cpu" else CHUNK_ELEMENTS_GPU


def multiplies_low(hidden_TD: Tensor, weight_VD: Tensor) -> bool:
    """Return whether tensor cores can multiply both in half precision and accumulate in float32.

    Otherwise each chunk of the table is cast to float32 before it is multiplied.
    """
    return hidden_TD.is_cuda and hidden_TD.dtype == weight_VD.dtype and weight_VD.dtype.itemsize < 4


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a @ b`` without gradients, multiplied in the dtype of ``b`` and accumulated in the dtype of ``a``."""
    if a.dtype == b.dtype:
        return a @ b
    return torch.mm(a.to(b.dtype), b, out_dtype=a.dtype)

"""What gradient each term gives: cheaply at the head's input, on request at the parameters."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, distributed, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from coordexp.losses.criterion import Criterion
from coordexp.losses.term import TermInputs
from coordexp.runs import ranks


def gradients_at_hidden(criterion: Criterion, inputs: TermInputs, hidden_TD: Tensor) -> dict[str, Tensor]:
    """Return, for each term that is on, the norm of its unweighted gradient at the head's input.

    Costs one backward pass through the head a term; the model takes no part, and the graph is kept.
    Zero means that the term teaches nothing from this batch.

    Args:
        criterion: gives the terms.
        inputs: one microbatch.
        hidden_TD: ``[T, D]`` what ``inputs`` were computed from.
    """
    norms: dict[str, Tensor] = {}
    for weighted in criterion.terms:
        if weighted.weight > 0:
            norms[weighted.term.name] = _norm(_gradients(weighted.term(inputs), [hidden_TD]))
    return norms


class TermGradients:
    """Adds up each term's gradient at the parameters over the microbatches and ranks of one step."""

    def __init__(self) -> None:
        self._sums: dict[str, list[Tensor]] = {}

    def add(self, shares: Mapping[str, Tensor], parameters: Sequence[nn.Parameter]) -> None:
        """Add a microbatch's weighted shares of the loss: one backward pass each, and the graph is kept.

        Memory: one copy of every trained parameter's gradient a term, so a few copies under full tuning.
        """
        for name, share in shares.items():
            found = _gradients(share, parameters)
            before = self._sums.get(name)
            self._sums[name] = found if before is None else [a + b for a, b in zip(before, found, strict=True)]

    def norms(self) -> dict[str, float]:
        """Return the norm of each term's gradient, added up over the ranks, and start again."""
        if ranks.in_process_group():
            for gradient in (gradient for gradients in self._sums.values() for gradient in gradients):
                distributed.all_reduce(gradient)
        norms = {name: float(_norm(gradients)) for name, gradients in self._sums.items()}
        self._sums = {}
        return norms


class TermGradientLog(TrainerCallback):
    """Passes the norms of a step in which term gradients were measured to ``on_norms``, with the step."""

    def __init__(self, gradients: TermGradients, on_norms: Callable[[int, dict[str, float]], None]) -> None:
        self._gradients = gradients
        self._on_norms = on_norms

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Read the norms of the step that ended, if there are any."""
        norms = self._gradients.norms()
        if norms:
            self._on_norms(state.global_step, norms)


def _gradients(value: Tensor, at: Sequence[Tensor]) -> list[Tensor]:
    if not value.requires_grad:
        return [torch.zeros_like(tensor) for tensor in at]
    return list(torch.autograd.grad(value, at, retain_graph=True, allow_unused=True, materialize_grads=True))


def _norm(gradients: Iterable[Tensor]) -> Tensor:
    return torch.stack([gradient.float().norm() for gradient in gradients]).norm()

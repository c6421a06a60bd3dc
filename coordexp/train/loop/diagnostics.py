"""What is measured beside the loss, alike for every group: the coord distribution, and the gradient of each term.

Shapes: T supervised tokens, N coord tokens, K bins, M boxes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.losses.criterion import Criterion
from coordexp.losses.term import TermInputs
from coordexp.runs import ranks

NAMES = (
    "coord_vocab_mass",
    "expected_bin_mae",
    "true_bin_prob",
    "entropy",
    "width",
    "inverted_fraction",
)
P90_NAME = "expected_bin_p90"


@dataclass(frozen=True)
class Diagnostics:
    """Diagnostics of one batch.

    Attributes:
        sums: name -> (sum, count).
        errors_N: ``[N]`` |expected bin - true bin|, whose distribution gives ``expected_bin_p90``.
    """

    sums: dict[str, tuple[Tensor, int]]
    errors_N: Tensor


@torch.no_grad()
def coord_diagnostics(inputs: TermInputs) -> Diagnostics:
    """Measure the coord distributions of one batch.

    - ``coord_vocab_mass``: probability of the coord vocabulary (of the digits in the text arm) at coord positions. The
      others look at the distribution *within* the coord vocabulary, and are absent in the text arm:
    - ``expected_bin_mae``: |expected bin - true bin|, in bins.
    - ``true_bin_prob``: probability of the true bin.
    - ``entropy``: in nats; ln 1000 = 6.9 for a flat one.
    - ``width``: standard deviation, in bins.
    - ``inverted_fraction``: share of expected boxes with x2 < x1 or y2 < y1.
    """
    num_coord, num_boxes = inputs.coord_bins_N.numel(), inputs.box_rows_M4.shape[0]
    mass_T = (inputs.head.log_z_coord_T - inputs.head.log_z_text_T).sigmoid()
    mass = (mass_T.masked_fill(~inputs.is_coord_T, 0).sum(), num_coord)
    if inputs.head.coord_logits_NK.shape[1] != NUM_BINS:
        return Diagnostics(sums={"coord_vocab_mass": mass}, errors_N=mass_T[:0])
    log_p_NK = inputs.head.coord_logits_NK.log_softmax(dim=1)
    p_NK = log_p_NK.exp()
    bins_K = torch.arange(NUM_BINS, dtype=p_NK.dtype, device=p_NK.device)
    expected_N = (p_NK * bins_K).sum(dim=1)  # a matrix product would lose bits under autocast and TF32
    variance_N = (p_NK * (bins_K - expected_N.unsqueeze(1)).square()).sum(dim=1)
    errors_N = (expected_N - inputs.coord_bins_N).abs()
    boxes_M4 = inputs.expected_boxes()
    inverted_M = (boxes_M4[:, 2:] < boxes_M4[:, :2]).any(dim=1)
    sums = {
        "coord_vocab_mass": mass,
        "expected_bin_mae": (errors_N.sum(), num_coord),
        "true_bin_prob": (p_NK.gather(1, inputs.coord_bins_N.unsqueeze(1)).sum(), num_coord),
        "entropy": (torch.special.entr(p_NK).sum(), num_coord),
        "width": (variance_N.sqrt().sum(), num_coord),
        "inverted_fraction": (inverted_M.sum(), num_boxes),
    }
    return Diagnostics(sums=sums, errors_N=errors_N)


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

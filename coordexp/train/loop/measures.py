"""What a step measures beside its loss, in the same way for every group, added up between two logging steps.

Shapes: T supervised tokens, N coord tokens, K bins, M boxes, D hidden, U units, Q measures, R ranks of an object in its
answer, P places (the four slots of a box, then the R ranks).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, distributed, nn

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.losses.criterion import Criterion
from coordexp.losses.term import UNITS, TermInputs, Unit
from coordexp.metrics import PLACE_MEASURES, PLACES, RANKS
from coordexp.runs import ranks
from coordexp.runs.folder import CheckpointFolder

NAMES = ("coord_vocab_mass", "expected_bin_mae", "true_bin_prob", "entropy", "width", "inverted_fraction")
P90_NAME = "expected_bin_p90"
HIDDEN_GRADIENT = "gradient_at_hidden/"
ALL_GRAD_NORMS = "all_grad_norms"
_CELLS_PER_BIN = 4  # of the histogram that the 90th percentile is read from: it is right to a quarter of a bin
_FAR_BINS = (10, 50)  # how far a mean is from its likeliest bin: a distribution with two peaks shows there


@dataclass(frozen=True)
class Diagnostics:
    """Diagnostics of one batch."""

    sums: dict[str, tuple[Tensor, int]]  # name -> (sum, count)
    errors_N: Tensor  # |expected bin - true bin|, whose distribution gives ``expected_bin_p90``
    by_place: Tensor | None = None  # ``[Q + 1, P]`` sums of each measure, and their counts in the last row


@torch.no_grad()
def coord_diagnostics(inputs: TermInputs) -> Diagnostics:
    """Measure the coord distributions of one batch; :mod:`coordexp.metrics` defines each number.

    All but ``coord_vocab_mass`` look at the distribution *within* the coord vocabulary, and are absent in the text arm.
    """
    num_coord = inputs.coord_bins_N.numel()
    num_boxes = inputs.box_rows_M4.shape[0]
    # P(coord vocabulary) = z_coord / (z_coord + z_text), from logarithms.
    mass_T = (inputs.head.log_z_coord_T - inputs.head.log_z_text_T).sigmoid()
    mass = (mass_T.masked_fill(~inputs.is_coord_T, 0).sum(), num_coord)
    if inputs.head.coord_logits_NK.shape[1] != NUM_BINS:
        return Diagnostics(sums={"coord_vocab_mass": mass}, errors_N=mass_T[:0])
    log_p_NK = inputs.head.coord_logits_NK.log_softmax(dim=1)
    p_NK = log_p_NK.exp()
    bins_K = torch.arange(NUM_BINS, dtype=p_NK.dtype, device=p_NK.device)
    expected_N = (p_NK * bins_K).sum(dim=1)  # a matrix product would lose bits under autocast and TF32
    entropy_NK = torch.special.entr(p_NK)
    variance_N = (p_NK * (bins_K - expected_N.unsqueeze(1)).square()).sum(dim=1)
    errors_N = (expected_N - inputs.coord_bins_N).abs()
    boxes_M4 = inputs.expected_boxes()
    width_N = variance_N.sqrt()
    inverted_M = (boxes_M4[:, 2:] < boxes_M4[:, :2]).any(dim=1)
    sums = {
        "coord_vocab_mass": mass,
        "expected_bin_mae": (errors_N.sum(), num_coord),
        "true_bin_prob": (p_NK.gather(1, inputs.coord_bins_N.unsqueeze(1)).sum(), num_coord),
        "entropy": (entropy_NK.sum(), num_coord),
        "width": (width_N.sum(), num_coord),
        "inverted_fraction": (inverted_M.sum(), num_boxes),
    }
    argmax_N = inputs.head.coord_logits_NK.argmax(dim=1)
    gap_N = (expected_N - argmax_N).abs()
    measures_N = {
        "expected_bin_mae": errors_N,
        "argmax_bin_mae": (argmax_N - inputs.coord_bins_N).abs(),
        "entropy": entropy_NK.sum(dim=1),
        "width": width_N,
        **{f"far_{bins}_fraction": gap_N > bins for bins in _FAR_BINS},
    }
    values_QN = torch.stack([measures_N[name].double() for name in PLACE_MEASURES])
    return Diagnostics(sums, errors_N, sums_by_place(values_QN, inputs))


def sums_by_place(values_QN: Tensor, inputs: TermInputs) -> Tensor:
    """Add up values of coord tokens by the slot of their box and by the rank of their object in its answer.

    Only whole boxes count: an object that ``data.max_length`` cuts lacks some of its slots.

    Args:
        values_QN: ``[Q, N]`` float64, Q values of each coord token.
        inputs: say which tokens make a box, and which object of its image the box is.

    Returns:
        ``[Q + 1, P]`` float64: sums in the order of ``PLACES``, and in the last row how many values were added.
    """
    # A row of ones below the values is summed like them, and gives the counts.
    ones_1N = torch.ones_like(values_QN[:1])
    values_M4 = torch.cat([values_QN, ones_1N])[:, inputs.box_rows_M4]  # [Q + 1, M, 4]
    by_slot = values_M4.sum(dim=1)

    first_places = torch.tensor(list(RANKS.values())[1:], device=values_QN.device)
    rank_M = torch.bucketize(inputs.box_object_M, first_places, right=True)
    # A product instead of index_add_, whose order of addition is not fixed on a GPU.
    belongs_MR = nn.functional.one_hot(rank_M, len(RANKS)).double()
    by_rank = values_M4.sum(dim=2) @ belongs_MR
    return torch.cat([by_slot, by_rank], dim=1)


def gradients_at_hidden(criterion: Criterion, inputs: TermInputs, hidden_TD: Tensor) -> dict[str, Tensor]:
    """Measure how strongly each term that is on pulls at the head's input.

    It costs one backward pass through the head a term. The model takes no part, and the graph is kept.

    Args:
        criterion: the terms.
        inputs: what they read, computed from ``hidden_TD``.
        hidden_TD: ``[T, D]`` hidden states of the supervised tokens.

    Returns:
        The norm of each term's unweighted gradient, by name. Zero means that the term teaches nothing from this batch.
    """
    on = [weighted.term for weighted in criterion.terms if weighted.weight > 0]
    return {term.name: _norm(_gradients(term(inputs), [hidden_TD])) for term in on}


class TermGradients:
    """Adds up each term's gradient at the parameters over the microbatches and ranks of one step.

    Gradients are added as vectors, and the norm is taken once at the end: norms of microbatches would add up to more.
    """

    def __init__(self) -> None:
        self._sums: dict[str, list[Tensor]] = {}

    def add(self, shares: Mapping[str, Tensor], parameters: Sequence[nn.Parameter]) -> None:
        """Add a microbatch: one backward pass for each term, and the graph is kept.

        Memory: one copy of every trained parameter's gradient for each term, so a few copies under full tuning.

        Args:
            shares: each term's weighted share of the step's loss, by name.
            parameters: what trains.
        """
        for name, share in shares.items():
            gradients = _gradients(share, parameters)
            before = self._sums.get(name)
            if before is None:
                self._sums[name] = gradients
            else:
                self._sums[name] = [summed + added for summed, added in zip(before, gradients, strict=True)]

    def norms(self) -> dict[str, float]:
        """Return the norm of each term's gradient over all ranks, by name, and start again."""
        if ranks.in_process_group():
            for gradient in chain.from_iterable(self._sums.values()):
                distributed.all_reduce(gradient)
        norms = {name: float(_norm(gradients)) for name, gradients in self._sums.items()}
        self._sums = {}
        return norms


def _gradients(value: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of a scalar at each tensor; zeros if it depends on none of them."""
    if not value.requires_grad:
        return [torch.zeros_like(tensor) for tensor in tensors]
    return list(torch.autograd.grad(value, tensors, retain_graph=True, allow_unused=True, materialize_grads=True))


def _norm(gradients: Iterable[Tensor]) -> Tensor:
    return torch.stack([gradient.float().norm() for gradient in gradients]).norm()


class RunningAverages:
    """Adds up values and what they will be divided by, on their device.

    Nothing waits for the device, or for other ranks, before ``read``: it exchanges everything as one tensor::

        [ sums by name | counts by name | sums and counts by place | histogram of errors ]
    """

    def __init__(self) -> None:
        self._totals: dict[str, tuple[Tensor, float]] = {}
        self._errors: Tensor | None = None
        self._by_place: Tensor | None = None

    def add(self, name: str, value: Tensor | float, count: float = 1) -> None:
        """Add a value, and what its mean will be divided by."""
        value = torch.as_tensor(value).detach().to(torch.float64)
        summed, counted = self._totals.get(name, (torch.zeros_like(value), 0.0))
        # Sums that a resumed run took from a checkpoint are on the CPU.
        self._totals[name] = (summed.to(value.device) + value, counted + count)

    def add_terms(self, criterion: Criterion, sums: Mapping[str, Tensor], counts_U: Tensor) -> None:
        """Add a microbatch's terms and units.

        Args:
            criterion: says which unit each term is divided by.
            sums: the sum of each term, by name.
            counts_U: ``[U]`` units of the microbatch, on the CPU.
        """
        counts: dict[Unit, float] = dict(zip(UNITS, counts_U.tolist(), strict=True))
        for name, value in sums.items():
            self.add(name, value, counts[criterion.unit_of(name)])
        for unit, count in counts.items():
            self.add(f"num_{unit}", count)

    def add_diagnostics(self, diagnostics: Diagnostics) -> None:
        """Add the diagnostics of a microbatch."""
        for name, (value, count) in diagnostics.sums.items():
            self.add(name, value, count)
        self.add_errors(diagnostics.errors_N)
        if diagnostics.by_place is not None:
            self.add_places(diagnostics.by_place)

    def add_places(self, sums_and_counts: Tensor) -> None:
        """Add ``[Q + 1, P]`` sums and counts by place, see :func:`sums_by_place`."""
        added = sums_and_counts.detach()
        if self._by_place is None:
            self._by_place = added
        else:
            self._by_place = self._by_place.to(added.device) + added

    def add_errors(self, errors_N: Tensor) -> None:
        """Add ``[N]`` errors in bins to the histogram that the 90th percentile is read from."""
        if self._errors is None:
            self._errors = torch.zeros(NUM_BINS * _CELLS_PER_BIN, dtype=torch.float64, device=errors_N.device)
        self._errors = self._errors.to(errors_N.device)
        cells_N = (errors_N.detach() * _CELLS_PER_BIN).long().clamp(0, self._errors.numel() - 1)
        self._errors.scatter_add_(0, cells_N, torch.ones_like(cells_N, dtype=torch.float64))

    def read(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return means and sums over all ranks, by name, and start again.

        A name whose count is 0 on every rank has no mean. Every rank must have added the same names.
        """
        names = sorted(self._totals)
        if not names:
            return {}, {}
        devices = [total.device for total, _ in self._totals.values()]
        device = next((device for device in devices if device.type != "cpu"), devices[0])
        totals = torch.stack([self._totals[name][0].to(device) for name in names])
        counts = torch.tensor([self._totals[name][1] for name in names], dtype=torch.float64, device=device)
        by_place = self._by_place
        if by_place is None:
            by_place = torch.zeros(len(PLACE_MEASURES) + 1, 0, dtype=torch.float64)
        errors = torch.zeros(0, dtype=torch.float64) if self._errors is None else self._errors

        table = torch.cat([totals, counts, by_place.flatten().to(device), errors.to(device)])
        if ranks.in_process_group():
            distributed.all_reduce(table)
        values = table.tolist()  # one copy to the CPU
        self._totals = {}
        self._errors = None
        self._by_place = None

        end_of_sums = len(names)
        end_of_counts = 2 * len(names)
        end_of_places = end_of_counts + by_place.numel()
        sums = dict(zip(names, values[:end_of_sums], strict=True))
        counts_by_name = dict(zip(names, values[end_of_sums:end_of_counts], strict=True))
        means = {name: sums[name] / count for name, count in counts_by_name.items() if count}
        if by_place.numel():
            means |= _means_by_place(values[end_of_counts:end_of_places])
        cells = values[end_of_places:]
        if sum(cells) and math.isfinite(means.get("expected_bin_mae", 0.0)):
            means[P90_NAME] = _percentile(cells, 0.9) / _CELLS_PER_BIN
        return means, sums

    def save(self, checkpoint: Path) -> None:
        """Write what this rank has added into a checkpoint; nothing if the checkpoint is at a logging step."""
        state: dict[str, Tensor] = {}
        for name, (total, count) in self._totals.items():
            state |= {f"sum/{name}": total.cpu(), f"count/{name}": torch.tensor(count, dtype=torch.float64)}
        if self._errors is not None:
            state["errors"] = self._errors.cpu()
        if self._by_place is not None:
            state["by_place"] = self._by_place.cpu()
        if state:
            save_file(state, CheckpointFolder(checkpoint).averages(ranks.rank()))

    def resume(self, checkpoint: Path) -> None:
        """Add what a checkpoint holds, so that the next row covers every step since the last one.

        With as many ranks as before, each takes its own file. With fewer or more, every file is still read once.
        """
        for rank, path in CheckpointFolder(checkpoint).all_averages().items():
            if rank % ranks.world_size() != ranks.rank():
                continue
            state = load_file(path)
            by_place = state.pop("by_place", None)
            if by_place is not None:
                self.add_places(by_place)
            errors = state.pop("errors", None)
            if errors is not None:
                self._errors = errors if self._errors is None else self._errors + errors
            names = [key.removeprefix("sum/") for key in state if key.startswith("sum/")]
            for name in names:
                self.add(name, state[f"sum/{name}"], float(state[f"count/{name}"]))


def _means_by_place(values: Sequence[float]) -> dict[str, float]:
    """Return ``MEASURE/PLACE`` -> mean from the flattened rows of :func:`sums_by_place`; an empty place is left out."""
    num_places = len(PLACES)
    *rows, counts = (values[start : start + num_places] for start in range(0, len(values), num_places))
    means: dict[str, float] = {}
    for measure, totals in zip(PLACE_MEASURES, rows, strict=True):
        for place, total, count in zip(PLACES, totals, counts, strict=True):
            if count:
                means[f"{measure}/{place}"] = total / count
    return means


def _percentile(cells: list[float], share: float) -> float:
    """Return the position, in cells, below which a share of the values lie, if they are spread evenly in a cell."""
    num_wanted = share * sum(cells)
    num_below = 0.0
    for cell, num_inside in enumerate(cells):
        if num_inside and num_below + num_inside >= num_wanted:
            return cell + (num_wanted - num_below) / num_inside
        num_below += num_inside
    return float(len(cells))


@dataclass(frozen=True)
class StepLog:
    """What is known at a logging step."""

    step: int
    means: dict[str, float]  # of each term and diagnostic since the last logging step
    sums: dict[str, float]  # since then: units, images, tokens, steps, clipped ones, gradient norms, seconds of waiting
    seconds: float  # wall time since then
    grad_norm: float  # of the last step, before clipping
    learning_rate: float  # of the first parameter group
    epoch: float

    def per_second(self, name: str) -> float:
        """Return a sum divided by the wall time."""
        return self.sums[name] / max(self.seconds, 1e-9)

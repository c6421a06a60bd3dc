"""Running averages between two logging steps, read once over all ranks; a checkpoint in between keeps them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, distributed

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.losses.criterion import Criterion
from coordexp.losses.term import UNITS, Unit
from coordexp.runs import ranks
from coordexp.runs.folder import CheckpointFolder
from coordexp.train.loop.diagnostics import P90_NAME, Diagnostics

HIDDEN_GRADIENT = "gradient_at_hidden/"
_CELLS_PER_BIN = 4


@dataclass(frozen=True)
class StepLog:
    """What is known at a logging step.

    Attributes:
        step: optimizer steps done.
        means: mean of each term and diagnostic since the last logging step.
        sums: units, images, tokens, steps, clipped ones, their gradient norms and waiting since then.
        seconds: wall time since then.
        grad_norm: norm before clipping, of the last step.
        learning_rate: rate of the first group.
        epoch: passes over the data.
    """

    step: int
    means: dict[str, float]
    sums: dict[str, float]
    seconds: float
    grad_norm: float
    learning_rate: float
    epoch: float

    @property
    def units(self) -> dict[str, float]:
        """Units counted since the last logging step, by name."""
        return {unit: self.sums[f"num_{unit}"] for unit in UNITS}

    @property
    def images_per_second(self) -> float:
        """Training images a second since the last logging step."""
        return self.sums["num_images"] / max(self.seconds, 1e-9)

    @property
    def data_wait_fraction(self) -> float:
        """Share of the time since the last logging step in which ranks waited for data, their mean."""
        return self.sums["data_wait_seconds"] / max(self.seconds, 1e-9)

    @property
    def hidden_gradients(self) -> dict[str, float]:
        """Norm of each term's gradient at the head's input, summed over the microbatches of this step."""
        prefix = HIDDEN_GRADIENT
        return {name.removeprefix(prefix): total for name, total in self.sums.items() if name.startswith(prefix)}


class RunningAverages:
    """Adds up values and what they are to be divided by; nothing is synchronised before ``read``."""

    def __init__(self) -> None:
        self._totals: dict[str, tuple[Tensor, float]] = {}
        self._errors: Tensor | None = None

    def add(self, name: str, value: Tensor | float, count: float = 1) -> None:
        """Add a summed value and the number of units it covers."""
        value = torch.as_tensor(value).detach().to(torch.float64)
        summed, counted = self._totals.get(name, (torch.zeros_like(value), 0.0))
        if summed.device != value.device:  # resumed sums come from the CPU
            summed = summed.to(value.device)
        self._totals[name] = (summed + value, counted + count)

    def add_terms(self, criterion: Criterion, sums: Mapping[str, Tensor], counts_U: Tensor) -> None:
        """Add a microbatch: its term sums, and its unit counts ``[U]`` on the CPU."""
        counts: dict[Unit, float] = dict(zip(UNITS, counts_U.tolist(), strict=True))
        for name, value in sums.items():
            self.add(name, value, counts[criterion.unit_of(name)])
        for unit, count in counts.items():
            self.add(f"num_{unit}", count)

    def add_diagnostics(self, diagnostics: Diagnostics) -> None:
        """Add a microbatch's diagnostics, and the distribution of its errors."""
        for name, (value, count) in diagnostics.sums.items():
            self.add(name, value, count)
        self.add_errors(diagnostics.errors_N)

    def add_errors(self, errors_N: Tensor) -> None:
        """Add errors in bins, of which the 90th percentile will be read."""
        if self._errors is None:
            self._errors = torch.zeros(NUM_BINS * _CELLS_PER_BIN, dtype=torch.float64, device=errors_N.device)
        if self._errors.device != errors_N.device:
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
        table, cells = _over_ranks(*self._tables(names))
        self._totals, self._errors = {}, None
        rows = list(zip(names, *table, strict=True))
        means = {name: total / count for name, total, count in rows if count}
        if sum(cells) and math.isfinite(means.get("expected_bin_mae", 0.0)):
            means[P90_NAME] = _percentile(cells, 0.9) / _CELLS_PER_BIN
        return means, {name: total for name, total, _ in rows}

    def save(self, checkpoint: Path) -> None:
        """Write what this rank has added into a checkpoint; nothing where the checkpoint is at a logging step."""
        state: dict[str, Tensor] = {}
        for name, (total, count) in self._totals.items():
            state |= {f"sum/{name}": total.cpu(), f"count/{name}": torch.tensor(count, dtype=torch.float64)}
        if self._errors is not None:
            state["errors"] = self._errors.cpu()
        if state:
            save_file(state, CheckpointFolder(checkpoint).averages(ranks.rank()))

    def resume(self, checkpoint: Path) -> None:
        """Add what a checkpoint kept, so that the next row covers every step since the last one.

        With as many ranks as before, each takes its own; with fewer or more, all parts are still taken once.
        """
        for rank, path in CheckpointFolder(checkpoint).all_averages().items():
            if rank % ranks.world_size() == ranks.rank():
                self._add_saved(load_file(path))

    def _add_saved(self, state: Mapping[str, Tensor]) -> None:
        for key, total in state.items():
            kind, _, name = key.partition("/")
            if kind == "sum":
                self.add(name, total, float(state[f"count/{name}"]))
            elif kind == "errors":
                self._errors = total.clone() if self._errors is None else self._errors + total.to(self._errors.device)

    def _tables(self, names: list[str]) -> tuple[Tensor, Tensor]:
        """Return sums and counts ``[2, names]``, and the distribution of errors, on one device."""
        devices = [total.device for total, _ in self._totals.values()]
        device = next((found for found in devices if found.type != "cpu"), devices[0])
        sums = torch.stack([self._totals[name][0].to(device) for name in names])
        counts = torch.tensor([self._totals[name][1] for name in names], dtype=torch.float64, device=device)
        errors = torch.zeros(0, dtype=torch.float64) if self._errors is None else self._errors
        return torch.stack([sums, counts]), errors.to(device)


def _over_ranks(table: Tensor, cells: Tensor) -> tuple[list[list[float]], list[float]]:
    """Add both up over the ranks in one exchange and bring them to the CPU in one copy."""
    both = torch.cat([table.flatten(), cells])
    if ranks.in_process_group():
        distributed.all_reduce(both)
    both = both.cpu()
    return both[: table.numel()].view(table.shape).tolist(), both[table.numel() :].tolist()


def _percentile(cells: list[float], share: float) -> float:
    """Return where ``share`` of the values lie below, in cells, evenly spread within a cell."""
    wanted, below = share * sum(cells), 0.0
    for at, inside in enumerate(cells):
        if inside and below + inside >= wanted:
            return at + (wanted - below) / inside
        below += inside
    return float(len(cells))

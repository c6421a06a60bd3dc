"""Sums, counts and distributions between two logging steps, read once over all ranks."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, distributed

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.losses.criterion import Criterion
from coordexp.losses.term import UNITS, Unit
from coordexp.train.checks.diagnostics import P90_NAME, Diagnostics

_CELLS_PER_BIN = 4


class Meter:
    """Adds up values and what they are to be divided by; nothing is synchronised before ``read``."""

    def __init__(self) -> None:
        """Start empty."""
        self._totals: dict[str, tuple[Tensor, float]] = {}
        self._errors: Tensor | None = None

    def add(self, name: str, value: Tensor | float, count: float = 1) -> None:
        """Add a summed value and the number of units it covers."""
        summed, counted = self._totals.get(name, (torch.zeros((), dtype=torch.float64), 0.0))
        value = torch.as_tensor(value).detach().to(torch.float64)
        self._totals[name] = (summed.to(value.device) + value, counted + count)

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
        self._errors = self._errors.to(errors_N.device)  # resumed sums come from the CPU
        cells_N = (errors_N.detach() * _CELLS_PER_BIN).long().clamp(0, self._errors.numel() - 1)
        self._errors.scatter_add_(0, cells_N, torch.ones_like(cells_N, dtype=torch.float64))

    def read(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return means and sums over all ranks, by name, and start again.

        A name whose count is 0 on every rank has no mean. Every rank must have added the same names.
        """
        names = sorted(self._totals)
        if not names:
            return {}, {}
        table, cells = _over_ranks(self._table(names))
        self._totals, self._errors = {}, None
        rows = list(zip(names, *table, strict=True))
        means = {name: total / count for name, total, count in rows if count}
        if sum(cells) and math.isfinite(means.get("expected_bin_mae", 0.0)):
            means[P90_NAME] = _percentile(cells, 0.9) / _CELLS_PER_BIN
        return means, {name: total for name, total, _ in rows}

    def state(self) -> dict[str, Tensor]:
        """Return what was added since the last ``read``, on this rank; a checkpoint in between keeps it."""
        sums = {f"sum/{name}": total.cpu() for name, (total, _) in self._totals.items()}
        counts = {
            f"count/{name}": torch.tensor(count, dtype=torch.float64) for name, (_, count) in self._totals.items()
        }
        return sums | counts | ({} if self._errors is None else {"errors": self._errors.cpu()})

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Add what a checkpoint kept."""
        for key, total in state.items():
            kind, _, name = key.partition("/")
            if kind == "sum":
                self.add(name, total, float(state[f"count/{name}"]))
            elif kind == "errors":
                self._errors = total.clone() if self._errors is None else self._errors + total.to(self._errors.device)

    def _table(self, names: list[str]) -> tuple[Tensor, Tensor]:
        devices = [total.device for total, _ in self._totals.values()]
        device = next((found for found in devices if found.type != "cpu"), devices[0])
        sums = torch.stack([self._totals[name][0].to(device) for name in names])
        counts = torch.tensor([self._totals[name][1] for name in names], dtype=torch.float64, device=device)
        errors = torch.zeros(0, dtype=torch.float64) if self._errors is None else self._errors
        return torch.stack([sums, counts]), errors.to(device)


def _over_ranks(parts: tuple[Tensor, Tensor]) -> tuple[list[list[float]], list[float]]:
    """Add both up over the ranks in one exchange and bring them to the CPU in one copy."""
    table, cells = parts
    both = torch.cat([table.flatten(), cells])
    if distributed.is_available() and distributed.is_initialized():
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

"""Sums and counts between two logging steps, read once over all ranks."""

from collections.abc import Mapping

import torch
from torch import Tensor, distributed

from coordexp.losses.criterion import Criterion
from coordexp.losses.term import Unit


class Meter:
    """Adds up values and what they are to be divided by; nothing is synchronised before ``read``."""

    def __init__(self) -> None:
        """Start empty."""
        self._totals: dict[str, tuple[Tensor, float]] = {}

    def add(self, name: str, value: Tensor | float, count: float = 1) -> None:
        """Add a summed value and the number of units it covers."""
        summed, counted = self._totals.get(name, (torch.zeros((), dtype=torch.float64), 0.0))
        value = torch.as_tensor(value).detach().to(torch.float64)
        self._totals[name] = (summed.to(value.device) + value, counted + count)

    def add_terms(self, criterion: Criterion, sums: Mapping[str, Tensor], counts: Mapping[Unit, int]) -> None:
        """Add a microbatch: its term sums and unit counts."""
        for name, value in sums.items():
            self.add(name, value, counts[criterion.unit_of(name)])
        for unit, count in counts.items():
            self.add(f"num_{unit}", float(count))

    def read(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return means and sums over all ranks, by name, and start again.

        A name whose count is 0 on every rank has no mean.
        """
        names = sorted(self._totals)
        if not names:
            return {}, {}
        devices = [total.device for total, _ in self._totals.values()]
        device = next((found for found in devices if found.type != "cpu"), devices[0])
        sums = torch.stack([self._totals[name][0].to(device) for name in names])
        counts = torch.tensor([self._totals[name][1] for name in names], dtype=torch.float64, device=device)
        table = torch.stack([sums, counts])
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(table)
        self._totals = {}
        rows = list(zip(names, *table.tolist(), strict=True))
        return {name: total / count for name, total, count in rows if count}, {name: total for name, total, _ in rows}

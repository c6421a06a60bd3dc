"""Which metric names a run may not log."""

from collections.abc import Iterable

from coordexp.metrics import find_metric


def unregistered(names: Iterable[str]) -> list[str]:
    """Return the names that nothing is declared for, sorted."""
    return sorted(name for name in set(names) if find_metric(name) is None)

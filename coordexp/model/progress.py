"""How long work says how far it is, without knowing who listens."""

from collections.abc import Callable

# Called with the name of a stage, how much of it is done and how much there is.
Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """Say nothing."""

"""How the parts of a report say how far they are."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with (what, done, to do)."""


def silent(what: str, done: int, total: int) -> None:
    """Show nothing."""
    del what, done, total

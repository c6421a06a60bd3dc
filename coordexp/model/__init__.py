"""Models: load, adapt, merge; and the small base that ships with the package."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordexp.model.loading import load
    from coordexp.model.merging.merge import merge

__all__ = ["load", "merge"]


def __getattr__(name: str) -> object:
    """Import ``load`` and ``merge`` when they are used: the import takes seconds, and few modules need them."""
    if name == "load":
        from coordexp.model.loading import load

        return load
    if name == "merge":
        from coordexp.model.merging.merge import merge

        return merge
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

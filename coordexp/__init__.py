"""Controlled experiments on coordinate losses for vision-language detectors."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordexp.evaluate.predict import predict as predict

__all__ = ["predict"]


def __getattr__(name: str) -> object:
    """Import :func:`predict` when it is asked for: it brings the libraries of the models, which take seconds."""
    if name == "predict":
        from coordexp.evaluate.predict import predict

        return predict
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

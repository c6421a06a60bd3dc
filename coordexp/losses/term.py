"""What a loss term is: a named function of one batch that returns ``(sum, count)``.

Shapes: T supervised tokens, N coord tokens, K bins, M boxes.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from coordexp.errors import ConfigError

Unit = Literal["tokens", "text_tokens", "coord_tokens", "boxes"]


@dataclass(frozen=True)
class TermInputs:
    """One batch as the terms see it.

    Attributes:
        log_z_T: ``[T]`` log-sum-exp of the logits over the whole vocabulary.
        log_z_coord_T: ``[T]`` the same over the coord vocabulary.
        log_z_text_T: ``[T]`` the same over everything else.
        target_logit_T: ``[T]`` logit of the true token.
        is_coord_T: ``[T]`` bool, the true token is a coord token.
        coord_logits_NK: ``[N, K]`` float32 logits of the coord vocabulary at coord positions.
        coord_bins_N: ``[N]`` int64 true bins.
        box_rows_M4: ``[M, 4]`` int64, rows of ``coord_logits_NK`` of x1, y1, x2, y2 of each box.
        boxes_norm_xyxy_M4: ``[M, 4]`` float32 ground-truth boxes, not quantised.
    """

    log_z_T: Tensor
    log_z_coord_T: Tensor
    log_z_text_T: Tensor
    target_logit_T: Tensor
    is_coord_T: Tensor
    coord_logits_NK: Tensor
    coord_bins_N: Tensor
    box_rows_M4: Tensor
    boxes_norm_xyxy_M4: Tensor


TermFunction = Callable[[TermInputs], tuple[Tensor, int]]


@dataclass(frozen=True)
class Term:
    """A registered term: ``compute`` sums its loss over its unit and counts the units."""

    name: str
    unit: Unit
    compute: TermFunction


_REGISTRY: dict[str, Term] = {}


def term(name: str, *, unit: Unit) -> Callable[[TermFunction], TermFunction]:
    """Register a function as the term ``name``, normalised by the number of ``unit`` in a step."""

    def register(compute: TermFunction) -> TermFunction:
        _REGISTRY[name] = Term(name=name, unit=unit, compute=compute)
        return compute

    return register


def find_term(name: str, *, package: str = "coordexp.losses") -> Term:
    """Return the term ``name``, importing every module of ``package`` if it is not known yet.

    Raises:
        ConfigError: if no module registers it.
    """
    if name not in _REGISTRY:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, package + "."):
            importlib.import_module(module.name)
    if name not in _REGISTRY:
        raise ConfigError(f"objective.extra: no loss term {name!r}; known terms: {', '.join(sorted(_REGISTRY))}")
    return _REGISTRY[name]

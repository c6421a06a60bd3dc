"""What a loss term is: a named function of one batch that returns ``(sum, count)``.

Shapes: T supervised tokens, N coord tokens, K bins, M boxes.
"""

# A term is written by the user: what is annotated as (Tensor, int) is checked nevertheless.
# pyright: reportUnnecessaryIsInstance=false, reportUnnecessaryComparison=false

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from coordexp.errors import ConfigError, CoordExpError

Unit = Literal["tokens", "text_tokens", "coord_tokens", "boxes"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True)
class TermInputs:
    """One batch as the terms see it.

    Attributes:
        log_z_T: ``[T]`` log-sum-exp of the logits over the whole vocabulary.
        log_z_coord_T: ``[T]`` the same over the coord vocabulary.
        log_z_text_T: ``[T]`` the same over everything else.
        target_logit_T: ``[T]`` logit of the true token.
        ce_T: ``[T]`` full-vocabulary cross-entropy of the true token.
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
    ce_T: Tensor
    is_coord_T: Tensor
    coord_logits_NK: Tensor
    coord_bins_N: Tensor
    box_rows_M4: Tensor
    boxes_norm_xyxy_M4: Tensor

    def num_units(self, unit: Unit) -> int:
        """Count a unit, from shapes alone: nothing is read from the device."""
        num_tokens, num_coord = self.log_z_T.shape[0], self.coord_bins_N.shape[0]
        counts: dict[Unit, int] = {
            "tokens": num_tokens,
            "text_tokens": num_tokens - num_coord,
            "coord_tokens": num_coord,
            "boxes": self.box_rows_M4.shape[0],
        }
        return counts[unit]


TermFunction = Callable[[TermInputs], tuple[Tensor, int]]
PerToken = Callable[[TermInputs], Tensor]


@dataclass(frozen=True)
class Term:
    """A registered term.

    Attributes:
        name: in configuration files and logs.
        unit: what its sum is divided by the number of.
        compute: its sum over a batch, and the number of units.
        per_token: its value at each supervised token; given by terms that share the tokens out
            among them, so that the criterion can add them up token by token.
    """

    name: str
    unit: Unit
    compute: TermFunction
    per_token: PerToken | None = None


@dataclass(frozen=True)
class _Registered:
    term: Term
    origin: tuple[str, str]  # module and function: the same one again is a reload, another one a clash


_REGISTRY: dict[str, _Registered] = {}


def term(name: str, *, unit: Unit) -> Callable[[TermFunction], TermFunction]:
    """Register a function as the term ``name``, normalised by the number of ``unit`` in a step.

    What the function returns is checked at every call, without reading the device.

    Raises:
        ConfigError: if another function has the name, the name cannot be part of a metric's name, or
            there is no such unit; at a call, if the result is not ``(sum, count)`` of that unit.
    """

    def register(function: TermFunction) -> TermFunction:
        made = Term(name=name, unit=unit, compute=_checked(function, name, unit))
        _register(made, function.__module__, function.__qualname__)
        return function

    return register


def token_term(name: str) -> Callable[[PerToken], PerToken]:
    """Register a function that gives its value at every supervised token, ``[T]``; the unit is tokens.

    Raises:
        ConfigError: as :func:`term`; at a call, if the result is not a float tensor ``[T]``.
    """

    def register(function: PerToken) -> PerToken:
        @functools.wraps(function)
        def per_token(inputs: TermInputs) -> Tensor:
            values_T = function(inputs)
            if (
                not isinstance(values_T, Tensor)
                or values_T.shape != inputs.log_z_T.shape
                or not values_T.is_floating_point()
            ):
                raise ConfigError(
                    f"loss term {name!r} ({function.__module__}) returned {_shown(values_T)}, "
                    f"expected a float tensor of shape {tuple(inputs.log_z_T.shape)}, one value for each token"
                )
            return values_T

        def compute(inputs: TermInputs) -> tuple[Tensor, int]:
            return per_token(inputs).sum(), inputs.num_units("tokens")

        made = Term(name=name, unit="tokens", compute=compute, per_token=per_token)
        _register(made, function.__module__, function.__qualname__)
        return function

    return register


def find_term(name: str, *, package: str = "coordexp.losses") -> Term:
    """Return the term ``name`` of ``package``; every file of it is imported, new ones are found.

    All of them at every call: which terms exist, and whether two files clash, must not depend on
    what was imported before.

    Raises:
        ConfigError: if no file registers the name, two do, or a file cannot be imported.
    """
    importlib.invalidate_caches()
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        _import(module.name)
    if name not in _REGISTRY:
        raise ConfigError(f"objective.extra: no loss term {name!r}; known terms: {', '.join(sorted(_REGISTRY))}")
    return _REGISTRY[name].term


def _register(made: Term, module: str, function: str) -> None:
    if _NAME.fullmatch(made.name) is None:
        raise ConfigError(f"{module}: loss term {made.name!r}: expected a name of letters, digits and underscores")
    if made.unit not in get_args(Unit):
        units = ", ".join(get_args(Unit))
        raise ConfigError(f"{module}: loss term {made.name!r} has the unit {made.unit!r}, expected one of {units}")
    known = _REGISTRY.get(made.name)
    if known is not None and known.origin != (module, function):
        raise ConfigError(
            f"loss term {made.name!r} is registered twice, by {'.'.join(known.origin)} and {module}.{function}; "
            "give one of them another name"
        )
    _REGISTRY[made.name] = _Registered(made, (module, function))


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except CoordExpError:
        raise
    except Exception as error:  # whatever a user's file may raise
        raise ConfigError(
            f"the loss file {module} cannot be imported: {type(error).__name__}: {error}; mend it or take it away"
        ) from error


def _checked(function: TermFunction, name: str, unit: Unit) -> TermFunction:
    """Wrap a term so that a wrong result is one sentence, not a wrong loss."""

    @functools.wraps(function)
    def compute(inputs: TermInputs) -> tuple[Tensor, int]:
        result = function(inputs)
        problem = _problem(result, expected=inputs.num_units(unit), unit=unit)
        if problem is not None:
            raise ConfigError(f"loss term {name!r} ({function.__module__}) returned {problem}")
        return result

    return compute


def _problem(result: object, *, expected: int, unit: Unit) -> str | None:
    units = unit.replace("_", " ")
    if not isinstance(result, tuple) or len(result) != 2:
        return f"{_shown(result)}, expected (sum, count): a scalar float tensor and the int number of {units}"
    value, count = result
    if not isinstance(value, Tensor) or value.ndim != 0 or not value.is_floating_point():
        return f"{_shown(value)} as its sum, expected a scalar float tensor"
    if not isinstance(count, int) or isinstance(count, bool):
        return f"{_shown(count)} as its count, expected an int: the number of {units}, from a shape"
    if count != expected:
        return f"the count {count}, but the batch has {expected} {units}, the unit it is registered with"
    return None


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"{type(value).__name__} {value!r:.60}"

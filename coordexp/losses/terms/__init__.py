"""The loss terms, one a file, and how they are found: by their names."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

from pydantic import ValidationError

from coordexp.errors import ConfigError, CoordExpError
from coordexp.losses.term import UNITS, Term, TokenTerm
from coordexp.metrics import find_metric, loss_metric

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def loss_terms() -> dict[str, type[Term]]:
    """Return the class of every loss term by name, sorted.

    All files are looked at in every call, and nothing is remembered: which terms exist, and whether two files
    clash, must not depend on what was imported before. A file whose name begins with ``_`` is no term.

    Raises:
        ConfigError: if a file cannot be imported, is not one term, or has the name of another file.
    """
    importlib.invalidate_caches()
    files: dict[str, Path] = {}
    for folder in __path__:
        for module in pkgutil.iter_modules([folder]):
            if module.name.startswith("_"):
                continue
            file = Path(folder) / f"{module.name}.py"
            if module.name in files:
                raise ConfigError(f"two files are called {module.name}: {files[module.name]} and {file}; rename one")
            files[module.name] = file
    return {name: _term_of(name) for name in sorted(files)}


def _term_of(name: str) -> type[Term]:
    """Return the one term that a file defines."""
    try:
        module = importlib.import_module(f"{__name__}.{name}")
    except CoordExpError:
        raise
    except Exception as error:  # whatever a user's file may raise
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        where = f"the loss file {__name__}.{name} cannot be imported"
        raise ConfigError(f"{where}: {reason}; fix it or remove it") from error
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Term) and value.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise ConfigError(f"{module.__name__}: expected one subclass of Term, found {len(found)}")
    problem = _problem(found[0], name)
    if problem:
        raise ConfigError(f"{module.__name__}: {found[0].__name__} {problem}")
    return found[0]


def _problem(term: type[Term], name: str) -> str | None:
    missing = [attribute for attribute in ("name", "unit", "formula") if not hasattr(term, attribute)]
    if missing:
        return f"has no class attribute {missing[0]}"
    if term.name != name or _NAME.fullmatch(name) is None:
        return f"has the name {term.name!r}, expected that of its file, {name!r}, of letters, digits and underscores"
    units = ("tokens",) if issubclass(term, TokenTerm) else UNITS  # TokenTerms are summed together, token by token
    if term.unit not in units:
        return f"has the unit {term.unit!r}, expected one of {', '.join(units)}"
    if find_metric(loss_metric("train", term.metric_name())) is None:
        return f"is logged as {term.metric_name()!r}, which is no metric (coordexp/metrics.py)"
    if inspect.isabstract(term):
        return f"does not define {', '.join(sorted(term.__abstractmethods__))}"
    for knob, field in term.model_fields.items():
        if field.is_required():
            return f"has the knob {knob} without a default"
    if "weight" in term.model_fields:
        return "has a knob called weight, which is what multiplies the term in objective.extra"
    try:
        term.model_validate({})
    except ValidationError as error:
        first = error.errors()[0]
        return f"has a wrong default for the knob {first['loc'][0]}, {first['input']!r}: {first['msg']}"
    return None

"""The loss terms, one per file. A term is found by the name of its file."""

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

    Every call looks at all files and caches nothing. Which terms exist, and whether two files clash, must not depend on
    what was imported before. A file whose name begins with ``_`` is not a term.

    Raises:
        ConfigError: if a file cannot be imported, does not define exactly one valid term, or has the same name as
            another file.
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
    return {name: _import_term(name) for name in sorted(files)}


def _import_term(name: str) -> type[Term]:
    """Return the one term that a file defines."""
    try:
        module = importlib.import_module(f"{__name__}.{name}")
    except CoordExpError:
        raise
    except Exception as error:  # whatever a user's file may raise
        first_line = str(error).partition("\n")[0]
        raise ConfigError(
            f"the loss file {__name__}.{name} cannot be imported: {type(error).__name__}: {first_line}; "
            "fix it or remove it"
        ) from error
    terms = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Term) and value.__module__ == module.__name__
    ]
    if len(terms) != 1:
        raise ConfigError(f"{module.__name__}: expected one subclass of Term, found {len(terms)}")
    (term,) = terms
    problem = _problem(term, name)
    if problem:
        raise ConfigError(f"{module.__name__}: {term.__name__} {problem}")
    return term


def _problem(term: type[Term], name: str) -> str | None:
    """Return what is wrong with a class, as the end of a sentence about it; None if nothing is."""
    missing = [attribute for attribute in ("name", "unit", "formula") if not hasattr(term, attribute)]
    if missing:
        return f"has no class attribute {missing[0]}"
    if term.name != name or _NAME.fullmatch(name) is None:
        return (
            f"has the name {term.name!r}, expected the name of its file, {name!r}, of letters, digits and underscores"
        )
    # The criterion adds all TokenTerms token by token and divides their sum once, by the tokens.
    units = ("tokens",) if issubclass(term, TokenTerm) else UNITS
    if term.unit not in units:
        return f"has the unit {term.unit!r}, expected one of {', '.join(units)}"
    if find_metric(loss_metric("train", term.metric_name())) is None:
        return f"is logged as {term.metric_name()!r}, which is not a metric of coordexp/metrics.py"
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
        first_error = error.errors()[0]
        knob = first_error["loc"][0]
        return f"has a wrong default for the knob {knob}, {first_error['input']!r}: {first_error['msg']}"
    return None

"""What checks find: a run stops at the first failure, and ``doctor`` shows everything.

A check is written once, in the room of the run that needs it, as a generator: it yields a finding for
each thing it looked at, and returns what it read.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Literal, TypeVar, cast

from coordexp.errors import CoordExpError, summary

Verdict = Literal["ok", "warning", "failure"]  # warning: a run would start, but look at this; failure: it would not
_Value = TypeVar("_Value")
# What the libraries behind a check raise; torch's own errors are RuntimeErrors.
_LIBRARY_ERRORS = (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OSError, ImportError)


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str  # what was looked at
    verdict: Verdict
    sentence: str  # what is there, or what is wrong, where, and what to do
    error: Exception | None = field(default=None, compare=False, repr=False)  # of a failure: what a run raises


Check = Generator[Finding, None, _Value]


def ok(check: str, sentence: str) -> Finding:
    return Finding(check, "ok", sentence)


def warning(check: str, sentence: str) -> Finding:
    return Finding(check, "warning", sentence)


def failure(check: str, error: Exception) -> Finding:
    if isinstance(error, CoordExpError):
        sentence = str(error)
    elif isinstance(error, OSError) and error.strerror:
        sentence = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        sentence = f"the check itself failed ({summary(error)})"
    return Finding(check, "failure", sentence, error)


def attempt(check: str, function: Callable[[], _Value]) -> Check[_Value | None]:
    """Call a function that raises what is wrong: that becomes a failure of ``check``, and the value None."""
    try:
        return function()
    except _LIBRARY_ERRORS as error:  # ours are ValueErrors
        yield failure(check, error)
        return None


def guarded(check: str, steps: Check[_Value]) -> Check[_Value | None]:
    """Pass on what ``steps`` yields; an error that ends them becomes a failure of ``check``, and the value None."""
    try:
        return (yield from steps)
    except _LIBRARY_ERRORS as error:
        yield failure(check, error)
        return None


def require(check: Check[_Value]) -> _Value:
    """Do a check as a run does: raise its first failure, of whatever kind that is, or return its value."""
    while True:
        try:
            finding = next(check)
        except StopIteration as end:
            return cast("_Value", end.value)
        if finding.error is not None:
            raise finding.error


def collect(check: Check[_Value]) -> tuple[list[Finding], _Value]:
    """Do a check as ``doctor`` does: return all findings, and its value."""
    found: list[Finding] = []
    while True:
        try:
            found.append(next(check))
        except StopIteration as end:
            return found, cast("_Value", end.value)


def duration_text(seconds: float) -> str:
    """Return ``2 h 5 min``, ``5 min 3 s`` or ``3 s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def size_text(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**28 else f"{num_bytes / 2**20:.1f} MiB"

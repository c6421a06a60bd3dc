"""What checks find. A run stops at the first failure; ``doctor`` shows everything.

A check is written once, beside the code that needs it, as a generator: it yields a finding for each thing that it
looked at, and returns what it read. :func:`require` and :func:`collect` are the two ways to run it.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Literal, TypeVar, cast

from coordexp.errors import CoordExpError, summary

Verdict = Literal["ok", "warning", "failure"]  # with a warning a run would start, with a failure it would not
_Value = TypeVar("_Value")
# What the libraries behind a check raise. Errors of torch are RuntimeErrors, our own are ValueErrors.
_LIBRARY_ERRORS = (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OSError, ImportError)


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str  # what was looked at
    verdict: Verdict
    sentence: str  # what is there, or what is wrong, where, and what to do
    error: Exception | None = field(default=None, compare=False, repr=False)  # what a run raises; None unless it failed


Check = Generator[Finding, None, _Value]


def ok(check: str, sentence: str) -> Finding:
    return Finding(check, "ok", sentence)


def warning(check: str, sentence: str) -> Finding:
    return Finding(check, "warning", sentence)


def failure(check: str, error: Exception) -> Finding:
    """Return the finding of an error. An error that is neither ours nor the system's is a fault of the check itself."""
    if isinstance(error, CoordExpError):
        sentence = str(error)
    elif isinstance(error, OSError) and error.strerror:
        sentence = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        sentence = f"the check itself failed ({summary(error)})"
    return Finding(check, "failure", sentence, error)


def attempt(check: str, function: Callable[[], _Value]) -> Check[_Value | None]:
    """Call a function. An error that it raises becomes a failure of ``check``, and the value is None."""
    try:
        return function()
    except _LIBRARY_ERRORS as error:
        yield failure(check, error)
        return None


def guarded(check: str, steps: Check[_Value]) -> Check[_Value | None]:
    """Pass on what ``steps`` yield. An error that ends them becomes a failure of ``check``, and the value is None."""
    try:
        return (yield from steps)
    except _LIBRARY_ERRORS as error:
        yield failure(check, error)
        return None


def require(check: Check[_Value]) -> _Value:
    """Run a check as a run does: raise the error of its first failure, or return its value."""
    while True:
        try:
            finding = next(check)
        except StopIteration as end:
            return cast("_Value", end.value)
        if finding.error is not None:
            raise finding.error


def collect(check: Check[_Value]) -> tuple[list[Finding], _Value]:
    """Run a check as ``doctor`` does: return all findings, and its value."""
    findings: list[Finding] = []
    while True:
        try:
            findings.append(next(check))
        except StopIteration as end:
            return findings, cast("_Value", end.value)


def duration_text(seconds: float) -> str:
    """Return ``2 h 5 min``, ``5 min 3 s`` or ``3 s``."""
    minutes, remaining_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {remaining_seconds} s"
    return f"{remaining_seconds} s"


def size_text(num_bytes: float) -> str:
    """Return a size in GiB, or below a quarter of one in MiB."""
    if num_bytes >= 2**28:
        return f"{num_bytes / 2**30:.2f} GiB"
    return f"{num_bytes / 2**20:.1f} MiB"

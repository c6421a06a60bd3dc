"""One check's verdict in one sentence; a check that fails never hides another."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from safetensors import SafetensorError

from coordexp.errors import CoordExpError

Verdict = Literal["ok", "warning", "failure"]

_Result = TypeVar("_Result")
# What the libraries behind a check raise; torch's own errors are RuntimeErrors.
_LIBRARY_ERRORS = (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OSError, ImportError)


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        check: what was looked at.
        verdict: ``ok``; ``warning``: a run would start, but look at this; ``failure``: it would not.
        sentence: what is there, or what is wrong, where, and what to do.
    """

    check: str
    verdict: Verdict
    sentence: str


class Findings:
    """Collects findings in the order of their checks."""

    def __init__(self) -> None:
        """Start with none."""
        self.all: list[Finding] = []

    def ok(self, check: str, sentence: str) -> None:
        """Note that something is as it should be."""
        self.all.append(Finding(check, "ok", sentence))

    def warn(self, check: str, sentence: str) -> None:
        """Note what does not stop a run."""
        self.all.append(Finding(check, "warning", sentence))

    def fail(self, check: str, sentence: str) -> None:
        """Note what would stop a run."""
        self.all.append(Finding(check, "failure", sentence))

    def attempt(self, check: str, function: Callable[[], _Result]) -> _Result | None:
        """Call ``function``; what it raises becomes a failure of ``check``, and the result None."""
        try:
            return function()
        except CoordExpError as error:
            self.fail(check, str(error))
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            self.fail(check, f"{place}{error.strerror or first_line(error)}")
        except (*_LIBRARY_ERRORS, SafetensorError) as error:
            self.fail(check, f"the check itself failed ({type(error).__name__}: {first_line(error)})")
        return None

    @property
    def has_failure(self) -> bool:
        """Whether a run would not start."""
        return any(finding.verdict == "failure" for finding in self.all)


def size_text(num_bytes: float) -> str:
    """Return a number of bytes as a person reads it."""
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**28 else f"{num_bytes / 2**20:.1f} MiB"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip().splitlines() or ["no message"])[0]

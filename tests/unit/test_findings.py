"""A check that stops a run at its first failure, and shows everything to a reader."""

import pytest

from coordexp.errors import DataError
from coordexp.findings import Check, attempt, collect, failure, ok, require, warning


def _raise(error: Exception) -> None:
    raise error


def _steps(error: Exception | None = None) -> Check[int]:
    yield ok("a", "fine")
    yield warning("b", "look")
    if error is not None:
        yield failure("c", error)
    yield ok("d", "fine")
    return 7


def test_a_run_stops_at_the_first_failure_with_its_own_error():
    assert require(_steps()) == 7
    with pytest.raises(PermissionError):
        require(_steps(PermissionError(13, "Permission denied", "/x")))
    with pytest.raises(DataError, match="wrong"):
        require(attempt("a", lambda: _raise(DataError("wrong"))))


def test_a_failure_hides_no_later_finding():
    findings, value = collect(_steps(DataError("wrong")))
    assert [(finding.check, finding.verdict) for finding in findings] == [
        ("a", "ok"),
        ("b", "warning"),
        ("c", "failure"),
        ("d", "ok"),
    ]
    assert value == 7


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (DataError("wrong"), ["wrong"]),
        (PermissionError(13, "Permission denied", "/x"), ["/x", "Permission denied"]),
        (KeyError("k"), ["KeyError", "'k'"]),  # a bug of the check, which must not end the examination
    ],
)
def test_what_is_raised_is_a_finding(error, facts):
    (finding,), value = collect(attempt("a", lambda: _raise(error)))
    assert (finding.check, finding.verdict, value) == ("a", "failure", None)
    for fact in facts:
        assert fact in finding.sentence

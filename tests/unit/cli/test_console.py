"""How errors come out: one sentence and an exit code."""

import errno
import warnings

import pytest

from coordexp.cli.console import run_command, safe
from coordexp.errors import ConfigError


def _raises(error: BaseException):
    def function() -> None:
        raise error

    return function


def _wrapped(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code", "facts"),
    [
        (ConfigError("a.yaml:3: unknown key x"), 2, ["error: a.yaml:3: unknown key x\n"]),
        (OSError(errno.ENOSPC, "No space left on device", "/runs/x.json"), 2, ["error: ", " space ", "/runs/x.json"]),
        (
            _wrapped(RuntimeError("write failed"), OSError(errno.ENOSPC, "No space left on device")),
            2,
            ["error: ", " space "],
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/root/x"), 2, ["error: /root/x: Permission denied\n"]),
        (KeyboardInterrupt(), 130, ["interrupted"]),
        (KeyError("x"), 1, ["internal error: KeyError: 'x'", "--debug"]),
    ],
)
def test_every_error_is_one_sentence_and_a_code(
    error: BaseException, code: int, facts: list[str], capsys: pytest.CaptureFixture[str]
):
    assert run_command(_raises(error)) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(facts[0])
    for fact in facts:
        assert fact in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]):
    assert run_command(_raises(ConfigError("wrong")), debug=True) == 2
    text = capsys.readouterr().err
    assert "Traceback" in text
    assert text.endswith("error: wrong\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no http://me:pass word@h/x", "no http://***@h/x"),
        ("got 'https://h/x?token=s#y', expected", "got 'https://h/x?***', expected"),
        ("a\x1b]0;x\x07b\udce9\u202e", "a\ufffd]0;x\ufffdb\ufffd\ufffd"),
        # What holds no secret stays as it is.
        ("MLflow at http://127.0.0.1:9: refused", "MLflow at http://127.0.0.1:9: refused"),
        ("sqlite:////data/a@b/mlflow.db", "sqlite:////data/a@b/mlflow.db"),
        (
            "expected postgresql://USER:PASSWORD@HOST:5432/DATABASE",
            "expected postgresql://USER:PASSWORD@HOST:5432/DATABASE",
        ),
        ("two\nlines é 漢", "two\nlines é 漢"),
    ],
)
def test_what_is_printed_has_no_secret_of_an_address_and_no_control_character(text: str, shown: str):
    assert safe(text) == shown


def test_another_packages_warning_is_one_line_and_comes_once(capsys: pytest.CaptureFixture[str]):
    def warn() -> None:
        for _ in range(2):
            with warnings.catch_warnings():  # as around each loading of a model
                warnings.simplefilter("always")
                warnings.warn_explicit("keys\nare ignored", UserWarning, "/v/site-packages/peft/config.py", 220)

    shown_before = warnings.showwarning
    assert run_command(warn) == 0
    assert capsys.readouterr().err == "warning: peft: keys are ignored\n"
    assert warnings.showwarning is shown_before

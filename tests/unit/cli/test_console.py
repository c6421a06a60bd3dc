"""How errors come out: one sentence and an exit code."""

import errno

import pytest
from rich.table import Table
from rich.text import Text

from coordexp.cli.console import output_console, run_command, safe, show
from coordexp.errors import ConfigError


def _raises(error: BaseException):
    def function() -> None:
        raise error

    return function


def test_codes_of_a_function_pass_through(capsys: pytest.CaptureFixture[str]):
    assert run_command(lambda: None) == 0
    assert run_command(lambda: 3) == 3
    assert capsys.readouterr() == ("", "")


def _wrapped(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("a.yaml:3: unknown key x"), 2, "error: a.yaml:3: unknown key x\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/runs/x.json"),
            2,
            "error: no space left on /runs/x.json; free some, or write elsewhere\n",
        ),
        (
            _wrapped(RuntimeError("write failed"), OSError(errno.ENOSPC, "No space left on device")),
            2,
            "error: no space left on the device; free some, or write elsewhere\n",
        ),
        (
            RuntimeError("I/O error: No space left on device (os error 28)"),
            2,
            "error: no space left on the device; free some, or write elsewhere\n",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/root/x"), 2, "error: /root/x: Permission denied\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (KeyError("x"), 1, "internal error: KeyError: 'x'; --debug shows where\n"),
        (RuntimeError("first\nsecond"), 1, "internal error: RuntimeError: first; --debug shows where\n"),
        (FileNotFoundError(errno.ENOENT, "No such file", "x"), 1, "internal error: FileNotFoundError: [Errno 2]"),
    ],
)
def test_every_error_is_one_sentence_and_a_code(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
):
    assert run_command(_raises(error)) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize("kind", [ConfigError, RuntimeError])
def test_a_message_of_any_length_is_cut_and_keeps_both_ends(kind: type[Exception], capsys: pytest.CaptureFixture[str]):
    secret = f"http://me:{'hunter2' * 9_000}@host"
    for message in (f"a.yaml: {'x ' * 40_000}: choose another", f"a.yaml: {secret} {'x ' * 400}: choose another"):
        run_command(_raises(kind(message)))
        said = capsys.readouterr().err
        assert len(said) < 600
        assert "a.yaml: " in said
        assert "choose another" in said
        assert "hunter2" not in said
    run_command(_raises(ConfigError("\n".join(f"line {index}" for index in range(9_000)))))
    assert capsys.readouterr().err.endswith("line 49\n... and 8,950 more lines\n")


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]):
    assert run_command(_raises(ConfigError("wrong")), debug=True) == 2
    text = capsys.readouterr().err
    assert "Traceback" in text
    assert text.endswith("error: wrong\n")


def test_an_exit_is_not_swallowed():
    with pytest.raises(SystemExit, match="7"):
        run_command(_raises(SystemExit(7)))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no http://me:pass word@h/x", "no http://***@h/x"),
        ("override 'a=http://me:p@ss w@h': a: got 'http://me:p@h'", "override 'a=http://***@h': a: got 'http://***@h'"),
        ("no s3:/key:pa/ss@bucket/x", "no s3:/***@bucket/x"),
        ("got 'me:pass@h', got 'x'", "got '***@h', got 'x'"),
        ("got 'https://h/x?token=s#y', expected", "got 'https://h/x?***', expected"),
        ("a\x1b]0;x\x07b\udce9\u202e", "a\ufffd]0;x\ufffdb\ufffd\ufffd"),
        # What holds no secret stays as it is.
        ("MLflow at http://127.0.0.1:9: refused", "MLflow at http://127.0.0.1:9: refused"),
        ("http://127.0.0.1:5000/#/experiments/1", "http://127.0.0.1:5000/#/experiments/1"),
        ("sqlite:////data/a@b/mlflow.db", "sqlite:////data/a@b/mlflow.db"),
        *[(text, text) for text in ("expected postgresql://USER:PASSWORD@HOST:5432/DATABASE",)],
        ("a.yaml:3: unknown key a@b in /data/a:b@c", "a.yaml:3: unknown key a@b in /data/a:b@c"),
        ("two\nlines é 漢", "two\nlines é 漢"),
    ],
)
def test_what_is_printed_has_no_secret_of_an_address_and_no_control_character(text: str, shown: str):
    assert safe(text) == shown


def test_what_rich_prints_has_no_control_character_of_a_name(capsys: pytest.CaptureFixture[str]):
    console = output_console()
    name = "a\x1b]0;x\x07b\udce9"
    show(console, f"drawn in {name}\nand here")
    table = Table(title=Text(name))
    table.add_column(Text("head"))
    table.add_row(Text(name))
    console.print(table)
    said = capsys.readouterr().out
    assert "drawn in a\ufffd]0;x" in said
    assert said.count("]0;x") == 3
    assert "\nand here\n" in said
    assert all(line.isprintable() for line in said.split("\n"))

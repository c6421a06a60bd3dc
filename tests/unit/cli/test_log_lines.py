"""What a script, the command line and a worker hear of the package's log, and what --quiet leaves out."""

import io
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from coordexp.cli.log_lines import log_lines
from coordexp.cli.main import main, parse
from coordexp.logs import PACKAGE, is_quiet, log_to_run
from coordexp.runs.live import RunEvent
from coordexp.runs.screen import PlainScreen, QuietScreen, screen_for
from coordexp.stages import show_stages
from tests.support.commands import ROOT

LOG = logging.getLogger("coordexp.room")


def log_three() -> None:
    LOG.debug("opened %s", "http://me:secret@host/x")
    LOG.info("made")
    LOG.warning("nobody answers")


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)


def test_a_script_hears_nothing_until_it_asks():
    silent = run_python("import coordexp, logging; logging.getLogger('coordexp.x').warning('nobody answers')")
    assert silent.stdout + silent.stderr == ""
    heard = run_python(
        "import coordexp, logging; logging.basicConfig(); logging.getLogger('coordexp').setLevel(logging.DEBUG);"
        "coordexp.load_config('experiments/tiny.yaml')"
    )
    assert "DEBUG:coordexp.config.load:" in heard.stderr


@pytest.mark.parametrize(
    ("verbose", "quiet", "expected"),
    [
        (False, False, ["made", "warning: nobody answers"]),
        (True, False, ["opened http://***@host/x", "made", "warning: nobody answers"]),
        (False, True, ["warning: nobody answers"]),
    ],
)
def test_the_command_line_shows_what_was_asked_for(verbose, quiet, expected, capsys):
    with log_lines(verbose=verbose, quiet=quiet):
        log_three()
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert len(lines) == len(expected)
    assert all(line.endswith(end) for line, end in zip(lines, expected, strict=True))


def test_nothing_is_said_twice_and_the_process_is_as_before(capsys, caplog):
    logger = logging.getLogger(PACKAGE)
    before = (list(logger.handlers), logger.level, logger.propagate)
    with log_lines(verbose=True, quiet=False):  # caplog has a handler at the root
        log_three()
    assert capsys.readouterr().err.count("nobody answers") == 1
    assert caplog.records == []
    assert (list(logger.handlers), logger.level, logger.propagate) == before


def test_a_worker_writes_to_the_log_of_its_run_alone(tmp_path: Path, capsys, caplog):
    log = tmp_path / "progress.log"
    log.write_text("A-s0  step 1/2\n", encoding="utf-8")
    with log_to_run(log):
        log_three()
    LOG.warning("after the run")
    lines = log.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "A-s0  step 1/2"
    assert [line.split(": ", 1)[1] for line in lines[1:]] == ["made", "nobody answers"]
    assert capsys.readouterr().err == ""
    assert [record.getMessage() for record in caplog.records] == ["after the run"]


def test_a_run_in_the_process_of_the_command_logs_to_the_screen_alone(tmp_path: Path, capsys):
    with log_lines(verbose=False, quiet=False), log_to_run(tmp_path / "progress.log"):
        log_three()
    assert "nobody answers" in capsys.readouterr().err
    assert not (tmp_path / "progress.log").exists()


@pytest.mark.parametrize("words", [["ablation"], ["train"], ["doctor"], ["prepare", "shapes", "--output", "x"]])
def test_every_verb_takes_either_option_and_not_both(words: list[str], capsys):
    assert parse([*words, "--verbose"]).verbose
    assert not parse([*words, "--verbose"]).quiet
    assert parse([*words, "--quiet"]).quiet
    with pytest.raises(SystemExit) as ended:
        parse([*words, "--quiet", "--verbose"])
    assert ended.value.code == 2


def test_verbose_says_which_configuration_is_read(capsys):
    assert main(["ablation", "--dry-run", "--verbose"]) == 0
    captured = capsys.readouterr()
    assert "tiny.yaml" in captured.err
    assert "config.load" in captured.err
    assert "config.load" not in captured.out
    assert not is_quiet()


def test_quiet_shows_no_stage():
    output = io.StringIO()
    with log_lines(verbose=False, quiet=True):
        assert is_quiet()
        with show_stages(Console(file=output), title="prepares data"):
            pass
    assert output.getvalue() == ""


def test_quiet_shows_the_warnings_of_runs_and_not_their_course():
    printed: list[str] = []
    with log_lines(verbose=False, quiet=True):
        screen = screen_for(None, print_line=printed.append, plans=list)
    assert isinstance(screen, QuietScreen)
    assert isinstance(screen_for(None, print_line=printed.append, plans=list), PlainScreen)
    screen.tell("A-s0", RunEvent("start", 1.0, lines=("one process",), warnings=("2 boxes are cut",)))
    screen.tell("A-s1", RunEvent("start", 1.0, lines=("one process",), warnings=("2 boxes are cut",)))
    screen.tell("A-s0", RunEvent("evaluation", 1.0, "step 90  AP 0.4", ap=0.4))
    screen.tell("A-s0", RunEvent("alarm", 1.0, "ALARM: box_l1 has no gradient"))
    screen.refresh([], ["1 running"])
    screen.close([], ["1 finished"])
    assert printed == ["A-s0  2 boxes are cut", "A-s0  ALARM: box_l1 has no gradient"]

"""The file that asks for a stop, how often it is looked for, and signals.

The first signal asks runs to stop, the second interrupts; in a submitted job the second comes by itself.
"""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from coordexp.runs.stop import (
    GRACE_ENV,
    SUBMITTED_ENV,
    clean_seconds,
    clear_stop,
    experiment_stop_reason,
    is_temporary,
    request_stop,
    stop_on_signal,
    stop_reason,
)


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(SUBMITTED_ENV, raising=False)
    monkeypatch.delenv(GRACE_ENV, raising=False)


def test_a_request_is_for_a_run_or_for_all_of_an_experiment(tmp_path):
    experiment = tmp_path / "exp"
    run_a = experiment / "A-s0"
    run_b = experiment / "B-s0"
    request_stop(run_a, "only this")
    assert (stop_reason(run_a), stop_reason(run_b)) == ("only this", None)
    assert experiment_stop_reason(experiment) is None
    request_stop(experiment, "all")
    assert (stop_reason(run_a), stop_reason(run_b)) == ("only this", "all")
    assert experiment_stop_reason(experiment) == "all"
    clear_stop(experiment)
    assert (stop_reason(run_a), stop_reason(run_b)) == (None, None)
    clear_stop(experiment)  # nothing to withdraw


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"stop"'])
def test_a_file_by_hand_stops_too(tmp_path, text):
    (tmp_path / "stop.json").write_text(text)
    assert stop_reason(tmp_path)
    assert experiment_stop_reason(tmp_path)


@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGTERM, "the job was stopped"), (signal.SIGINT, "interrupted")]
)
def test_the_first_signal_asks_and_the_second_interrupts(tmp_path, number, reason):
    run = tmp_path / "A-s0"
    shown: list[str] = []
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stop_on_signal(tmp_path, print_line=shown.append):  # noqa: PT012
        assert stop_reason(run) is None
        os.kill(os.getpid(), number)
        assert stop_reason(run) == reason
        os.kill(os.getpid(), number)
        pytest.fail("the second signal did nothing")
    assert len(shown) == 1
    assert signal.getsignal(number) is before


def test_a_submitted_job_interrupts_itself_before_ray_kills_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(SUBMITTED_ENV, "{}")
    monkeypatch.setenv(GRACE_ENV, "1")
    with pytest.raises(KeyboardInterrupt), stop_on_signal(tmp_path, print_line=lambda line: None):  # noqa: PT012
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)
        pytest.fail("nothing came")


def test_only_what_is_in_rays_copy_of_a_working_directory_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    copy = tmp_path / "working_dir_files" / "_ray_pkg_1"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    assert is_temporary(copy / "runs")
    assert not is_temporary(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    assert not is_temporary(tmp_path / "runs")


@pytest.mark.parametrize(
    ("grace", "seconds"), [("300", pytest.approx(210)), (None, pytest.approx(2.1)), ("soon", pytest.approx(2.1))]
)
def test_most_of_the_grace_is_for_the_runs(grace, seconds, monkeypatch: pytest.MonkeyPatch):
    assert clean_seconds() is None
    monkeypatch.setenv(SUBMITTED_ENV, "{}")
    if grace is not None:
        monkeypatch.setenv(GRACE_ENV, grace)
    assert clean_seconds() == seconds


def _signalled(number: int) -> None:
    os.kill(os.getpid(), number)
    os._exit(7)  # went on


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 7), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_forked_loaders_ask_nobody_to_stop(tmp_path, number, exit_code):
    """Ctrl-C reaches them too; a loader that is terminated must end."""
    shown: list[str] = []
    with stop_on_signal(tmp_path, print_line=shown.append):
        child = multiprocessing.get_context("fork").Process(target=_signalled, args=(number,))
        child.start()
        child.join()
        assert child.exitcode == exit_code
        assert stop_reason(tmp_path / "A-s0") is None


def test_a_request_that_cannot_be_written_interrupts_at_once(tmp_path):
    """An OSError from within the handler would be taken for the run's own, and the run for a failed one."""
    (tmp_path / "file").touch()
    with pytest.raises(KeyboardInterrupt), stop_on_signal(tmp_path / "file", print_line=lambda line: None):
        os.kill(os.getpid(), signal.SIGTERM)

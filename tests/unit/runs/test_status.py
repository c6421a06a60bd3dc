import pytest

from coordexp.runs.reporter import LocalReporter
from coordexp.runs.rows import Row
from coordexp.runs.status import (
    Begun,
    Committed,
    Ended,
    Erred,
    Killed,
    RunStatus,
    Started,
    has_taken_step,
    read_status,
    tell,
)

WAITING = RunStatus("waiting")


def status_after(*events, before=WAITING):
    """Return the status after events at 100 s, 110 s, ...; the last sign of life is two seconds before each."""
    status = before
    for number, event in enumerate(events):
        now = 100.0 + 10.0 * number
        status = status.next(event, now=now, alive=now - 2.0)
    return status


START = Started(step=4, rows=6)


@pytest.mark.parametrize(
    ("events", "state", "message", "restarts", "seconds"),
    [
        ([Begun()], "running", "", 0, 0.0),
        ([Begun(), START, Committed(8, 9), Ended("finished", "lossy")], "finished", "lossy", 0, 20.0),
        ([Begun(), START, Ended("failed", "nan")], "failed", "nan", 0, 10.0),
        ([Begun(), START, Ended("stopped", "asked")], "stopped", "asked", 0, 10.0),
        # Stopped on purpose: to go on is no restart, and what lies between does not count.
        ([Begun(), START, Ended("stopped", "asked"), Begun(), START, Ended("finished")], "finished", "", 0, 20.0),
        # Workers died without a word, up to 8 seconds after their start; Ray starts others.
        ([Begun(), START, START, Ended("finished")], "finished", "", 1, 18.0),
        # An error that may be gone, then others that follow from it.
        ([Begun(), START, Erred("no room"), Erred("peer lost")], "running", "no room", 0, 10.0),
        ([Begun(), START, Erred("no room"), START, Ended("finished")], "finished", "", 1, 20.0),
        # Wrong input, before or after an error that follows from it.
        ([Begun(), START, Erred("peer lost"), Ended("failed", "no images")], "failed", "no images", 0, 10.0),
        ([Begun(), START, Ended("failed", "no images"), Erred("peer lost")], "failed", "no images", 0, 10.0),
        (
            [Begun(), START, Ended("failed", "no images"), Ended("failed", "a worker died")],
            "failed",
            "no images",
            0,
            10.0,
        ),
        # The command was killed; the next one counts the time up to the last sign of life, and a restart.
        ([Begun(), START, Killed(), Killed(), Begun()], "running", "", 1, 8.0),
        ([Begun(), START, Begun(), START, Ended("finished")], "finished", "", 1, 18.0),
        # A command that ends stops what it has begun, and nothing else.
        ([Begun(), START, Ended("finished"), Ended("stopped", "asked")], "finished", "", 0, 10.0),
        ([Begun(), START, Ended("failed", "nan"), Ended("stopped", "asked")], "failed", "nan", 0, 10.0),
        ([Ended("stopped", "asked")], "waiting", "", 0, 0.0),
        ([Begun(), START, Ended("stopped", "behind"), Ended("pruned", "behind")], "pruned", "behind", 0, 10.0),
        # What a worker writes after the command was interrupted counts, and does not bring the run back.
        ([Begun(), START, Ended("stopped", "interrupted"), Committed(8, 9)], "stopped", "interrupted", 0, 10.0),
        ([Committed(8, 9)], "waiting", "", 0, 0.0),
    ],
)
def test_what_events_come_to(events, state, message, restarts, seconds):
    status = status_after(*events)
    assert (status.state, status.message, status.restarts, status.seconds_until(0.0)) == (
        state, message, restarts, seconds,
    )  # fmt: skip
    assert (status.since is None) == (state != "running" or events[-1] != START)


def test_a_failed_merge_is_kept_until_the_run_is_begun_again():
    status = status_after(Begun(), START, Ended("finished", "not merged", is_merged=False))
    assert not status.is_merged
    assert status_after(Begun(), before=status) == RunStatus("running", step=4, rows=6, seconds=10.0, restarts=1)


def test_steps_and_rows_are_those_that_are_committed(tmp_path):
    tell(tmp_path, Begun())
    assert not has_taken_step(tmp_path)
    reporter = LocalReporter(tmp_path)
    tell(tmp_path, Started(0, 0))
    reporter.commit([Row(2, 1.0, {}), Row(4, 1.0, {})], step=4, checkpoint=None)
    status = read_status(tmp_path)
    assert (status.step, status.rows) == (4, 2)
    assert has_taken_step(tmp_path)


def test_a_killed_run_that_could_not_tell_its_status_has_taken_its_step(tmp_path):
    (tmp_path / "scratch").mkdir()
    LocalReporter(tmp_path).commit([], step=2, checkpoint=tmp_path / "scratch")  # no status is there to be told
    assert not has_taken_step(tmp_path)  # never begun
    tell(tmp_path, Begun())
    assert read_status(tmp_path).step == 0
    assert has_taken_step(tmp_path)

"""The file that asks for a stop, and how often it is looked for."""

import itertools

import pytest

from coordexp.runs import stop
from coordexp.runs.stop import StopListener, clear_stop, request_stop, stop_reason


def test_a_request_is_for_a_run_or_for_all_of_an_experiment(tmp_path):
    one, other = tmp_path / "exp" / "A-s0", tmp_path / "exp" / "B-s0"
    request_stop(one, "only this")
    assert (stop_reason(one), stop_reason(other)) == ("only this", None)
    request_stop(tmp_path / "exp", "all")
    assert (stop_reason(one), stop_reason(other)) == ("only this", "all")
    clear_stop(tmp_path / "exp")
    assert (stop_reason(one), stop_reason(other)) == (None, None)
    clear_stop(tmp_path / "exp")  # nothing to withdraw


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"stop"'])
def test_a_file_by_hand_stops_too(tmp_path, text):
    (tmp_path / "stop.json").write_text(text)
    assert stop_reason(tmp_path) == "a stop was requested"


def test_a_run_that_is_no_directory_has_no_request(tmp_path):
    (tmp_path / "exp").write_text("")
    assert stop_reason(tmp_path / "exp" / "A-s0") is None


def looks(tmp_path, monkeypatch, *, step_seconds: float, steps: int) -> list[int]:
    """Return at which steps the file system was asked."""
    found: list[int] = []
    done = [0]
    monkeypatch.setattr(stop, "stop_reason", lambda directory: found.append(done[0]))
    listener = StopListener(tmp_path, clock=lambda: done[0] * step_seconds)
    while done[0] < steps:
        done[0] += 1
        listener.at_step()
    return found


def test_slow_steps_are_all_looked_at(tmp_path, monkeypatch):
    assert looks(tmp_path, monkeypatch, step_seconds=5.0, steps=4) == [1, 2, 3, 4]


def test_quick_steps_are_looked_at_once_a_second(tmp_path, monkeypatch):
    # Steps of a quarter of a second: every second, every fourth, after a cautious start.
    assert looks(tmp_path, monkeypatch, step_seconds=0.25, steps=20) == [1, 3, 7, 11, 15, 19]


def test_a_clock_that_stands_still_is_no_reason_never_to_look(tmp_path, monkeypatch):
    found = looks(tmp_path, monkeypatch, step_seconds=0.0, steps=1000)
    assert found[:4] == [1, 3, 7, 15]
    assert max(later - earlier for earlier, later in itertools.pairwise(found)) == 200

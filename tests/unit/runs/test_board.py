"""The picture of runs, made of records by hand: what each width shows, and what is said of all."""

import io
from collections import Counter

import pytest
from rich.console import Console

from coordexp.runs.board import (
    BoardRow,
    board,
    cropped,
    durations_of_open_runs,
    footer,
    row_line,
    row_of,
    seconds_for_all,
)
from coordexp.runs.live import Live, RunEvent
from coordexp.runs.status import RunStatus

NOW = 1_700_000_000.0
RUNNING = RunStatus("running", step=90, since=NOW - 100)
LIVE = Live(
    "trains", 120, 400, loss=2.31, images_per_second=93.2, seconds_left=80.0, memory_bytes=3 * 2**30, time=NOW
)  # fmt: skip


def evaluations(*aps: float | None) -> list[RunEvent]:
    aps_before = [None, *aps]
    return [RunEvent("evaluation", NOW, step=i, ap=ap, ap_before=aps_before[i]) for i, ap in enumerate(aps)]


def row(live: Live = LIVE, *aps: float | None, status: RunStatus = RUNNING, name: str = "A-s0") -> BoardRow:
    return row_of(name, status, live, evaluations(*aps), now=NOW)


def text_of(rows, lines=(), *, width=140, height=None, ascii_only=False) -> list[str]:
    """Return the lines of the picture, as a terminal without colours shows them."""
    file = io.StringIO()
    console = Console(file=file, width=width, no_color=True)
    console.print(board(rows, lines, width=width, height=height, ascii_only=ascii_only))
    return file.getvalue().splitlines()


def test_a_wide_terminal_shows_everything_of_a_run():
    (head, line) = text_of([row(LIVE, 0.4, 0.412)])
    assert head.split() == ["run", "progress", "step", "loss", "AP", "img/s", "left", "memory", "now"]
    cells_without_the_bar = [cell for cell in line.split() if not set(cell) <= set("━╸╺")]
    assert cells_without_the_bar == ["A-s0", "120/400", "2.310", "0.412", "↑", "93", "1:20", "3.0G", "trains"]


@pytest.mark.parametrize(("aps", "shown"), [((0.4,), ""), ((0.4, 0.3), "↓"), ((0.4, 0.4), "="), ((None, 0.4), "")])
def test_the_arrow_compares_with_the_evaluation_before(aps, shown):
    line = text_of([row(LIVE, *aps)])[1]
    assert [mark for mark in "↑↓=" if mark in line] == list(shown)


def test_a_terminal_without_unicode_gets_none():
    rows = [row(LIVE, 0.4, 0.5), row(LIVE, 0.5, 0.4, name="a_group_with_a_name_that_is_long-s0")]
    file = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    console = Console(file=file, width=70, no_color=True)
    console.print(board(rows, ["a line that is too long " * 9], width=70, ascii_only=console.options.ascii_only))
    file.flush()
    text = file.buffer.getvalue().decode("latin-1")
    assert text.isascii()
    assert "0.500 ^" in text
    assert "0.400 v" in text


@pytest.mark.parametrize("width", [1, 5, 20, 40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_the_run_is_always_named(width):
    waits = row_of(
        "D-s0", RunStatus("running"), None, [], now=NOW, waits="waits for a place: " + "held by job 7; " * 20
    )
    rows = [row(LIVE, 0.4, 0.5, name="softce_w1_high-s0"), waits]
    lines = text_of(rows, ["12 finished, 3 waiting, 1 failed; about 5 min 0 s left for all"], width=width)
    assert max(map(len, lines)) <= width
    if width >= 20:
        assert lines[1].startswith("softc")
        assert "trains" in lines[1]
    if width >= 60:
        assert "0.500 ↑" in lines[1]


def test_many_runs_leave_room_for_what_is_said_of_all():
    rows = [row(name=f"A-s{seed}") for seed in range(50)]
    lines = text_of(rows, ["50 running"], height=24)
    assert len(lines) < 24
    assert lines[-2:] == ["and 30 more", "50 running"]
    assert len(text_of(rows, ["50 running"])) == 52


@pytest.mark.parametrize(
    ("status", "live", "now"),
    [
        (RunStatus("waiting"), None, "waits"),
        (RunStatus("running"), None, "starts its workers"),
        (RUNNING, None, "runs"),
        (RUNNING, Live("starts", time=NOW), "prepares its parts"),
        (RUNNING, Live("evaluates", done=86, total=1600, time=NOW), "evaluates 86 of 1,600"),
        (RUNNING, Live("merges", time=NOW - 300), "merges, silent for 5 min 0 s"),
        (RunStatus("running", restarts=2, since=NOW), LIVE, "trains, 2 restarts"),
        (RunStatus("finished", seconds=125.0), LIVE, "finished in 2 min 5 s"),
        (RunStatus("failed", "the loss is nan"), LIVE, "failed: the loss is nan"),
    ],
)
def test_what_a_run_does_now(status, live, now):
    assert row_of("A-s0", status, live, [], now=NOW).now == now


def test_a_run_that_ended_has_no_speed_and_no_time_left():
    ended = row(status=RunStatus("failed", "nan", step=90))
    assert (ended.step, ended.images_per_second, ended.seconds_left) == (90, None, None)


def test_time_left_runs_down_between_two_records():
    assert row_of("A-s0", RUNNING, LIVE, [], now=NOW + 30).seconds_left == 50.0
    assert row_of("A-s0", RUNNING, LIVE, [], now=NOW + 300).seconds_left == 0.0


def test_the_line_below_counts_the_runs_and_foretells_the_end():
    states = Counter({"running": 2, "finished": 12, "waiting": 3, "failed": 1})
    assert footer(states) == "2 running, 12 finished, 3 waiting, 1 failed"
    assert "11 min 0 s" in footer(states, seconds=601.0)
    assert footer(Counter()) == ""


def test_the_time_of_all_runs_is_that_of_the_places_they_have():
    running = [row(), row()]  # 100 s so far, 80 s to go
    assert seconds_for_all([], num_waiting=3, durations=[]) is None
    assert seconds_for_all(running, num_waiting=0, durations=[]) == 80.0
    assert seconds_for_all(running, num_waiting=2, durations=[]) == 80.0 + 180.0
    # Finished runs took 200 s with their evaluation and merge: 100 s to go, then two more at two places.
    assert seconds_for_all(running, num_waiting=2, durations=[200.0]) == 100.0 + 200.0


def test_a_row_as_a_line_of_a_log():
    assert row_line(row(LIVE, 0.4, 0.412)) == "A-s0  step 120/400  loss 2.310  AP 0.412 ^  93 img/s  1:20 left"
    evaluates = row(Live("evaluates", 120, 400, done=8, total=9, time=NOW))
    assert row_line(evaluates) == "A-s0  step 120/400  evaluates 8 of 9"


def test_names_steer_no_terminal():
    text = "\n".join(text_of([row(name="A\x1b[2J\x07-s0")], ["B\x1b[2J"]))
    assert "\x1b" not in text
    assert "\x07" not in text


def test_a_wide_character_counts_as_two_columns():
    assert cropped("検出検出", 5, ascii_only=False) == "検出…"
    assert cropped("abc", 3, ascii_only=False) == "abc"


def test_short_trials_foretell_long_runs_by_their_steps():
    assert durations_of_open_runs({90: [30.0, 50.0]}, [90, 360, 360, 630]) == [120.0, 200.0]
    assert durations_of_open_runs({360: [30.0]}, [360, 360]) == [30.0]
    assert durations_of_open_runs({0: [30.0]}, [0]) == [30.0]  # steps that are not known yet
    assert durations_of_open_runs({90: [30.0]}, []) == [30.0]

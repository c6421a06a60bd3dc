"""What a run says of itself while it runs: written rarely, read from whatever is there."""

import json
import math
from dataclasses import replace

import pytest

from coordexp.runs import live as live_module
from coordexp.runs.folder import RunFolder
from coordexp.runs.live import EventTail, Live, LiveWriter, RunEvent, append_event, last_ap, read_live


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "A-s0")


def writer_of(folder, *, writes=True):
    return LiveWriter(folder, writes=writes, peak_memory_bytes=lambda: 7)


def evaluation(step, ap, before=None):
    return RunEvent("evaluation", 1.0, f"step {step}", step=step, ap=ap, ap_before=before)


def test_steps_are_written_once_a_second_and_a_new_phase_at_once(folder, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(live_module.time, "monotonic", lambda: clock[0])
    writer = writer_of(folder)
    writer.show(Live("trains", step=1, num_steps=9))
    writer.show(replace(writer.now, step=2))
    assert read_live(folder).step == 1
    writer.show(replace(writer.now, phase="evaluates"))
    assert (read_live(folder).step, read_live(folder).phase) == (2, "evaluates")
    clock[0] += 1.0
    writer.show(replace(writer.now, done=5, total=9))
    assert (read_live(folder).done, read_live(folder).memory_bytes) == (5, 7)
    assert [path.name for path in folder.path.iterdir()] == ["live.json"]


def test_a_rank_that_does_not_write_leaves_no_file(folder):
    writer = writer_of(folder, writes=False)
    writer.show(Live("trains", step=1))
    writer.tell(evaluation(1, 0.5))
    assert writer.now.step == 1
    assert not folder.path.exists()


def test_a_loss_that_is_no_number_is_left_out(folder):
    writer_of(folder).show(Live("trains", loss=math.nan, seconds_left=math.inf, images_per_second=3.0))
    assert json.loads(folder.live.read_text())["loss"] is None
    shown = read_live(folder)
    assert (shown.loss, shown.seconds_left, shown.images_per_second) == (None, None, 3.0)


def test_a_record_of_an_earlier_try_and_a_damaged_one_count_as_none(folder):
    writer_of(folder).show(Live("trains", step=4))
    assert read_live(folder).step == 4
    assert read_live(folder, since=read_live(folder).time + 1) is None
    for content in (b"", b"{", b"[]", b'{"step": "x"}', b'{"phase": "sleeps"}', b"\xff", b'{"step": 1e999}'):
        folder.live.write_bytes(content)
        assert read_live(folder) is None, content
    folder.live.unlink()
    assert read_live(folder) is None


def test_events_come_once_and_a_torn_or_damaged_line_ends_nothing(folder):
    tail = EventTail(folder)
    assert tail.new() == []
    append_event(folder, evaluation(90, 0.25))
    assert [event.ap for event in tail.new()] == [0.25]
    with folder.events.open("a") as handle:
        handle.write('nonsense\n{"kind": "note", "time": 1}\n{"kind": "no')
        handle.flush()
        assert [event.kind for event in tail.new()] == ["note"]
        handle.write('te", "time": 2, "text": "é"}\n')
    assert [event.text for event in tail.new()] == ["é"]
    assert tail.new() == []


def test_a_resumed_run_takes_back_what_it_evaluated_after_its_checkpoint(folder):
    for event in (evaluation(10, 0.1), evaluation(20, 0.3, before=0.1), RunEvent("start", 2.0, step=10)):
        append_event(folder, event)
    tail = EventTail(folder)
    tail.new()
    assert last_ap(tail.evaluations) == (0.1, None)
    append_event(folder, evaluation(20, 0.2, before=0.1))
    tail.new()
    assert last_ap(tail.evaluations) == (0.2, 0.1)


def test_a_run_that_was_started_over_is_read_from_its_first_event(folder):
    for step in (1, 2, 3):
        append_event(folder, evaluation(step, 0.5))
    tail = EventTail(folder)
    tail.new()
    folder.events.unlink()
    append_event(folder, evaluation(1, 0.125))
    assert [event.ap for event in tail.new()] == [0.125]
    assert last_ap(tail.evaluations) == (0.125, None)


def test_a_disk_that_takes_nothing_costs_the_view_alone(folder):
    folder.path.parent.joinpath("A-s0").write_text("a file in the place of the folder")
    writer = writer_of(folder)
    writer.show(Live("trains", step=1))
    writer.tell(evaluation(1, 0.5))
    assert writer.now.step == 1

"""What a run does at this moment (``live.json``) and what happened to it (``events.jsonl``), for whoever watches it.

Rank 0 writes both. They hold records, so nobody has to parse the sentences of ``progress.log``. ``live.json`` is
replaced at most once a second. If a write of it is lost, the next one makes up for that.
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal

import msgspec

from coordexp.runs.folder import RunFolder

WRITE_SECONDS = 1.0  # between two writes in a phase; a shared file system need not carry more
Phase = Literal["starts", "trains", "validates", "evaluates", "merges"]
EventKind = Literal["start", "phase", "evaluation", "alarm", "warning", "note", "end"]


@dataclass(frozen=True)
class Live:
    """What a run does at one moment. A field that is not known yet is None."""

    phase: Phase = "starts"
    step: int = 0
    num_steps: int = 0
    loss: float | None = None  # of the last logging step, like the speed
    images_per_second: float | None = None
    seconds_left: float | None = None  # of training
    done: int = 0  # answers that this rank has written in the current evaluation
    total: int = 0  # answers that it will write
    memory_bytes: int | None = None  # the peak of its GPU, or of its process if it has no GPU
    time: float = 0.0  # of Unix


@dataclass(frozen=True)
class RunEvent:
    """Something that happened to a run."""

    kind: EventKind
    time: float  # of Unix
    text: str = ""  # the sentence for a person, without the run's name
    step: int | None = None
    ap: float | None = None  # of an evaluation, of the boxes by which the run is compared
    ap_before: float | None = None  # of the evaluation before it on the same images
    lines: tuple[str, ...] = ()  # of a start: what trains, and on which hardware and data
    warnings: tuple[str, ...] = ()  # the lines that are warnings


_DEFAULTS = {field.name: field.default for field in fields(RunEvent)}
_LIVE = msgspec.json.Decoder(Live)
_EVENT = msgspec.json.Decoder(RunEvent)


class LiveWriter:
    """Writes both files of one run. A write that fails is skipped, since it costs a view and not the run.

    Every rank has a writer, and only that of rank 0 ``writes``.
    """

    def __init__(self, folder: RunFolder, *, writes: bool, peak_memory_bytes: Callable[[], int]) -> None:
        self._folder = folder
        self._writes = writes
        self._peak_memory_bytes = peak_memory_bytes
        self._written = -math.inf
        self.now = Live()

    def show(self, live: Live) -> None:
        """Replace what the run does now. A new phase is written at once, other changes at most once a second."""
        is_new_phase = live.phase != self.now.phase
        self.now = live
        is_recent = time.monotonic() - self._written < WRITE_SECONDS
        if not self._writes or (is_recent and not is_new_phase):
            return
        self._written = time.monotonic()
        live = _finite(replace(live, memory_bytes=self._peak_memory_bytes(), time=time.time()))
        with contextlib.suppress(OSError):
            _replace_file(self._folder.live, json.dumps(asdict(live)))

    def tell(self, event: RunEvent) -> None:
        if self._writes:
            append_event(self._folder, event)


def append_event(folder: RunFolder, event: RunEvent) -> None:
    """Append an event to a run's file in one write. On a full disk only the view of the event is lost."""
    values = {name: value for name, value in asdict(event).items() if value != _DEFAULTS[name]}
    with contextlib.suppress(OSError):
        folder.path.mkdir(parents=True, exist_ok=True)
        with folder.events.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(values) + "\n")


def read_live(folder: RunFolder, *, since: float = 0.0) -> Live | None:
    """Return what a run does now; None if nothing readable was written since the Unix time ``since``."""
    try:
        live = _finite(_LIVE.decode(folder.live.read_bytes()))
    except (OSError, ValueError):
        return None
    return live if live.time >= since else None


class EventTail:
    """Reads the events of a run as they are appended, and keeps the evaluations that still count."""

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.events
        self._offset = 0
        self.evaluations: list[RunEvent] = []

    def new(self) -> list[RunEvent]:
        """Return the events since the last call.

        A damaged line is skipped. A line that is still being written is left for the next call.
        """
        try:
            with self._path.open("rb") as handle:
                if os.fstat(handle.fileno()).st_size < self._offset:  # a new file: the run was started over
                    self._offset = 0
                    self.evaluations = []
                handle.seek(self._offset)
                content = handle.read()
        except OSError:
            return []
        whole_lines = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole_lines)

        events: list[RunEvent] = []
        for line in whole_lines.splitlines():
            with contextlib.suppress(ValueError):
                events.append(_EVENT.decode(line))
        for event in events:
            self._keep(event)
        return events

    def _keep(self, event: RunEvent) -> None:
        if event.kind == "evaluation":
            self.evaluations.append(event)
        elif event.kind == "start":
            # The run goes on from this checkpoint, and will repeat evaluations that came after it.
            checkpoint_step = event.step or 0
            self.evaluations = [earlier for earlier in self.evaluations if (earlier.step or 0) <= checkpoint_step]


def last_ap(evaluations: Sequence[RunEvent]) -> tuple[float | None, float | None]:
    """Return the AP of the last evaluation and of the one before; None if it is undefined or there is none."""
    if not evaluations:
        return None, None
    return evaluations[-1].ap, evaluations[-1].ap_before


def _finite(live: Live) -> Live:
    """Return the record with None for numbers that are not finite, which JSON cannot hold and a table cannot show."""
    numbers = {"loss": live.loss, "images_per_second": live.images_per_second, "seconds_left": live.seconds_left}
    not_finite = {name: None for name, value in numbers.items() if value is not None and not math.isfinite(value)}
    return replace(live, **not_finite)


def _replace_file(path: Path, text: str) -> None:
    """Replace a file in one step. Unlike :func:`coordexp.files.write_text` this does not wait for the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)

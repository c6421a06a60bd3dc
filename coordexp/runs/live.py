"""What a run does at this moment (``live.json``) and what happened to it (``events.jsonl``), for whoever watches it.

Rank 0 writes both. They are records with fields, so that nobody has to parse the sentences of ``progress.log``.
``live.json`` is replaced at most once a second and may be lost: the next one says the same and more.
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

WRITE_SECONDS = 1.0  # between two steps that are written; a shared file system need not carry more
Phase = Literal["starts", "trains", "validates", "evaluates", "merges"]
EventKind = Literal["start", "phase", "evaluation", "alarm", "warning", "note", "end"]


@dataclass(frozen=True)
class Live:
    """What a run does at one moment; what is not known yet is None."""

    phase: Phase = "starts"
    step: int = 0
    num_steps: int = 0
    loss: float | None = None  # of the last logging step, as is the speed
    images_per_second: float | None = None
    seconds_left: float | None = None  # of training
    done: int = 0  # answers of an evaluation that are written, of this rank
    total: int = 0
    memory_bytes: int | None = None  # the peak of its GPU, or of its process where there is none
    time: float = 0.0  # of Unix


@dataclass(frozen=True)
class RunEvent:
    """Something that happened to a run."""

    kind: EventKind
    time: float  # of Unix
    text: str = ""  # the sentence for a person, without the run's name
    step: int | None = None
    ap: float | None = None  # of an evaluation, by the boxes that the run is compared by
    ap_before: float | None = None  # of the evaluation before it on the same images
    lines: tuple[str, ...] = ()  # of a start: what trains, and on what
    warnings: tuple[str, ...] = ()  # those of the lines that warn


_DEFAULTS = {field.name: field.default for field in fields(RunEvent)}
_LIVE = msgspec.json.Decoder(Live)
_EVENT = msgspec.json.Decoder(RunEvent)


class LiveWriter:
    """Writes both files of one run. What cannot be written is left out: it costs a view, not the run.

    Every rank has one, and only rank 0's ``writes``.
    """

    def __init__(self, folder: RunFolder, *, writes: bool, peak_memory_bytes: Callable[[], int]) -> None:
        self._folder = folder
        self._writes = writes
        self._peak_memory_bytes = peak_memory_bytes
        self._written = -math.inf
        self.now = Live()

    def show(self, live: Live) -> None:
        """Replace what the run does now: at once where its phase is new, else at most once a second."""
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
    """Append an event to a run's file, in one write; a disk that takes none loses the view of it and nothing else."""
    values = {name: value for name, value in asdict(event).items() if value != _DEFAULTS[name]}
    with contextlib.suppress(OSError):
        folder.path.mkdir(parents=True, exist_ok=True)
        with folder.events.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(values) + "\n")


def read_live(folder: RunFolder, *, since: float = 0.0) -> Live | None:
    """Return what a run does now; None where nothing readable was written from the Unix time ``since`` on."""
    try:
        live = _finite(_LIVE.decode(folder.live.read_bytes()))
    except (OSError, ValueError):
        return None
    return live if live.time >= since else None


class EventTail:
    """Reads the events of a run as they are appended, and knows the evaluations that still count."""

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.events
        self._offset = 0
        self.evaluations: list[RunEvent] = []

    def new(self) -> list[RunEvent]:
        """Return the events since the last call. A damaged line is passed over, one without its end is left."""
        try:
            with self._path.open("rb") as handle:
                if os.fstat(handle.fileno()).st_size < self._offset:  # another file: the run was started over
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
            # A run that goes on from an earlier checkpoint takes back what it evaluated after it.
            first_step = event.step or 0
            self.evaluations = [one for one in self.evaluations if (one.step or 0) <= first_step]


def last_ap(evaluations: Sequence[RunEvent]) -> tuple[float | None, float | None]:
    """Return the AP of the last evaluation and the one before it; None where it is undefined or there is none."""
    if not evaluations:
        return None, None
    return evaluations[-1].ap, evaluations[-1].ap_before


def _finite(live: Live) -> Live:
    """Return the record without numbers that JSON cannot hold and a table cannot show."""
    numbers = {"loss": live.loss, "images_per_second": live.images_per_second, "seconds_left": live.seconds_left}
    lost = {name: None for name, value in numbers.items() if value is not None and not math.isfinite(value)}
    return replace(live, **lost)


def _replace_file(path: Path, text: str) -> None:
    """Replace a file in one step, without waiting for the disk as :func:`coordexp.files.write_text` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)

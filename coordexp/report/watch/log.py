"""One run followed through its own files: each is read once, then only what was added to it."""

import json
import os
import re
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path

from coordexp.metrics import HEADLINE, SUBSET_HEADLINE
from coordexp.report.study.data import Point

_STEP = re.compile(r"  step (\d+)/(\d+)  ")
_RESUMED = re.compile(r"  resumes at step (\d+)")
_ALARM = re.compile(r"  (ALARM .*)")
_NUMBER = r"(-?(?:\d+\.?\d*(?:e[+-]?\d+)?|nan|inf))"
_VALUES = {
    "loss": re.compile(rf"  loss {_NUMBER}"),
    "coord_loss": re.compile(rf"box {_NUMBER}"),
    "images_per_second": re.compile(rf"  {_NUMBER} img/s"),
}
_LEFT = re.compile(r"  (\d+):(\d\d) left")
_KEPT_PAUSES = 50


class Tail:
    """The lines that were added to a file; a last line without its end is left for the next time."""

    def __init__(self, path: Path) -> None:
        """Follow ``path``, which need not be there yet."""
        self.path = path
        self.bytes_read = 0
        self.changed = 0.0
        self._offset = 0
        self._inode = 0

    def new_lines(self) -> tuple[list[str], bool]:
        """Return whole new lines, and whether the file was replaced or cut, so that they are all it has."""
        try:
            with self.path.open("rb") as handle:
                status = os.fstat(handle.fileno())
                was_replaced = self._inode not in (0, status.st_ino) or status.st_size < self._offset
                self._inode, self.changed = status.st_ino, status.st_mtime
                if was_replaced:
                    self._offset = 0
                if status.st_size == self._offset:
                    return [], was_replaced
                handle.seek(self._offset)
                data = handle.read()
        except OSError:  # not there, or a network disk that is away for a moment
            return [], False
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self.bytes_read += len(data)
        return whole.decode("utf-8", errors="replace").split("\n")[:-1], was_replaced


class _Followed(ABC):
    """What the lines of a file say so far; a file that was cut or replaced is taken in anew."""

    def __init__(self, path: Path) -> None:
        """Follow ``path``."""
        self.tail = Tail(path)
        self._forget()

    def read(self) -> None:
        """Take in the new lines."""
        lines, was_replaced = self.tail.new_lines()
        if was_replaced:
            self._forget()
        for line in lines:
            self._take(line)

    @abstractmethod
    def _forget(self) -> None:
        """Start from nothing."""

    @abstractmethod
    def _take(self, line: str) -> None:
        """Take in one line."""


class ProgressLog(_Followed):
    """What ``progress.log`` says: a line for each logging step, at once."""

    def _forget(self) -> None:
        self.step: int | None = None
        self.max_steps: int | None = None
        self.values: dict[str, float] = {}
        self.seconds_left: float | None = None
        self.pause: float | None = None
        self.resumed = 0
        self.alarm = ""

    def _take(self, line: str) -> None:
        if resumed := _RESUMED.search(line):
            self.step, self.seconds_left = int(resumed[1]), None
            self.resumed += 1
        elif alarm := _ALARM.search(line):
            self.alarm = alarm[1]
        elif step := _STEP.search(line):
            before, self.step, self.max_steps = self.step or 0, int(step[1]), int(step[2])
            self.values = {name: float(found[1]) for name, part in _VALUES.items() if (found := part.search(line))}
            left = _LEFT.search(line)
            self.seconds_left = int(left[1]) * 60.0 + int(left[2]) if left else None
            if self.seconds_left and self.max_steps > self.step > before:
                self.pause = self.seconds_left / (self.max_steps - self.step) * (self.step - before)


class MetricRows(_Followed):
    """What ``metrics.jsonl`` says: every value, but only up to the last checkpoint, to which a resumed run cuts it."""

    def _forget(self) -> None:
        self.step = 0
        self.time: float | None = None
        self.values: dict[str, float] = {}
        self.subset_ap: dict[int, float] = {}
        self.final_ap: float | None = None
        self.pauses: deque[float] = deque(maxlen=_KEPT_PAUSES)

    def _take(self, line: str) -> None:
        try:
            row = json.loads(line)
            step, time = int(row["step"]), float(row["time"])
            metrics = {name: float(value) for name, value in dict(row["metrics"]).items()}
        except (ValueError, TypeError, KeyError, OverflowError):  # damaged: the run's own reader says so
            return
        if self.time is not None and time > self.time:
            self.pauses.append(time - self.time)
        self.step, self.time = max(step, self.step), time
        if SUBSET_HEADLINE in metrics:
            self.subset_ap[step] = metrics[SUBSET_HEADLINE]
        self.final_ap = metrics.get(HEADLINE, self.final_ap)
        for name, key in (
            ("loss", "train_total_loss"),
            ("coord_loss", "train_coord_loss"),
            ("images_per_second", "throughput/images_per_second"),
        ):
            if key in metrics:
                self.values[name] = metrics[key]

    def ap_points(self) -> tuple[Point, ...]:
        """Return AP on the subset by step."""
        return tuple(Point(step, value) for step, value in sorted(self.subset_ap.items()))

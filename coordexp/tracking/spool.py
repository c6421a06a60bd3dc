"""A background thread that carries rows from ``metrics.jsonl`` files to MLflow; training never waits for it."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from coordexp.errors import TrackingError
from coordexp.files import parse_model
from coordexp.runs.reporter import Row
from coordexp.tracking.connection import ServerUnreachableError, server_of
from coordexp.tracking.store import Tracker

_LONGEST_WAIT_SECONDS = 60.0

_log = logging.getLogger(__name__)

Sources = Callable[[], Iterable[tuple[str, Path]]]


@dataclass
class _SentSoFar:
    """How far a file has been sent: ``offset`` bytes, which hold ``rows`` rows."""

    offset: int = 0
    rows: int = 0
    inode: int = 0
    error: str = ""
    given_up: bool = False


class RowSync:
    """Follow the files of several runs and send what MLflow lacks.

    The files are the spool: an unreachable server delays rows and loses none. Errors never reach
    the caller; ``close`` returns what is left. A last line without its newline is still being written
    and is left for later.
    """

    def __init__(
        self,
        tracker: Tracker,
        sources: Sources,
        *,
        interval_seconds: float = 2.0,
        also: Callable[[], bool] = lambda: True,
    ) -> None:
        """Start the thread.

        Args:
            tracker: where rows go.
            sources: gives ``(run_id, metrics.jsonl)`` of every run to follow; asked again at each pass.
            interval_seconds: time between passes; it doubles up to a minute while the server is away.
            also: what else waits for the server; called after the rows, returns whether the server answered.
        """
        self._tracker = tracker
        self._sources = sources
        self._interval = interval_seconds
        self._also = also
        self._sent: dict[tuple[str, Path], _SentSoFar] = {}
        self._closing = threading.Event()
        self._deadline = 0.0
        self._away = False
        self._thread = threading.Thread(target=self._run, name="coordexp-row-sync", daemon=True)
        self._thread.start()

    def close(self, timeout: float = 30.0) -> dict[Path, str]:
        """Send what is left, for at most ``timeout`` seconds, and stop; return files with unsent rows, and why."""
        self._deadline = time.monotonic() + timeout
        self._closing.set()
        self._thread.join(timeout)
        return {path: reason for run_id, path in self._sources() if (reason := self.why_unsent(run_id, path))}

    def why_unsent(self, run_id: str, path: Path) -> str:
        """Return why MLflow does not have all rows of a run's file; "" where it has."""
        sent = self._sent.get((run_id, path), _SentSoFar())
        if not path.exists() or path.read_bytes().count(b"\n") <= sent.rows:
            return ""
        return sent.error or f"MLflow at {server_of(self._tracker.uri)} was not done in time"

    def _run(self) -> None:
        wait = self._interval
        while not self._closing.wait(wait):
            wait = self._interval if self._try() else min(2 * wait, _LONGEST_WAIT_SECONDS)
        while not self._try() and time.monotonic() < self._deadline:
            time.sleep(min(1.0, self._interval))

    def _try(self) -> bool:
        """Do a pass; warn once when the server goes away, and once when it is back."""
        reached = self._pass()
        if self._away == reached:
            self._away = not reached
            news = "does not answer: rows and results wait in their files" if self._away else "is back"
            _log.warning("MLflow at %s %s", server_of(self._tracker.uri), news)
        return reached

    def _pass(self) -> bool:
        """Send new rows of every run, then what else waits; return whether the server answered."""
        for run_id, path in self._sources():
            sent = self._sent.setdefault((run_id, path), _SentSoFar())
            try:
                if not sent.given_up:
                    self._send(run_id, path, sent)
                    sent.error = ""
            except ServerUnreachableError as error:
                sent.error = str(error)
                return False
            except (TrackingError, OSError) as error:
                sent.error, sent.given_up = str(error), isinstance(error, TrackingError)
                _log.warning("rows of %s are not sent to MLflow: %s", path, error)
        return self._also()

    def _send(self, run_id: str, path: Path, sent: _SentSoFar) -> None:
        """Send what a file has beyond what was sent; a resumed run may have rewritten it."""
        if not path.exists():
            return
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != sent.inode or status.st_size < sent.offset:
                # The run's own count says which rows MLflow has.
                sent.inode, sent.offset, sent.rows = status.st_ino, 0, 0
            file.seek(sent.offset)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        if data:
            rows: list[Row] = []
            for line in data.splitlines():
                try:
                    rows.append(parse_model(Row, line))
                except ValueError as error:
                    where = f"{path}, line {sent.rows + len(rows) + 1}"
                    raise TrackingError(f"{where}: expected a row of step, time and metrics ({error})") from error
            self._tracker.append_rows(run_id, rows, start=sent.rows)
            sent.offset, sent.rows = sent.offset + len(data), sent.rows + len(rows)

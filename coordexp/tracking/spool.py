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
from coordexp.tracking.address import server_of
from coordexp.tracking.connection import ServerUnreachableError, way_on
from coordexp.tracking.store import Tracker

_LONGEST_WAIT_SECONDS = 60.0
_log = logging.getLogger(__name__)


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

    The files are the spool: an unreachable server delays rows and loses none. Errors never reach the caller; ``close``
    returns what is left. A last line without its newline is still being written and is left for later.
    """

    def __init__(
        self,
        tracker: Tracker,
        sources: Callable[[], Iterable[tuple[str, Path]]],
        *,
        interval_seconds: float = 2.0,
        also: Callable[[], bool] = lambda: True,
    ) -> None:
        """Start the thread, which asks ``sources`` for ``(run_id, metrics.jsonl)`` of every run at each pass.

        The time between passes doubles up to a minute while the server is away. ``also`` does what else waits for the
        server; it is called after the rows and returns whether the server answered.
        """
        self._tracker, self._sources, self._also = tracker, sources, also
        self._interval = interval_seconds
        self._sent: dict[tuple[str, Path], _SentSoFar] = {}
        self._closing, self._deadline = threading.Event(), 0.0
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
        """Return why MLflow lacks rows of a run's file, and whether the same command sends them; "" if it has all."""
        sent = self._sent.get((run_id, path), _SentSoFar())
        if not path.exists() or path.read_bytes().count(b"\n") <= sent.rows:
            return ""
        late = ServerUnreachableError(f"MLflow at {server_of(self._tracker.uri)} was not done in time")
        return sent.error or f"{late}{way_on(late)}"

    def _run(self) -> None:
        wait = self._interval
        while not self._closing.wait(wait):
            wait = self._interval if self._pass() else min(2 * wait, _LONGEST_WAIT_SECONDS)
        while not self._pass() and time.monotonic() < self._deadline:
            time.sleep(min(1.0, self._interval))

    def _pass(self) -> bool:
        """Send what there is; warn once when the server goes away, and once when it is back."""
        reached = self._send_all() and self._also()
        if self._away == reached:
            self._away = not reached
            news = "does not answer: rows and results wait in their files" if self._away else "is back"
            _log.warning("MLflow at %s %s", server_of(self._tracker.uri), news)
        return reached

    def _send_all(self) -> bool:
        """Send new rows of every run; return whether the server answered."""
        for run_id, path in self._sources():
            sent = self._sent.setdefault((run_id, path), _SentSoFar())
            try:
                if not sent.given_up:
                    self._send(run_id, path, sent)
                    sent.error = ""
            except ServerUnreachableError as error:
                sent.error = f"{error}{way_on(error)}"
                return False
            except (TrackingError, OSError) as error:
                sent.error = f"{error}{way_on(error)}"
                sent.given_up = isinstance(error, TrackingError)
                _log.warning("rows of %s are not sent to MLflow: %s", path, error)
        return True

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
        rows: list[Row] = []
        for number, line in enumerate(data.splitlines(), start=sent.rows + 1):
            try:
                rows.append(parse_model(Row, line))
            except ValueError as error:
                expected = "expected a row of step, time and metrics"
                raise TrackingError(f"{path}, line {number}: {expected} ({error})") from error
        if rows:
            self._tracker.append_rows(run_id, rows, start=sent.rows)
            sent.offset, sent.rows = sent.offset + len(data), sent.rows + len(rows)

"""A background thread that carries rows from ``metrics.jsonl`` files to MLflow. Training never waits for it."""

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
    """How far a file has been sent."""

    offset: int = 0  # bytes, all of whole rows
    rows: int = 0  # in these bytes
    inode: int = 0  # of the file; another one means that a resumed run has rewritten it
    error: str = ""  # why the last try failed
    given_up: bool = False  # the server will never take the next row


class RowSync:
    """Follows the files of several runs and sends the rows that MLflow lacks.

    The files are the spool, so an unreachable server delays rows and loses none. Errors never reach the caller;
    :meth:`close` returns what could not be sent. A last line without a newline is still being written and is left for
    the next pass.
    """

    def __init__(
        self,
        tracker: Tracker,
        sources: Callable[[], Iterable[tuple[str, Path]]],
        *,
        interval_seconds: float = 2.0,
        also: Callable[[], bool] = lambda: True,
    ) -> None:
        """Start the thread.

        Args:
            tracker: the experiment on its server.
            sources: returns ``(run_id, path of metrics.jsonl)`` of every run; called at each pass.
            interval_seconds: between two passes; doubles up to a minute while the server is away.
            also: does whatever else waits for the server, after the rows, and returns whether the server answered.
        """
        self._tracker = tracker
        self._sources = sources
        self._also = also
        self._interval = interval_seconds
        self._sent: dict[tuple[str, Path], _SentSoFar] = {}
        self._closing = threading.Event()
        self._deadline = 0.0
        self._away = False
        self._thread = threading.Thread(target=self._run, name="coordexp-row-sync", daemon=True)
        self._thread.start()

    def close(self, timeout: float = 30.0) -> dict[Path, str]:
        """Send what is left, for at most ``timeout`` seconds, and stop; return each file with unsent rows, and why."""
        self._deadline = time.monotonic() + timeout
        self._closing.set()
        self._thread.join(timeout)
        unsent: dict[Path, str] = {}
        for run_id, path in self._sources():
            reason = self.why_unsent(run_id, path)
            if reason:
                unsent[path] = reason
        return unsent

    def why_unsent(self, run_id: str, path: Path) -> str:
        """Return why MLflow lacks rows of a run's file, and whether the same command sends them; "" if it has all."""
        sent = self._sent.get((run_id, path), _SentSoFar())
        if not path.exists() or path.read_bytes().count(b"\n") <= sent.rows:
            return ""
        if sent.error:
            return sent.error
        too_slow = ServerUnreachableError(f"MLflow at {server_of(self._tracker.uri)} was not done in time")
        return f"{too_slow}{way_on(too_slow)}"

    def _run(self) -> None:
        wait = self._interval
        while not self._closing.wait(wait):
            wait = self._interval if self._pass() else min(2 * wait, _LONGEST_WAIT_SECONDS)
        while not self._pass() and time.monotonic() < self._deadline:
            time.sleep(min(1.0, self._interval))

    def _pass(self) -> bool:
        """Send everything that is new; warn once when the server goes away, and once when it is back.

        Returns:
            Whether the server answered.
        """
        is_away = not (self._send_all() and self._also())
        if is_away != self._away:
            self._away = is_away
            news = "does not answer: rows and results wait in their files" if is_away else "is back"
            _log.warning("MLflow at %s %s", server_of(self._tracker.uri), news)
        return not is_away

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
        """Send the rows of a file that were not sent before.

        A resumed run may have rewritten its file. Then the file is read from its beginning, and the count of rows that
        MLflow keeps for the run says which of them it has.
        """
        if not path.exists():
            return
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != sent.inode or status.st_size < sent.offset:
                sent.inode = status.st_ino
                sent.offset = 0
                sent.rows = 0
            file.seek(sent.offset)
            content = file.read()
        whole_lines = content[: content.rfind(b"\n") + 1]
        rows: list[Row] = []
        for number, line in enumerate(whole_lines.splitlines(), start=sent.rows + 1):
            try:
                rows.append(parse_model(Row, line))
            except ValueError as error:
                raise TrackingError(
                    f"{path}, line {number}: expected a row of step, time and metrics ({error})"
                ) from error
        if rows:
            self._tracker.append_rows(run_id, rows, start=sent.rows)
            sent.offset += len(whole_lines)
            sent.rows += len(rows)

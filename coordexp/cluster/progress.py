"""Progress lines travel as files in the run directories: no prefixes, no lost or folded lines, and they stay."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from coordexp.cluster.plan import RunPlan
from coordexp.errors import CoordExpError
from coordexp.train.status import RunStatus

LOG_NAME = "progress.log"
POLL_SECONDS = 0.5


def announce_to(run_dir: Path) -> Callable[[str], None]:
    """Return a function that appends a line to a run's progress log."""
    path = run_dir / LOG_NAME
    path.parent.mkdir(parents=True, exist_ok=True)

    def announce(line: str) -> None:
        with path.open("a", encoding="utf-8") as handle:
            handle.write(line.rstrip("\n") + "\n")

    return announce


class Watcher:
    """Follows runs from outside: shows what they announce, and tells when one ends.

    Works for any executor and on any shared file system, because it only reads run directories.
    """

    def __init__(
        self, plans: Sequence[RunPlan], *, show: Callable[[str], None], on_end: Callable[[RunPlan, RunStatus], None]
    ) -> None:
        """Watch ``plans`` from now on; lines and ends from before are not told again."""
        self._plans = list(plans)
        self._show = show
        self._on_end = on_end
        self._offsets = {plan.name: _size(plan.run_dir / LOG_NAME) for plan in plans}
        self._seen = {plan.name: _changed_at(plan) for plan in plans}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="watcher", daemon=True)
        self._error: CoordExpError | OSError | None = None

    def __enter__(self) -> "Watcher":
        """Start following."""
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Show the last lines and ends, then stop."""
        self._stop.set()
        self._thread.join()
        if self._error is not None and exception[0] is None:
            raise self._error

    def _follow(self) -> None:
        try:
            while not self._stop.wait(POLL_SECONDS):
                self._look()
            self._look()
        except (CoordExpError, OSError) as error:
            self._error = error

    def _look(self) -> None:
        for plan in self._plans:
            changed, status = _changed_at(plan), plan.status()  # read first: what was announced before is on disk then
            self._show_new_lines(plan)
            if status is None or changed == self._seen[plan.name]:
                continue
            self._seen[plan.name] = changed
            if status.state != "running":
                self._on_end(plan, status)

    def _show_new_lines(self, plan: RunPlan) -> None:
        path = plan.run_dir / LOG_NAME
        if _size(path) <= self._offsets[plan.name]:
            return
        with path.open("rb") as handle:
            handle.seek(self._offsets[plan.name])
            text = handle.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offsets[plan.name] += len(whole)
        for line in whole.decode("utf-8", errors="replace").splitlines():
            self._show(line)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _changed_at(plan: RunPlan) -> int:
    path = plan.run_dir / "status.json"
    return path.stat().st_mtime_ns if path.is_file() else 0

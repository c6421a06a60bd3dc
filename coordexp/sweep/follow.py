"""Follows the runs of a sweep, which are not known beforehand: console, MLflow, fingerprints."""

import contextlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from rich.console import Console

from coordexp.ablation.comparability import write_run_files
from coordexp.config import Fingerprint
from coordexp.config.identity.fingerprint import fingerprint
from coordexp.errors import TrackingError
from coordexp.runs.outcome import set_state
from coordexp.runs.plan import RunPlan
from coordexp.runs.progress import Watcher
from coordexp.runs.status import RunStatus
from coordexp.runs.stop import stop_reason
from coordexp.sweep.book import final_ap
from coordexp.tracking import Tracker
from coordexp.tracking.publish import Recorder, is_recorded
from coordexp.tracking.store import FinalStatus
from coordexp.train.setup.prepare import PreparedExperiment, token_stream_hash

_HELD_PRUNED = 4  # the last rows of so many pruned runs may still be on their way


class Fingerprints:
    """Fingerprints of runs that share data and base; the token stream is made once a seed."""

    def __init__(self, prepared: PreparedExperiment) -> None:
        """Take what the runs share."""
        self._prepared = prepared
        self._streams: dict[int, str] = {}

    def of(self, plan: RunPlan) -> Fingerprint:
        """Return the fingerprint of a run."""
        shared = self._prepared
        if plan.seed not in self._streams:
            self._streams[plan.seed] = token_stream_hash(plan.config, shared)
        return fingerprint(
            plan.config, data=shared.data_hash, weights=shared.weights_hash, tokens=self._streams[plan.seed]
        )


@dataclass
class _Followed:
    plan: RunPlan
    tags: Mapping[str, str]
    short: str
    watcher: Watcher
    recorder: Recorder | None = None


class Follower:
    """Begins and ends the record of runs while a sweep goes on. A server that is away stops no trial."""

    def __init__(self, tracker: Tracker, *, parent_key: str, fingerprints: Fingerprints, console: Console) -> None:
        """Take where to record and what to print on."""
        self._tracker = tracker
        self._parent_key = parent_key
        self._fingerprints = fingerprints
        self._console = console
        self._followed: dict[str, _Followed] = {}
        self._pruned: list[str] = []
        self._missing: list[str] = []
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sweep-record")
        self._endings: list[Future[None]] = []

    def begin(self, plan: RunPlan, tags: Mapping[str, str]) -> None:
        """Write what a run says of itself, and follow it from now on."""
        identity = self._fingerprints.of(plan)
        write_run_files(plan, identity)
        watcher = Watcher([plan], show=self.show, on_end=self._on_end)
        followed = _Followed(plan, tags, identity.short, watcher)
        with contextlib.suppress(TrackingError):  # tried again when the run has ended
            self._record(followed)
        self._followed[plan.name] = followed
        watcher.__enter__()

    def send_again(self, plan: RunPlan, tags: Mapping[str, str]) -> None:
        """Record a run that is done, if a former call could not."""
        status = plan.status()
        if status is not None and status.state in ("finished", "pruned") and not is_recorded(plan, self._tracker):
            self.begin(plan, tags)
            self.ended(plan)

    def begun(self, plan: RunPlan) -> None:
        """Hear from an executor that a run was started."""
        self._followed[plan.name].watcher.begun(plan)

    def ended(self, plan: RunPlan) -> None:
        """Hear from an executor that a run ended; store how, without waiting for it."""
        self._followed[plan.name].watcher.ended(plan)
        status = plan.status()
        if status is not None and status.state == "pruned":
            self._pruned.append(plan.name)
            name = self._pruned.pop(0) if len(self._pruned) > _HELD_PRUNED else None
        else:
            name = plan.name
        if name is not None:
            self._endings.append(self._pool.submit(self._end, self._followed.pop(name)))

    def stop_all(self) -> None:
        """Mark what still runs as stopped."""
        for followed in self._followed.values():
            status = followed.plan.status()
            if status is None or status.state == "running":
                set_state(followed.plan, "stopped", message="interrupted")

    def close(self) -> list[str]:
        """End every record; return a sentence for each thing the server does not have."""
        for name in list(self._followed):
            self._endings.append(self._pool.submit(self._end, self._followed.pop(name)))
        self._pool.shutdown()
        for ending in self._endings:
            ending.result()
        return self._missing

    def show(self, line: str) -> None:
        """Print a line as it is."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _record(self, followed: _Followed) -> None:
        recorder = Recorder(self._tracker, [followed.plan], parent_key=self._parent_key)
        recorder.start_runs({followed.plan.name: followed.short}, tags=followed.tags)
        followed.recorder = recorder

    def _on_end(self, plan: RunPlan, status: RunStatus) -> None:
        ap = final_ap(plan)
        told = f": {status.message}" if status.message else f": AP {ap:.4f}" if ap is not None else ""
        self.show(f"{plan.name}  {status.state} at step {status.step} after {status.seconds:.0f} s{told}")

    def _end(self, followed: _Followed) -> None:
        followed.watcher.__exit__(None, None, None)
        try:
            if followed.recorder is None:
                self._record(followed)
            assert followed.recorder is not None
            reason = stop_reason(followed.plan.run_dir)
            if followed.plan.status() is None and reason is not None:
                followed.recorder.end_run(followed.plan, RunStatus(state="stopped", message=reason))
                self.show(f"{followed.plan.name}  not begun: {reason}")
            self._missing += followed.recorder.close(end_parent=False)
        except TrackingError as error:
            self._missing.append(f"{followed.plan.name}: {error}")


def finish_parent(tracker: Tracker, parent_id: str, status: FinalStatus) -> list[str]:
    """End the sweep's own run; return a sentence if that cannot be done."""
    try:
        tracker.finish(parent_id, status)
    except TrackingError as error:
        return [str(error)]
    return []

"""The runs of an ablation or a sweep in MLflow: a parent, and for each run a child with curves, files and its end.

    the run's folder                                    MLflow
    status.json: begun     ── start_run, _sources ──>   a run, RUNNING
    metrics.jsonl          ── RowSync, in a thread ──>  curves
    status.json: ended     ── end_run ──>               FINISHED, FAILED or KILLED; then the run's files
    recorded.json          <── _note_recorded           all of it is there: nothing is left to send

If the server is away, a run notes what is unsent in :class:`_Followed`, the thread tries again, and
:meth:`Recorder.close` makes the last try of this command. The same command, given again, sends the rest.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from coordexp.config.keys import identity
from coordexp.config.load import database_uri
from coordexp.config.schema import RunConfig
from coordexp.config.schema.fields import Key
from coordexp.config.trees import within
from coordexp.errors import CoordExpError, TrackingError, counted
from coordexp.files import JsonValue, kept_model, write_json
from coordexp.findings import collect, size_text
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.runs.plan import RunPlan
from coordexp.runs.status import RunStatus, State
from coordexp.tracking.address import server_of, without_secrets
from coordexp.tracking.charts import COLOR_TAG, group_colors
from coordexp.tracking.connection import ServerUnreachableError, way_on
from coordexp.tracking.results import Withheld, store_files
from coordexp.tracking.server import examine_server
from coordexp.tracking.spool import RowSync
from coordexp.tracking.store import (
    MAX_TAG_LENGTH,
    PLANNED,
    READING,
    RUN_DIR,
    WHY_NOT_BEGUN,
    FinalStatus,
    StartStatus,
    Tracker,
    open_tracker,
)

_FINAL: dict[State, FinalStatus] = {
    "finished": "FINISHED",
    "failed": "FAILED",
    "stopped": "KILLED",
    "pruned": "FINISHED",
}


@dataclass(frozen=True)
class Recorded:
    """What the folder of a run that is wholly recorded says."""

    uri: str  # of the server that has the run, without secrets
    key: str  # of the run there


def read_recorded(run: RunFolder) -> Recorded | None:
    return kept_model(Recorded, run.recorded)


def is_recorded(plan: RunPlan, tracker: Tracker) -> bool:
    """Return whether this server has all rows and files of a run, so that nothing is left to send."""
    status = plan.status()
    is_over = status.state in ("finished", "pruned") and status.is_merged
    return is_over and read_recorded(plan.folder) == Recorded(without_secrets(tracker.uri), plan.key)


def tracking_uri(config: RunConfig) -> str:
    return config.tracking.uri or database_uri(config.experiment.runs_dir.absolute())


def open_experiment_tracker(config: RunConfig) -> Tracker:
    """Open the experiment on its server before anything is trained; raise a TrackingError if that cannot be used."""
    root = config.experiment.runs_dir.absolute() / "mlartifacts"
    return open_tracker(tracking_uri(config), experiment=config.experiment.name, artifact_root=root)


def tracking_notes(config: RunConfig) -> list[str]:
    """Return a sentence for each thing that the tracking server lacks and the runs can do without.

    Raises:
        TrackingError: if the runs could not be recorded there.
    """
    findings, _ = collect(examine_server(tracking_uri(config), config.experiment.name))
    return [finding.sentence for finding in findings if finding.verdict == "warning"]


def shared_identity(run: RunConfig) -> dict[str, JsonValue]:
    """Return the identity that all runs of an experiment share: without names, the seed, the loss and the factor."""

    def differs(key: Key) -> bool:
        is_of_run = key.role == "name" or key.name == "experiment.seed" or not key.decides.isdisjoint(("loss", "terms"))
        return is_of_run or within(key.name, run.ablation.factor)

    return identity(run, leave_out=differs)


@dataclass(frozen=True)
class ParentRun:
    """A parent of runs beside the experiment's own run in MLflow, such as that of the trials of one group."""

    key: str  # tells it from other parents of the experiment
    name: str
    group: str
    parent_id: str  # MLflow's id of the experiment's own run, below which it stands


@dataclass
class _Followed:
    """A run that is not wholly recorded yet."""

    plan: RunPlan
    fingerprint: str
    tags: Mapping[str, str]
    run_id: str = ""  # MLflow's id; "" before the run is created there
    ended: RunStatus | None = None  # how the run ended, once this end and the run's files are stored
    waiting: RunStatus | None = None  # how the run ended, while the server is away and this end is not stored
    problem: str = ""  # why something of the run is not stored, and whether the same command will store it
    withheld: Withheld = field(default_factory=Withheld)  # what the server cannot have of the run
    is_noted: bool = False  # the run's folder says that the server has all of it


class Recorder:
    """Records runs in MLflow. Once it has begun, a server that goes away delays records but never stops a run."""

    def __init__(self, tracker: Tracker, config: RunConfig, *, parent_key: str, above: ParentRun | None = None) -> None:
        """Start or find the parent of the runs: the experiment's own run, or a further one.

        Args:
            tracker: the experiment on its server.
            config: of any of the runs.
            parent_key: tells the parent from others.
            above: what the further parent is; None for the experiment's own run.
        """
        self._tracker = tracker
        self._record = ExperimentFolder.of(config).record
        self._runs: dict[str, _Followed] = {}
        self._why_not_begun = ""
        # The thread of RowSync and the caller's may both end or create a run; each of these happens in one at a time.
        self._ending = threading.Lock()
        self._creating = threading.Lock()
        params = shared_identity(config)
        if above is None:
            self.parent_id = tracker.start_parent(parent_key, params, {})
        else:
            self.parent_id = tracker.start_group_parent(
                parent_key, params, name=above.name, group=above.group, parent_id=above.parent_id
            )
        self._sync = RowSync(tracker, self._sources, also=self._end_waiting)

    def start_run(self, plan: RunPlan, fingerprint: str, *, tags: Mapping[str, str] | None = None) -> None:
        """Follow a run, unless it is wholly recorded: send its rows, and create it in MLflow once it has begun.

        MLflow fixes the start of a run when it is created. So a run that has not begun is only named by the parent, see
        :meth:`note_planned`.

        Raises:
            TrackingError: if the server does not take the run. It is tried again when the run has ended.
        """
        if not is_recorded(plan, self._tracker):
            run = _Followed(plan, fingerprint, tags or {})
            try:
                if plan.has_begun():
                    self._create(run, status="SCHEDULED")
            finally:
                self._runs[plan.name] = run

    def note_planned(self, plans: Sequence[RunPlan]) -> None:
        """Write into the parent which runs there will be, since MLflow has only those that have begun."""
        seeds: dict[str, list[int]] = {}
        for plan in plans:
            seeds.setdefault(plan.group, []).append(plan.seed)
        text = json.dumps(seeds, separators=(",", ":"))
        tags = {PLANNED: text if len(text) <= MAX_TAG_LENGTH else "", WHY_NOT_BEGUN: ""}
        self._tracker.set_tags(self.parent_id, tags)

    def check_artifacts(self) -> None:
        """Store the experiment's record. This shows before anything is trained whether files can be stored."""
        self._tracker.log_file(self.parent_id, self._record)

    def end_run(self, plan: RunPlan, status: RunStatus) -> None:
        """Store how a run ended, and its files. Whatever fails is tried again, at the latest by :meth:`close`.

        A run that never began is not created for this, since MLflow could not change its start later. The parent says
        why it has not begun.
        """
        run = self._runs[plan.name]
        if not run.run_id and not plan.has_begun():
            self._why_not_begun = status.message
        else:
            self._end(run, status)

    def follows(self, plan: RunPlan) -> bool:
        """Return whether :meth:`start_run` was called for a run that was not wholly recorded then."""
        return plan.name in self._runs

    def close(self, *, cut_short: bool = False) -> list[str]:
        """Send what is left, and end the parent.

        Args:
            cut_short: whether the command ended early, so that the parent is not finished.

        Returns:
            A sentence for each thing that the server does not have but could have: why, and whether the same command
            will send it. What the server can never have is in :meth:`notes`.
        """
        unsent = self._sync.close()
        statuses = {name: run.plan.status() for name, run in self._runs.items()}
        self._store_rest(statuses)
        self._note_recorded()

        names_by_problem: dict[str, list[str]] = {}
        for name, run in self._runs.items():
            problem = run.problem or unsent.get(run.plan.folder.metrics, "")
            if problem:
                names_by_problem.setdefault(problem, []).append(name)
        missing = [f"{_first_of(names)}: {problem}" for problem, names in names_by_problem.items()]

        try:
            self._end_parent({status.state for status in statuses.values()}, cut_short=cut_short)
        except TrackingError as error:
            missing.append(f"{error}{way_on(error)}")
        return missing

    def notes(self) -> list[str]:
        """Return a sentence for each thing of the runs that this server cannot have, with the place where it is."""
        not_listed = {run.withheld.not_listed for run in self._runs.values() if run.withheld.not_listed}
        sizes = {
            f"{name}/{path.name}": path.stat().st_size
            for name, run in self._runs.items()
            for path in run.withheld.too_large
        }
        if not sizes:
            return sorted(not_listed)
        largest = max(sizes, key=sizes.__getitem__)
        too_large = (
            f"MLflow at {server_of(self._tracker.uri)}, or a proxy before it, does not take "
            f"{counted(len(sizes), 'file')} (status 413), the largest {largest} of {size_text(sizes[largest])}: they "
            f"stay in {self._record.parent}. Raise its limit (nginx: client_max_body_size), and the same command sends "
            "them"
        )
        return [too_large, *sorted(not_listed)]

    def _store_rest(self, statuses: Mapping[str, RunStatus]) -> None:
        """Store the ends of runs that the server does not have yet, as far as trying makes sense."""
        over = [run for name, run in self._runs.items() if statuses[name].state not in ("waiting", "running")]
        unstored = [run for run in over if run.ended != statuses[run.plan.name]]
        never_failed = [run for run in unstored if not run.problem]
        failed_before = [run for run in unstored if run.problem]

        # If the server is away, each try would take minutes, so the first failure ends the tries.
        for run in never_failed:
            if self._why_away() or not self._end(run, statuses[run.plan.name]):
                break
        # What keeps one run from being stored probably keeps the others, too: if the first one fails again, stop.
        for run in failed_before:
            if self._why_away() or not self._end(run, statuses[run.plan.name]) or run.problem:
                break

        for run in unstored:
            if run.ended != statuses[run.plan.name]:
                run.problem = run.problem or self._why_away()

    def _why_away(self) -> str:
        """Return why the server is away, as the last try of a run said; "" if no run waits for it."""
        return next((run.problem for run in self._runs.values() if run.waiting), "")

    def _end_parent(self, states: set[State], *, cut_short: bool) -> None:
        """End the parent with the status that follows from its runs."""
        if self._why_not_begun:
            self._tracker.set_tags(self.parent_id, {WHY_NOT_BEGUN: self._why_not_begun})
        final: FinalStatus = "FINISHED"
        if cut_short or states & {"waiting", "stopped", "running"}:
            final = "KILLED"
        elif "failed" in states:
            final = "FAILED"
        # If every run was recorded before, this command has done nothing, and the end of the whole stays where it was.
        ended_at = None if self._runs else self._tracker.ended_at(self.parent_id)
        self._tracker.finish(self.parent_id, final, ended_at=ended_at)

    def _sources(self) -> list[tuple[str, Path]]:
        """Return the runs whose rows are to be sent; runs that have begun since the last call are created first."""
        runs = list(self._runs.values())
        for run in runs:
            if not run.run_id and not run.problem and run.plan.has_begun():
                try:
                    self._create(run, status="RUNNING")
                except ServerUnreachableError:
                    break  # later, with their rows
                except CoordExpError as error:
                    run.problem = f"{error}{way_on(error)}"
        return [(run.run_id, run.plan.folder.metrics) for run in runs if run.run_id]

    def _end_waiting(self) -> bool:
        """Store the ends that the server was away for; return whether it answers now."""
        for run in list(self._runs.values()):
            if run.waiting is not None and not self._end(run, run.waiting):
                return False
        self._note_recorded()
        return True

    def _end(self, run: _Followed, status: RunStatus) -> bool:
        """Store how a run ended, and its files; return whether the server answered."""
        with self._ending:
            run.waiting = None
            if run.ended != status:
                try:
                    self._store(run, status)
                    run.ended, run.problem = status, ""
                except (CoordExpError, OSError) as error:
                    run.problem = f"{error}{way_on(error)}"
                    run.waiting = status if isinstance(error, ServerUnreachableError) else None
            return run.waiting is None

    def _create(self, run: _Followed, *, status: StartStatus) -> None:
        """Find a run in MLflow, or create it, unless another thread has just done so."""
        plan = run.plan
        tags = {**run.tags, RUN_DIR: str(plan.run_dir), READING: plan.config.reading}
        color = group_colors(plan.config.ablation.groups).get(plan.group)
        if color is not None:  # a sweep's trials are no groups: they are too many for colours
            tags[COLOR_TAG] = color
        with self._creating:
            if run.run_id:
                return
            run.run_id = self._tracker.start_run(
                plan.key,
                parent_id=self.parent_id,
                group=plan.group,
                seed=plan.seed,
                fingerprint=run.fingerprint,
                params=identity(plan.config),
                tags=tags,
                status=status,
                began_at=_began_at(plan),
            )

    def _store(self, run: _Followed, status: RunStatus) -> None:
        """Store how a run ended, then its files."""
        self._create(run, status="RUNNING")
        run_id = run.run_id
        folder = run.plan.folder
        # The end comes first: if files cannot be stored, the run must not stay RUNNING for ever.
        self._tracker.finish(run_id, _FINAL[status.state], message=status.message, ended_at=_written_at(folder.status))
        if status.state == "pruned":
            self._tracker.set_tags(run_id, {"pruned": f"at step {status.step}"})
        run.withheld = store_files(self._tracker, run_id, run.plan, status)

    def _note_recorded(self) -> None:
        """Write ``recorded.json`` into the folder of each run whose end, files and rows are all on the server."""
        for run in list(self._runs.values()):
            is_over = run.ended is not None and run.ended.state in ("finished", "pruned")
            # Files that a proxy does not take stay open: the same command sends them once the proxy takes them.
            if not is_over or run.is_noted or run.withheld.too_large:
                continue
            if not self._sync.why_unsent(run.run_id, run.plan.folder.metrics):
                recorded = Recorded(without_secrets(self._tracker.uri), run.plan.key)
                write_json(run.plan.folder.recorded, asdict(recorded))
                run.is_noted = True


def _first_of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _began_at(plan: RunPlan) -> float | None:
    """Return the Unix time at which a run began: the start of its last attempt, less how long it had worked before."""
    status = plan.status()
    written_at = _written_at(plan.folder.status)
    if written_at is None:
        return None
    return (status.since or written_at) - status.seconds


def _written_at(status: Path) -> float | None:
    """Return when a run's last status was written. The server may hear of it much later."""
    return status.stat().st_mtime if status.exists() else None

"""The runs of an ablation or a sweep in MLflow: a parent, a child for each run, curves, artifacts, how it ended."""

import json
import re
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from coordexp.config.keys import identity
from coordexp.config.load import database_uri
from coordexp.config.schema import RunConfig
from coordexp.config.schema.fields import Key
from coordexp.config.trees import within
from coordexp.errors import CoordExpError, TrackingError
from coordexp.files import JsonValue, kept_model, sha256_of_file, write_json
from coordexp.metrics import headline
from coordexp.runs.experiment import directory_bytes
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.runs.plan import RunPlan
from coordexp.runs.rows import read_rows
from coordexp.runs.status import RunStatus, State
from coordexp.tracking.charts import COLOR_TAG, group_colors
from coordexp.tracking.connection import ServerUnreachableError, without_secrets
from coordexp.tracking.payload import last_values
from coordexp.tracking.spool import RowSync
from coordexp.tracking.store import (
    ANNOTATIONS,
    HARDWARE,
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
from coordexp.train.setup.source import source_of_run

_FINAL: dict[State, FinalStatus] = {
    "finished": "FINISHED",
    "failed": "FAILED",
    "stopped": "KILLED",
    "pruned": "FINISHED",
}


@dataclass(frozen=True)
class Recorded:
    """Which server (its address without secrets) has a whole run, and under which key, as the run's folder says."""

    uri: str
    key: str


def read_recorded(run: RunFolder) -> Recorded | None:
    return kept_model(Recorded, run.recorded)


def read_hardware(run: RunFolder) -> str:
    """Return what generated a run's final answers, by name; "" where that was not kept."""
    kept = kept_model(dict[str, str], run.evaluation("final").hardware) or {}
    return kept.get("hardware", "")


def is_recorded(plan: RunPlan, tracker: Tracker) -> bool:
    """Return whether this server has all rows and results of a run, so that nothing is left to send."""
    status = plan.status()
    is_over = status.state in ("finished", "pruned") and status.is_merged
    return is_over and read_recorded(plan.folder) == Recorded(without_secrets(tracker.uri), plan.key)


def tracking_uri(config: RunConfig) -> str:
    return config.tracking.uri or database_uri(config.experiment.runs_dir.absolute())


def open_experiment_tracker(config: RunConfig) -> Tracker:
    """Reach the tracking server or database now, before anything is trained; a TrackingError if it cannot be used."""
    root = config.experiment.runs_dir.absolute() / "mlartifacts"
    return open_tracker(tracking_uri(config), experiment=config.experiment.name, artifact_root=root)


def shared_identity(run: RunConfig) -> dict[str, JsonValue]:
    """Return what makes the experiment of a run the one it is: without names, the seed, the loss and the factor."""

    def differs(key: Key) -> bool:
        is_of_run = key.role == "name" or key.name == "experiment.seed" or not key.decides.isdisjoint(("loss", "terms"))
        return is_of_run or within(key.name, run.ablation.factor)

    return identity(run, leave_out=differs)


@dataclass
class _Followed:
    """A run that is not wholly recorded yet."""

    plan: RunPlan
    fingerprint: str
    tags: Mapping[str, str]
    run_id: str = ""  # before it is created in MLflow
    ended: RunStatus | None = None  # once that and its results are stored
    waiting: RunStatus | None = None  # while the server does not take that it ended so
    problem: str = ""  # why something of it is not stored
    is_noted: bool = False  # its folder says that the server has all of it


class Recorder:
    """Records runs in MLflow. Once it has begun, an unreachable server delays records, but never stops a run."""

    def __init__(self, tracker: Tracker, config: RunConfig, *, parent_key: str) -> None:
        """Start or find the experiment's own run, the parent of all; ``config`` is of any of its runs."""
        self._tracker = tracker
        self._record = ExperimentFolder.of(config).record
        self._runs: dict[str, _Followed] = {}
        self._why_not_begun = ""
        self._ending, self._creating = threading.Lock(), threading.Lock()  # one thread at a time
        self.parent_id = tracker.start_parent(parent_key, shared_identity(config), {})
        self._sync = RowSync(tracker, self._sources, also=self._end_waiting)

    def start_run(self, plan: RunPlan, fingerprint: str, *, tags: Mapping[str, str] | None = None) -> None:
        """Follow a run, unless it is wholly recorded: find it, or create it once it begins, and send its rows.

        MLflow fixes a run's start when it is created; what has not begun stands in the parent, see ``note_planned``.
        What the server does not take is raised, and tried again when the run has ended.
        """
        if not is_recorded(plan, self._tracker):
            run = _Followed(plan, fingerprint, tags or {})
            try:
                if plan.has_begun():
                    self._create(run, status="SCHEDULED")
            finally:
                self._runs[plan.name] = run

    def note_planned(self, plans: Sequence[RunPlan]) -> None:
        """Let the experiment's own run say which runs there will be: MLflow has only those that have begun."""
        seeds: dict[str, list[int]] = {}
        for plan in plans:
            seeds.setdefault(plan.group, []).append(plan.seed)
        text = json.dumps(seeds, separators=(",", ":"))
        tags = {PLANNED: text if len(text) <= MAX_TAG_LENGTH else "", WHY_NOT_BEGUN: ""}
        self._tracker.set_tags(self.parent_id, tags)

    def check_artifacts(self) -> None:
        """Store the experiment's own record, which shows before anything is trained whether files can be stored."""
        self._tracker.log_file(self.parent_id, self._record)

    def end_run(self, plan: RunPlan, status: RunStatus) -> None:
        """Store a run's artifacts and how it ended; what fails is tried again, at the latest by ``close``.

        A run that never began is not created for that: MLflow could not change its start any more. The experiment's
        own run says why.
        """
        run = self._runs[plan.name]
        if not run.run_id and not plan.has_begun():
            self._why_not_begun = status.message
        else:
            self._end(run, status)

    def close(self, *, cut_short: bool = False) -> list[str]:
        """Send what is left and end the parent; return a sentence for each thing the server does not have."""
        unsent = self._sync.close()
        names_by_problem: dict[str, list[str]] = {}
        statuses = {name: run.plan.status() for name, run in self._runs.items()}
        for name, status in statuses.items():
            run = self._runs[name]
            if status.state not in ("waiting", "running") and run.ended != status:
                # The server was just waited for in vain: trying each run would take minutes.
                if away := next((other.problem for other in self._runs.values() if other.waiting), ""):
                    run.problem = run.problem or away
                elif not (run.problem and names_by_problem):  # what keeps one run from being stored keeps others, too
                    self._end(run, status)
            if reason := run.problem or unsent.get(run.plan.folder.metrics, ""):
                names_by_problem.setdefault(reason, []).append(name)
        self._note_recorded()
        missing = [
            f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {reason}"
            for reason, names in names_by_problem.items()
        ]
        states = {status.state for status in statuses.values()}
        is_whole = not cut_short and not states & {"waiting", "stopped", "running"}
        try:
            if self._why_not_begun:
                self._tracker.set_tags(self.parent_id, {WHY_NOT_BEGUN: self._why_not_begun})
            # Where every run was recorded before, nothing was done, and the end of the whole stays where it was.
            ended_at = None if self._runs else self._tracker.ended_at(self.parent_id)
            final = "KILLED" if not is_whole else "FAILED" if "failed" in states else "FINISHED"
            self._tracker.finish(self.parent_id, final, ended_at=ended_at)
        except TrackingError as error:
            missing.append(str(error))
        return missing

    def _sources(self) -> list[tuple[str, Path]]:
        """Return the runs whose rows are sent; those that have begun since are created."""
        runs = list(self._runs.values())
        for run in runs:
            if not run.run_id and not run.problem and run.plan.has_begun():
                try:
                    self._create(run, status="RUNNING")
                except ServerUnreachableError:
                    break  # as their rows, later
                except CoordExpError as error:
                    run.problem = str(error)
        return [(run.run_id, run.plan.folder.metrics) for run in runs if run.run_id]

    def _end_waiting(self) -> bool:
        """End runs that the server did not take before; return whether it answers now."""
        for run in list(self._runs.values()):
            if run.waiting is not None and not self._end(run, run.waiting):
                return False
        self._note_recorded()
        return True

    def _end(self, run: _Followed, status: RunStatus) -> bool:
        """Store how a run ended; return whether the server answered."""
        with self._ending:
            run.waiting = None
            if run.ended != status:
                try:
                    self._store(run, status)
                    run.ended, run.problem = status, ""
                except (CoordExpError, OSError) as error:
                    run.problem = str(error)
                    run.waiting = status if isinstance(error, ServerUnreachableError) else None
            return run.waiting is None

    def _create(self, run: _Followed, *, status: StartStatus) -> None:
        """Find a run in MLflow, or create it; two threads may see that it has begun."""
        plan = run.plan
        color = group_colors(plan.config.ablation.groups).get(plan.group)  # a sweep's trials are too many for colours
        own = {RUN_DIR: str(plan.run_dir), READING: plan.config.reading, **({COLOR_TAG: color} if color else {})}
        with self._creating:
            if run.run_id:
                return
            told, written_at = plan.status(), _written_at(plan.folder.status)
            run.run_id = self._tracker.start_run(
                plan.key,
                parent_id=self.parent_id,
                group=plan.group,
                seed=plan.seed,
                fingerprint=run.fingerprint,
                params=identity(plan.config),
                tags={**run.tags, **own},
                status=status,
                # When it was last heard of, less how long it had worked.
                began_at=None if written_at is None else (told.since or written_at) - told.seconds,
            )

    def _store(self, run: _Followed, status: RunStatus) -> None:
        self._create(run, status="RUNNING")
        run_id, folder = run.run_id, run.plan.folder
        # First how it ended: where files cannot be stored, the run must not stay RUNNING for ever.
        self._tracker.finish(run_id, _FINAL[status.state], message=status.message, ended_at=_written_at(folder.status))
        if status.state == "pruned":
            self._tracker.set_tags(run_id, {"pruned": f"at step {status.step}"})
        files = (folder.config, folder.fingerprint, folder.param_groups, folder.metrics, folder.progress_log)
        for path in (*files, folder.error_log):
            if path.is_file():
                self._tracker.log_file(run_id, path)
        values = last_values(read_rows(folder.metrics))
        self._tracker.log_measured(run_id, values)
        if status.state == "finished":
            self._store_results(run_id, run.plan, values)

    def _store_results(self, run_id: str, plan: RunPlan, values: Mapping[str, float]) -> None:
        """Store the final evaluation and the merged checkpoint, which MLflow then lists among its models."""
        folder, config = plan.folder, plan.config
        annotations = source_of_run(config, "val").ground_truth_file
        evaluated_on = sha256_of_file(annotations)[:32] if annotations.is_file() else ""
        tags = {HARDWARE: read_hardware(folder), ANNOTATIONS: evaluated_on}
        self._tracker.set_tags(run_id, {name: value for name, value in tags.items() if value})
        final, merged = folder.evaluation("final").path, folder.merged
        if final.is_dir():
            self._tracker.log_directory(run_id, final, final.relative_to(plan.run_dir).as_posix())
        if not merged.is_dir():
            return
        num_bytes = directory_bytes(merged)
        # Where it lies, with the machine that sees it there: ``file://node-3/shared/runs/x``.
        uri, place = f"file://{socket.gethostname()}{quote(str(merged.absolute()))}", repr(str(merged))
        if num_bytes <= config.tracking.max_artifact_mib * 2**20:
            self._tracker.log_directory(run_id, merged, merged.name)
            uri = f"runs:/{run_id}/{merged.name}"
            place = f"mlflow.artifacts.download_artifacts({uri!r})"
        # Only now: what is named is there, whole.
        self._tracker.set_tags(run_id, {"merged_checkpoint": str(merged)})
        ap = values.get(headline(config.reading))
        params = {"group": plan.group, "seed": str(plan.seed), "base": str(config.model.path)[:500]}
        self._tracker.log_model(
            run_id,
            re.sub(r"[/:.%\"']", "-", plan.name),
            step=config.training.num_steps,
            params=params | ({} if ap is None else {"AP": f"{ap:.4f}"}),
            tags={"uri": uri, "load": f"coordexp.model.load({place})", "bytes": str(num_bytes), "run_key": plan.key},
        )

    def _note_recorded(self) -> None:
        """Note in its folder each run that is over and has its results and every row on the server."""
        for run in list(self._runs.values()):
            is_over = run.ended is not None and run.ended.state in ("finished", "pruned") and not run.is_noted
            if is_over and not self._sync.why_unsent(run.run_id, run.plan.folder.metrics):
                recorded = Recorded(without_secrets(self._tracker.uri), run.plan.key)
                write_json(run.plan.folder.recorded, asdict(recorded))
                run.is_noted = True


def _written_at(status: Path) -> float | None:
    """Return when a run's last status was written, since a server may be told of its end much later."""
    return status.stat().st_mtime if status.exists() else None

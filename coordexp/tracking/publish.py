"""The runs of an ablation or a sweep in MLflow: a parent, a child for each run, curves, artifacts, how it ended."""

import functools
import json
import re
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from coordexp.config.keys import identity, shared_identity
from coordexp.config.load import database_uri
from coordexp.config.schema import ExperimentConfig
from coordexp.data.sources.source import source_of
from coordexp.errors import CoordExpError, TrackingError
from coordexp.files import kept_model, sha256_of_file, write_json
from coordexp.metrics import BOX_KINDS, DECODINGS, MetricName
from coordexp.runs.experiment import directory_bytes
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.runs.plan import RunPlan
from coordexp.runs.reporter import Row, read_rows
from coordexp.runs.status import RunStatus, State
from coordexp.tracking.charts import COLOR_TAG, chart_of, group_colors
from coordexp.tracking.connection import ArtifactError, ServerUnreachableError, without_secrets
from coordexp.tracking.model_card import write_model_card
from coordexp.tracking.models import EvaluatedOn, MergedModel
from coordexp.tracking.payload import row_points
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
    Tracker,
    open_tracker,
)

MERGED_ARTIFACT = RunFolder(Path()).merged.name
CHANGE_ROOT = "mend that, start the server with --artifacts-destination, or set tracking.uri"
_FINAL: dict[State, FinalStatus] = {
    "finished": "FINISHED",
    "failed": "FAILED",
    "stopped": "KILLED",
    "pruned": "FINISHED",
}
_SHOWN_OF_A_MODEL = [
    str(MetricName(decoding, name, boxes))
    for decoding in DECODINGS
    for boxes in BOX_KINDS
    for name in ("AP", "AP50", "AP75")
]


@dataclass(frozen=True)
class Recorded:
    """Which server has a whole run, as the run's folder says.

    Attributes:
        uri: of the server, without secrets.
        key: the run's key there.
    """

    uri: str
    key: str


def read_recorded(run: RunFolder) -> Recorded | None:
    """Return which server has a whole run; None where no server is known to."""
    return kept_model(Recorded, run.recorded)


def read_hardware(run: RunFolder) -> str:
    """Return what generated a run's final answers, by name; "" where that was not kept."""
    kept = kept_model(dict[str, str], run.evaluation("final").hardware) or {}
    return kept.get("hardware", "")


def is_recorded(plan: RunPlan, tracker: Tracker) -> bool:
    """Return whether this server has all rows and results of a run, so that nothing is left to send."""
    status = plan.status()
    is_over = status is not None and status.state in ("finished", "pruned") and status.is_merged
    return is_over and read_recorded(plan.folder) == Recorded(without_secrets(tracker.uri), plan.key)


def tracking_uri(config: ExperimentConfig) -> str:
    """Return where runs are recorded; by default a database in the runs' directory."""
    return config.tracking.uri or database_uri(config.experiment.runs_dir.absolute())


def open_experiment_tracker(config: ExperimentConfig) -> Tracker:
    """Reach the tracking server or database now, before anything is trained.

    Raises:
        TrackingError: if it cannot be used.
    """
    root = config.experiment.runs_dir.absolute() / "mlartifacts"
    return open_tracker(tracking_uri(config), experiment=config.experiment.name, artifact_root=root)


class Recorder:
    """Records runs in MLflow. Once it has begun, an unreachable server delays records, but never stops a run."""

    def __init__(self, tracker: Tracker, config: ExperimentConfig, *, parent_key: str) -> None:
        """Start or find the experiment's own run, the parent of all.

        Args:
            tracker: where runs are recorded.
            config: of any run; what all runs share of it becomes the parent's parameters.
            parent_key: names the parent.
        """
        self._tracker = tracker
        self._record = ExperimentFolder.of(config).record
        self._plans: dict[str, RunPlan] = {}
        self._described: dict[str, tuple[str, Mapping[str, str]]] = {}
        self._run_ids: dict[str, str] = {}
        self._unbegun: dict[str, RunPlan] = {}
        self._why_not_begun = ""
        self._sources: list[tuple[str, Path]] = []
        self._ended: dict[str, RunStatus] = {}
        self._noted: set[str] = set()
        self._unrecorded: dict[str, str] = {}
        self._waiting: dict[str, tuple[RunPlan, RunStatus]] = {}
        self._lock = threading.Lock()  # a run ends in one thread at a time
        self._creating = threading.Lock()
        self.parent_id = tracker.start_parent(parent_key, shared_identity(config, besides=config.ablation.factor), {})
        self._sync = RowSync(tracker, self._followed, also=self._end_waiting)

    def start_run(self, plan: RunPlan, fingerprint: str, *, tags: Mapping[str, str] | None = None) -> None:
        """Follow a run, unless it is wholly recorded: find it, or create it once it begins, and send its rows.

        MLflow fixes a run's start when it is created; what has not begun stands in the parent, see ``note_planned``.

        Args:
            plan: the run.
            fingerprint: of it, in its short form.
            tags: further ones.

        Raises:
            TrackingError: if the server does not take it; it is tried again when the run has ended.
        """
        if not is_recorded(plan, self._tracker):
            self._plans[plan.name] = plan
            self._described[plan.name] = fingerprint, tags or {}
            if plan.status() is not None or self._tracker.has_run(plan.key):
                self._run_id(plan)
            else:
                self._unbegun[plan.name] = plan

    def note_planned(self, plans: Sequence[RunPlan]) -> None:
        """Let the experiment's own run say which runs there will be: MLflow has only those that have begun."""
        seeds: dict[str, list[int]] = {}
        for plan in plans:
            seeds.setdefault(plan.group, []).append(plan.seed)
        text = json.dumps(seeds, separators=(",", ":"))
        tags = {PLANNED: text if len(text) <= MAX_TAG_LENGTH else "", WHY_NOT_BEGUN: ""}
        self._tracker.set_tags(self.parent_id, tags)

    def check_artifacts(self) -> None:
        """Store the experiment's own record, which shows before anything is trained whether files can be stored.

        Raises:
            TrackingError: if not; the sentence says what to do.
        """
        try:
            self._tracker.log_file(self.parent_id, self._record)
        except ArtifactError as error:
            raise TrackingError(f"{error}; nothing was trained: {CHANGE_ROOT}") from error

    def set_shared(self, metrics: Mapping[str, float | None]) -> None:
        """Log what belongs to the whole experiment."""
        self._tracker.set_final(self.parent_id, metrics)

    def end_run(self, plan: RunPlan, status: RunStatus) -> None:
        """Store a run's artifacts and how it ended; what fails is tried again, at the latest by ``close``.

        A run that never began is not created for that: MLflow could not change its start any more. The experiment's
        own run says why.
        """
        with self._lock:
            if plan.name in self._unbegun and plan.status() is None:
                self._why_not_begun = status.message
                return
            if self._ended.get(plan.name) == status:
                return
            self._waiting.pop(plan.name, None)
            try:
                self._end_run(plan, status)
            except (CoordExpError, OSError) as error:
                self._unrecorded[plan.name] = str(error)
                if isinstance(error, ServerUnreachableError):
                    self._waiting[plan.name] = (plan, status)
            else:
                self._ended[plan.name] = status
                self._unrecorded.pop(plan.name, None)

    def close(self, *, cut_short: bool = False) -> list[str]:
        """Send what is left and end the parent; return a sentence for each thing the server does not have.

        Args:
            cut_short: whether the experiment ended before all its runs were done.
        """
        unsent = self._sync.close()
        is_broken = False
        for plan in self._plans.values():
            status = plan.status()
            if status is None or status.state == "running" or self._ended.get(plan.name) == status:
                continue
            if self._waiting:  # the server was just waited for in vain: trying each run would take minutes
                self._unrecorded.setdefault(plan.name, next(iter(self._unrecorded.values())))
            elif not is_broken or plan.name not in self._unrecorded:
                self.end_run(plan, status)
                is_broken = plan.name in self._unrecorded
        self._note_recorded()
        names: dict[str, list[str]] = {}
        for plan in self._plans.values():
            if reason := self._unrecorded.get(plan.name) or unsent.get(plan.folder.metrics):
                names.setdefault(reason, []).append(plan.name)
        missing = [
            f"{of[0]}{f' and {len(of) - 1} more' if len(of) > 1 else ''}: {reason}" for reason, of in names.items()
        ]
        states = {status.state if (status := plan.status()) else "stopped" for plan in self._plans.values()}
        is_whole = not cut_short and not states & {"stopped", "running"}
        try:
            final = "KILLED" if not is_whole else "FAILED" if "failed" in states else "FINISHED"
            if self._why_not_begun:
                self._tracker.set_tags(self.parent_id, {WHY_NOT_BEGUN: self._why_not_begun})
            # Where every run was recorded before, nothing was done, and the end of the whole stays where it was.
            ended_at = None if self._plans else self._tracker.ended_before(self.parent_id)
            self._tracker.finish(self.parent_id, final, ended_at=ended_at)
        except TrackingError as error:
            missing.append(str(error))
        return missing

    def _end_waiting(self) -> bool:
        """End runs that the server did not take before; return whether it answers now."""
        for plan, status in list(self._waiting.values()):
            self.end_run(plan, status)
            if plan.name in self._waiting:
                return False
        self._note_recorded()
        return True

    def _end_run(self, plan: RunPlan, status: RunStatus) -> None:
        run_id, run = self._run_id(plan), plan.folder
        # First how it ended: where files cannot be stored, the run must not stay RUNNING for ever.
        self._tracker.finish(run_id, _FINAL[status.state], message=status.message, ended_at=_written_at(run.status))
        if status.state == "pruned":
            self._tracker.set_tags(run_id, {"pruned": f"at step {status.step}"})
        for path in (run.config, run.fingerprint, run.param_groups, run.metrics, run.progress_log, run.error_log):
            if path.is_file():
                self._tracker.log_file(run_id, path)
        self._tracker.log_measured(run_id, last_values(read_rows(run.metrics)))
        if status.state == "finished":
            self._store_results(run_id, plan)

    def _followed(self) -> list[tuple[str, Path]]:
        """Return the runs whose rows are sent; those that have begun since are created."""
        for plan in list(self._unbegun.values()):
            if plan.status() is None:
                continue
            try:
                self._run_id(plan)
            except ServerUnreachableError:
                break  # as their rows, later
            except CoordExpError as error:
                self._unrecorded[plan.name] = str(error)
            self._unbegun.pop(plan.name, None)  # at the end two threads may ask, where the server answers slowly
        return list(self._sources)

    def _run_id(self, plan: RunPlan) -> str:
        with self._creating:
            return self._found_or_created(plan)

    def _found_or_created(self, plan: RunPlan) -> str:
        if plan.name not in self._run_ids:
            fingerprint, tags = self._described[plan.name]
            color = group_colors(plan.config.ablation.groups).get(plan.group)  # a sweep's trials are too many for that
            self._run_ids[plan.name] = self._tracker.start_run(
                plan.key,
                parent_id=self.parent_id,
                group=plan.group,
                seed=plan.seed,
                fingerprint=fingerprint,
                params=identity(plan.config),
                tags={
                    **tags,
                    **({COLOR_TAG: color} if color else {}),
                    RUN_DIR: str(plan.run_dir),
                    READING: plan.config.reading,
                },
                status="RUNNING" if plan.name in self._unbegun else "SCHEDULED",
                began_at=_began_at(plan),
            )
            self._sources.append((self._run_ids[plan.name], plan.folder.metrics))
        return self._run_ids[plan.name]

    def _store_results(self, run_id: str, plan: RunPlan) -> None:
        final, merged = plan.folder.evaluation("final").path, plan.folder.merged
        tags = {HARDWARE: read_hardware(plan.folder), ANNOTATIONS: annotations_hash(plan.config)}
        self._tracker.set_tags(run_id, {name: value for name, value in tags.items() if value})
        if final.is_dir():
            self._tracker.log_directory(run_id, final, final.relative_to(plan.run_dir).as_posix())
        if not merged.is_dir():
            return
        write_model_card(plan.config, metrics=final.metrics if (final := _final_row(plan)) else {})
        num_bytes = directory_bytes(merged)
        as_artifact = num_bytes <= plan.config.tracking.max_artifact_mib * 2**20
        if as_artifact:
            self._tracker.log_directory(run_id, merged, MERGED_ARTIFACT)
        # Only now: what is named is there, whole.
        self._tracker.set_tags(run_id, {"merged_checkpoint": str(merged)})
        self._tracker.log_model(run_id, merged_model(plan, run_id=run_id, num_bytes=num_bytes, as_artifact=as_artifact))

    def _note_recorded(self) -> None:
        """Note in its folder each run that is over and has its results and every row on the server."""
        for plan in list(self._plans.values()):
            status = self._ended.get(plan.name)
            is_over = status is not None and status.state in ("finished", "pruned") and plan.name not in self._noted
            if is_over and not self._sync.why_unsent(self._run_ids[plan.name], plan.folder.metrics):
                write_json(plan.folder.recorded, asdict(Recorded(without_secrets(self._tracker.uri), plan.key)))
                self._noted.add(plan.name)


def _began_at(plan: RunPlan) -> float | None:
    """Return when a run began, from when it was last heard of and how long it had worked; None for not yet."""
    status, written_at = plan.status(), _written_at(plan.folder.status)
    return None if status is None or written_at is None else (status.since or written_at) - status.seconds


def _written_at(status: Path) -> float | None:
    """Return when a run's last status was written, since a server may hear of its end much later."""
    try:
        return status.stat().st_mtime
    except OSError:
        return None


def merged_model(plan: RunPlan, *, run_id: str, num_bytes: int, as_artifact: bool) -> MergedModel:
    """Describe a finished run's merged checkpoint, wholly stored, as MLflow lists it among its models.

    Args:
        plan: the run.
        run_id: its MLflow run.
        num_bytes: size of the checkpoint.
        as_artifact: MLflow has a copy; otherwise it lies in the run's directory only.
    """
    directory = plan.folder.merged
    uri = f"runs:/{run_id}/{MERGED_ARTIFACT}" if as_artifact else storage_uri(directory)
    place = f"mlflow.artifacts.download_artifacts({uri!r})" if as_artifact else repr(str(directory))
    final = _final_row(plan)
    # Exactly the points that the run itself has: the same points are kept once.
    shown = {chart_of(name) for name in _SHOWN_OF_A_MODEL}
    points = [point for point in row_points(final, {}) if point.name in shown] if final else []
    return MergedModel(
        name=re.sub(r"[/:.%\"']", "-", plan.name),
        step=points[0].step if points else plan.config.training.num_steps,
        params={"group": plan.group, "seed": str(plan.seed), "base": str(plan.config.model.path)},
        tags={
            "uri": uri,
            "load": f"coordexp.model.load({place})",
            "bytes": str(num_bytes),
            "run_key": plan.key,
        },
        points=points,
        dataset=_validation_data(plan.config),
    )


def last_values(rows: Sequence[Row]) -> dict[str, float]:
    """Return the last value of each metric."""
    return {name: value for row in rows for name, value in row.metrics.items()}


def _final_row(plan: RunPlan) -> Row | None:
    rows = read_rows(plan.folder.metrics)
    return next((row for row in reversed(rows) if not row.metrics.keys().isdisjoint(_SHOWN_OF_A_MODEL)), None)


def storage_uri(directory: Path) -> str:
    """Return where a directory is, with the machine that sees it there: ``file://node-3/shared/runs/x``."""
    return f"file://{socket.gethostname()}{quote(str(directory.absolute()))}"


def _validation_data(config: ExperimentConfig) -> EvaluatedOn | None:
    source = source_of(config.data, "val", data_dir=ExperimentFolder.of(config).data)
    path = source.annotations
    if not path.is_file():
        return None
    return EvaluatedOn(source.name, _digest(path, path.stat().st_mtime_ns), str(path))


def annotations_hash(config: ExperimentConfig) -> str:
    """Return how the SHA-256 of the annotations a run is evaluated on begins; "" where they are not here."""
    path = source_of(config.data, "val", data_dir=ExperimentFolder.of(config).data).ground_truth_file
    return _digest(path, path.stat().st_mtime_ns) if path.is_file() else ""


@functools.lru_cache(maxsize=8)
def _digest(path: Path, changed_ns: int) -> str:
    """Hash annotations once for all runs; ``changed_ns`` makes a changed file another one."""
    del changed_ns
    return sha256_of_file(path)[:32]

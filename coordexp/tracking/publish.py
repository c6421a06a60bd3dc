"""What an ablation tells the tracking server: a parent, a child for each run, curves, artifacts, how it ended."""

import threading
from collections.abc import Mapping, Sequence

from coordexp.config.identity.parts import identity
from coordexp.config.load import database_uri
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import TrackingError
from coordexp.files import JsonValue, write_json
from coordexp.runs.experiment import directory_bytes
from coordexp.runs.plan import RunPlan
from coordexp.runs.status import RunStatus, State
from coordexp.tracking import RowSync, ServerUnreachableError, Tracker, open_tracker
from coordexp.tracking.connection import without_secrets
from coordexp.tracking.exported_model import ARTIFACT, merged_model
from coordexp.tracking.store import FinalStatus

_FINAL: dict[State, FinalStatus] = {
    "finished": "FINISHED",
    "failed": "FAILED",
    "stopped": "KILLED",
    "pruned": "FINISHED",
}


def tracking_uri(config: ExperimentConfig) -> str:
    """Return where runs are recorded; a database in the runs' directory if nothing else was said."""
    return config.tracking.uri or database_uri(config.experiment.runs_dir.absolute())


def open_experiment_tracker(config: ExperimentConfig) -> Tracker:
    """Reach the tracking server or database now, before anything is trained.

    Raises:
        TrackingError: if it cannot be used.
    """
    root = config.experiment.runs_dir.absolute() / "mlartifacts"
    return open_tracker(tracking_uri(config), experiment=config.experiment.name, artifact_root=root)


class Recorder:
    """The ablation's runs in MLflow. After it began, a server that is away delays and never stops a run."""

    def __init__(self, tracker: Tracker, plans: Sequence[RunPlan], *, parent_key: str) -> None:
        """Start or find the parent of ``plans``."""
        self._tracker = tracker
        self._plans = [plan for plan in plans if not _is_recorded(plan, tracker.uri)]
        self._run_ids: dict[str, str] = {}
        self._ended: dict[str, RunStatus] = {}
        self._unrecorded: dict[str, str] = {}
        self._waiting: dict[str, tuple[RunPlan, RunStatus]] = {}
        self._lock = threading.Lock()  # a run ends in one thread at a time
        self._sync: RowSync | None = None
        shared = identity(plans[0].config)
        for key in ("experiment", "objective", "custom", *plans[0].config.ablation.factor):
            _drop(shared, key.split("."))
        self.parent_id = tracker.start_parent(parent_key, shared, {})

    def start_runs(self, fingerprints: Mapping[str, str], *, tags: Mapping[str, str] | None = None) -> None:
        """Create or find each run that is not wholly recorded, and send its rows from now on.

        Args:
            fingerprints: by run name.
            tags: further tags of each run.
        """
        for plan in self._plans:
            self._run_ids[plan.name] = self._tracker.start_run(
                plan.key,
                parent_id=self.parent_id,
                group=plan.group,
                seed=plan.seed,
                fingerprint=fingerprints[plan.name],
                params=identity(plan.config),
                tags={**(tags or {}), "run_dir": str(plan.run_dir)},
                status="SCHEDULED",
            )
        sources = [(self._run_ids[plan.name], plan.folder.metrics) for plan in self._plans]
        self._sync = RowSync(self._tracker, lambda: sources, also=self._end_waiting)

    def set_shared(self, metrics: Mapping[str, float | None]) -> None:
        """Log what belongs to the whole experiment."""
        self._tracker.set_final(self.parent_id, metrics)

    def end_run(self, plan: RunPlan, status: RunStatus) -> None:
        """Store a run's artifacts and how it ended; what fails is tried again, at the latest by ``close``."""
        with self._lock:
            if self._ended.get(plan.name) == status:
                return
            self._waiting.pop(plan.name, None)
            try:
                self._end_run(plan, status)
            except (TrackingError, OSError) as error:
                self._unrecorded[plan.name] = str(error)
                if isinstance(error, ServerUnreachableError):
                    self._waiting[plan.name] = (plan, status)
            else:
                self._ended[plan.name] = status
                self._unrecorded.pop(plan.name, None)

    def close(self, *, end_parent: bool = True) -> list[str]:
        """Send what is left and end the parent; return a sentence for each thing the server does not have.

        Args:
            end_parent: a sweep records trial by trial, and ends the parent after the last one.
        """
        unsent = self._sync.close() if self._sync else []
        for plan in self._plans:
            status = plan.status()
            if status is None or status.state == "running" or self._ended.get(plan.name) == status:
                continue
            if self._waiting:  # the server has just had its time: to try each would take minutes
                self._unrecorded.setdefault(plan.name, next(iter(self._unrecorded.values())))
            else:
                self.end_run(plan, status)
        missing = [f"{name}: {reason}" for name, reason in self._unrecorded.items()]
        missing += [f"{left.path}: {left.rows} rows were not sent ({left.reason})" for left in unsent]
        if not end_parent:
            return missing
        states = {status.state if (status := plan.status()) else "stopped" for plan in self._plans}
        try:
            final = "KILLED" if states & {"stopped", "running"} else "FAILED" if "failed" in states else "FINISHED"
            self._tracker.finish(self.parent_id, final)
        except TrackingError as error:
            missing.append(str(error))
        return missing

    def _end_waiting(self) -> bool:
        """End runs that the server did not take before; say whether it answers now."""
        for plan, status in list(self._waiting.values()):
            self.end_run(plan, status)
            if plan.name in self._waiting:
                return False
        return True

    def _end_run(self, plan: RunPlan, status: RunStatus) -> None:
        run_id = self._run_ids[plan.name]
        run = plan.folder
        for path in (run.config, run.fingerprint, run.param_groups, run.progress_log, run.error_log):
            if path.is_file():
                self._tracker.log_file(run_id, path)
        if status.state == "finished":
            self._store_results(run_id, plan)
        if status.state == "pruned":
            self._tracker.set_tags(run_id, {"pruned": f"at step {status.step}"})
        self._tracker.finish(run_id, _FINAL[status.state], message=status.message)
        if status.state == "finished":
            write_json(plan.folder.recorded, {"uri": without_secrets(self._tracker.uri), "key": plan.key})

    def _store_results(self, run_id: str, plan: RunPlan) -> None:
        final, merged = plan.folder.evaluation("final").path, plan.folder.merged
        if final.is_dir():
            self._tracker.log_directory(run_id, final, str(final.relative_to(plan.run_dir)))
        if not merged.is_dir():
            return
        num_bytes = directory_bytes(merged)
        as_artifact = num_bytes <= plan.config.tracking.max_artifact_mib * 2**20
        if as_artifact:
            self._tracker.log_directory(run_id, merged, ARTIFACT)
        # Only now: what is named is there, whole.
        self._tracker.set_tags(run_id, {"merged_checkpoint": str(merged)})
        self._tracker.log_model(run_id, merged_model(plan, run_id=run_id, num_bytes=num_bytes, as_artifact=as_artifact))


def _drop(nested: dict[str, JsonValue], key: Sequence[str]) -> None:
    """Remove a dotted key: what may differ between groups is no property of the whole."""
    inner = nested.get(key[0])
    if len(key) == 1:
        nested.pop(key[0], None)
    elif isinstance(inner, dict):
        _drop(inner, key[1:])


def _is_recorded(plan: RunPlan, uri: str) -> bool:
    path = plan.folder.recorded
    return plan.is_finished() and path.is_file() and f'"{without_secrets(uri)}"' in path.read_text(encoding="utf-8")

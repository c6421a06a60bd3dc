"""An experiment followed through MLflow, one search a look, where the runs' folders are on another machine."""

from math import prod
from typing import TYPE_CHECKING

from coordexp.errors import TrackingError
from coordexp.metrics import HEADLINE, SUBSET_HEADLINE
from coordexp.report.study.data import Point
from coordexp.report.study.load import (
    MLFLOW_STATES,
    NothingRecordedError,
    find_experiment,
    newest_runs,
    open_client,
    whole_tag,
)
from coordexp.report.watch.rows import COORD_LOSS, LOSS, SPEED, RunRow, Snapshot, patience
from coordexp.tracking.connection import ServerUnreachableError, tracking_errors, without_secrets
from coordexp.tracking.store import LAST_STEP, MESSAGE

if TYPE_CHECKING:
    from mlflow.entities import Run

_GLOBAL_BATCH_SIZE = ("training.per_device_batch_size", "training.gradient_accumulation_steps", "cluster.num_workers")


class MlflowSource:
    """Reads the newest runs of an experiment; a server that is away delays what it shows."""

    def __init__(self, uri: str, experiment: str | None) -> None:
        """Follow an experiment, or the one in which a run was started last."""
        self._uri = uri
        self._name = experiment
        self._experiment_id: str | None = None
        self._subset_ap: dict[str, dict[int, float]] = {}
        self._reached: float | None = None
        self._kept = Snapshot(experiment or "", f"MLflow at {without_secrets(uri)}")

    def read(self, now: float) -> Snapshot:
        """Return where the experiment stands, or where it stood when MLflow answered last.

        Args:
            now: Unix time.

        Raises:
            TrackingError: at the first look, for a URI that can never work.
        """
        kept = self._kept
        try:
            self._kept = self._read()
            self._reached = now
        except NothingRecordedError as error:
            return Snapshot(kept.experiment, kept.source, note=f"waiting, until Ctrl-C: {error}")
        except TrackingError as error:
            if self._reached is None and not isinstance(error, ServerUnreachableError):
                raise
            since = "" if self._reached is None else f" for {now - self._reached:.0f} s"
            return Snapshot(kept.experiment, kept.source, kept.runs, kept.started, note=f"no news{since}: {error}")
        return self._kept

    def _read(self) -> Snapshot:
        client = open_client(self._uri)
        with tracking_errors(self._uri, "read the experiment"):
            if self._experiment_id is None:
                experiment = find_experiment(client, self._uri, self._name)
                self._name, self._experiment_id = experiment.name, experiment.experiment_id
            parent, runs, _ = newest_runs(client, self._experiment_id)
        rows = [self._row(run) for run in runs]
        return Snapshot(
            experiment=self._name or "",
            source=self._kept.source,
            runs=tuple(sorted(rows, key=lambda row: (row.seed, row.group))),
            started=parent.info.start_time / 1000 if parent else None,
            ended=parent is not None and parent.info.status not in ("RUNNING", "SCHEDULED"),
        )

    def _row(self, run: "Run") -> RunRow:
        metrics, params, tags = run.data.metrics, run.data.params, run.data.tags
        state = MLFLOW_STATES[run.info.status]
        step, max_steps = whole_tag(run, LAST_STEP), _whole(params.get("training.max_steps")) or None
        speed = metrics.get(SPEED)
        seconds_per_step = prod(_whole(params.get(name, "1")) for name in _GLOBAL_BATCH_SIZE) / speed if speed else None
        # Rows come with a checkpoint, so a run is silent in between.
        pause = (seconds_per_step or 0.0) * _whole(params.get("training.checkpoint_steps"))
        points = run.data.to_proto().metrics
        # A search gives the last point of each curve only; those before it are not asked for.
        subset_ap = self._subset_ap.setdefault(run.info.run_id, {})
        subset_ap.update({int(point.step): point.value for point in points if point.key == SUBSET_HEADLINE})
        seen = max([point.timestamp for point in points] + [run.info.start_time, run.info.end_time or 0]) / 1000
        return RunRow(
            name=f"{tags['group']}-s{tags['seed']}",
            group=tags["group"],
            seed=whole_tag(run, "seed"),
            state=state,
            step=step,
            max_steps=max_steps,
            loss=metrics.get(LOSS),
            coord_loss=metrics.get(COORD_LOSS),
            images_per_second=speed,
            seconds_left=seconds_per_step * max(0, max_steps - step) if seconds_per_step and max_steps else None,
            seconds=metrics.get("final/seconds"),
            subset_ap=tuple(Point(*point) for point in sorted(subset_ap.items())),
            final_ap=metrics.get(HEADLINE),
            last_seen=None if state == "waiting" else seen,
            patience=patience([pause] if pause else [], is_evaluating=max_steps is not None and step >= max_steps),
            message=tags.get(MESSAGE, ""),
        )


def _whole(text: str | None) -> int:
    """Return a number of a server's tag or parameter; 0 for what is none."""
    return int(text) if text and text.isdecimal() else 0

"""An experiment followed through MLflow: one search of what runs a look, for a cluster whose disk is elsewhere."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from coordexp.errors import TrackingError
from coordexp.metrics import HEADLINE, SUBSET_HEADLINE
from coordexp.report.study.data import Point, State
from coordexp.report.watch.rows import RunRow, Snapshot, patience
from coordexp.tracking.connection import (
    ServerUnreachableError,
    connect,
    sqlite_path,
    tracking_errors,
    without_secrets,
)
from coordexp.tracking.store import EXPERIMENT_TAG, LAST_STEP, MESSAGE, PARENT, RUN_KEY

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

_STATES: dict[str, State] = {
    "SCHEDULED": "waiting",
    "RUNNING": "running",
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "stopped",
}
_MAX_RUNS = 1000
_LOOKS_FOR_ALL = 12
_LAST_CHANGED = "last_update_time DESC"
_MOST_NAMES = 8
_NEWEST_FIRST = "attributes.start_time DESC"


class MlflowSource:
    """Reads the newest runs of an experiment; a server that is away delays what it shows."""

    def __init__(self, uri: str, experiment: str | None) -> None:
        """Follow an experiment, or the one in which a run was started last."""
        self._uri = uri
        self._name = experiment
        self._client: MlflowClient | None = None
        self._experiment_id: str | None = None
        self._curves: dict[str, dict[int, float]] = {}
        self._runs: dict[str, Run] = {}
        self._looks = 0
        self._kept = Snapshot(experiment or "", self._where(), note="not there yet")
        self._reached: float | None = None
        self.calls = 0

    def read(self, now: float) -> Snapshot:
        """Return where the experiment stands, or where it stood when MLflow answered last.

        Args:
            now: Unix time.

        Raises:
            TrackingError: at the first look, for a URI that can never work.
        """
        try:
            self._kept = self._read()
            self._reached = now
        except TrackingError as error:
            if self._reached is None and not isinstance(error, ServerUnreachableError):
                raise
            self._client = None
            since = "" if self._reached is None else f" for {now - self._reached:.0f} s"
            return Snapshot(
                self._kept.experiment,
                self._kept.source,
                self._kept.runs,
                self._kept.started,
                note=f"no news{since}: {error}",
            )
        return self._kept

    def _where(self) -> str:
        return f"MLflow at {without_secrets(self._uri)}"

    def _read(self) -> Snapshot:
        path = sqlite_path(self._uri)
        if path is not None and not path.is_file():
            return Snapshot(self._name or "", self._where(), note=f"there is no database at {path} yet")
        if self._client is None:
            self.calls += 1
            self._client = connect(self._uri)
        with tracking_errors(self._uri, "read the experiment"):
            if self._experiment_id is None and not self._find(self._client):
                names = self._names(self._client)
                note = f"it has no such experiment yet{names}; waiting for it (Ctrl-C ends)"
                return Snapshot(self._name or "", self._where(), note=note)
            self._update(self._client)
        return self._snapshot(list(self._runs.values()))

    def _update(self, client: "MlflowClient") -> None:
        """Ask for what runs, and for what ran and no longer does; now and then, and where that is not all, for all."""
        is_due = self._looks % _LOOKS_FOR_ALL == 0
        self._looks += 1
        found = {} if is_due else self._search(client, " AND attributes.status = 'RUNNING'")
        has_parent = any("seed" not in run.data.tags for run in found.values())
        if is_due or not has_parent or found.keys() - self._runs.keys():
            self._runs = self._search(client)
            return
        for run_id in [key for key, run in self._runs.items() if run.info.status == "RUNNING" and key not in found]:
            self.calls += 1
            found[run_id] = client.get_run(run_id)
        self._runs |= found  # those known keep their place, the newest first

    def _search(self, client: "MlflowClient", condition: str = "") -> "dict[str, Run]":
        self.calls += 1
        runs = client.search_runs(
            [self._experiment_id or ""],
            f"tags.{RUN_KEY} LIKE '%'{condition}",
            max_results=_MAX_RUNS,
            order_by=[_NEWEST_FIRST],
        )
        return {run.info.run_id: run for run in runs}

    def _find(self, client: "MlflowClient") -> bool:
        self.calls += 1
        if self._name is not None:
            experiment = client.get_experiment_by_name(self._name)
        else:
            found = client.search_experiments(filter_string=f"tags.{EXPERIMENT_TAG} = 'ablation'")
            known = {item.experiment_id: item for item in found}
            self.calls += 1
            newest = client.search_runs(list(known), max_results=1, order_by=[_NEWEST_FIRST]) if known else []
            experiment = known[newest[0].info.experiment_id] if newest else None
        if experiment is None:
            return False
        self._name, self._experiment_id = experiment.name, experiment.experiment_id
        return True

    def _names(self, client: "MlflowClient") -> str:
        """Return what there is instead: a name may be mistyped."""
        self.calls += 1
        found = client.search_experiments(filter_string=f"tags.{EXPERIMENT_TAG} = 'ablation'", order_by=[_LAST_CHANGED])
        names = [item.name for item in found]
        shown = ", ".join(names[:_MOST_NAMES]) + (
            f" and {len(names) - _MOST_NAMES} more" if names[_MOST_NAMES:] else ""
        )
        return f" (it has: {shown})" if names else ""

    def _snapshot(self, found: "list[Run]") -> Snapshot:
        parent = next((run for run in found if "seed" not in run.data.tags), None)
        parent_id = parent.info.run_id if parent else None
        children = [run for run in found if run.data.tags.get(PARENT) == parent_id and _has_name(run)]
        newest = {(run.data.tags["group"], int(run.data.tags["seed"])): run for run in reversed(children)}
        order = sorted(newest, key=lambda key: (key[1], key[0]))
        return Snapshot(
            experiment=self._name or "",
            source=self._where(),
            runs=tuple(self._row(newest[key], group=key[0], seed=key[1]) for key in order),
            started=parent.info.start_time / 1000 if parent else None,
            ended=parent is not None and parent.info.status not in ("RUNNING", "SCHEDULED"),
        )

    def _row(self, run: "Run", *, group: str, seed: int) -> RunRow:
        metrics, params, tags = run.data.metrics, run.data.params, run.data.tags
        state = _STATES[run.info.status]
        step, max_steps = _whole(tags.get(LAST_STEP)), _whole(params.get("training.max_steps")) or None
        speed = metrics.get("throughput/images_per_second")
        seconds_per_step = _images_per_step(params) / speed if speed else None
        committed = _whole(params.get("training.checkpoint_steps"))
        is_evaluating = max_steps is not None and step >= max_steps
        ended = run.info.end_time
        return RunRow(
            name=f"{group}-s{seed}",
            group=group,
            seed=seed,
            state=state,
            step=step,
            max_steps=max_steps,
            loss=metrics.get("train_total_loss"),
            coord_loss=metrics.get("train_coord_loss"),
            images_per_second=speed,
            seconds_left=seconds_per_step * max(0, max_steps - step) if seconds_per_step and max_steps else None,
            seconds=metrics.get("final/seconds"),
            subset_ap=self._curve(run),
            final_ap=metrics.get(HEADLINE),
            last_seen=_last_seen(run, ended) if state != "waiting" else None,
            # Rows come with a checkpoint, so a run is silent in between.
            patience=patience(
                usual=seconds_per_step * committed if seconds_per_step and committed else None,
                pauses=(),
                is_evaluating=is_evaluating,
            ),
            message=tags.get(MESSAGE, ""),
        )

    def _curve(self, run: "Run") -> tuple[Point, ...]:
        """Return the points of AP seen so far: a search gives the last one only, and the rest is not asked for."""
        seen = self._curves.setdefault(run.info.run_id, {})
        point = _points(run).get(SUBSET_HEADLINE)
        if point is not None:
            seen[int(point.step)] = float(point.value)
        return tuple(Point(step, value) for step, value in sorted(seen.items()))


def _points(run: "Run") -> "dict[str, Metric]":
    return {point.key: point for point in run.data._metric_objs}  # pyright: ignore


def _last_seen(run: "Run", ended: int | None) -> float:
    times = [int(point.timestamp) for point in _points(run).values()]
    return max([*times, run.info.start_time, ended or 0]) / 1000


def _images_per_step(params: Mapping[str, str]) -> int:
    parts = ("training.per_device_batch_size", "training.gradient_accumulation_steps", "cluster.num_workers")
    product = 1
    for name in parts:
        product *= _whole(params.get(name, "1"))
    return product


def _has_name(run: "Run") -> bool:
    return "group" in run.data.tags and run.data.tags.get("seed", "").isdecimal()


def _whole(text: str | None) -> int:
    """Return a number of a server's tag or parameter; 0 for what is none."""
    try:
        return int(text or 0)
    except ValueError:
        return 0

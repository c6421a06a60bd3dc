"""Runs on a Ray cluster: one Tune trial each, as many at once as fit, and one more that gets ready."""

import contextlib
import itertools
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import ray
from ray import tune
from ray.tune import TuneError
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from coordexp.cluster.capacity import count_slots
from coordexp.cluster.driver import drive
from coordexp.cluster.live_metrics import QueueMetrics
from coordexp.cluster.ray_private import ON_HEAD_NODE, SilentTrialProgress, free_leaked_placement_groups, hide_deaths
from coordexp.cluster.shared_storage import check_shared_storage
from coordexp.config.schema import Cluster, ExperimentConfig
from coordexp.errors import ResourceError
from coordexp.runs.executor import NO_EVENTS, RunEvents, TrainFunction
from coordexp.runs.plan import RunPlan
from coordexp.runs.status import RunStatus, one_sentence, set_state
from coordexp.runs.stop import stop_reason

_DECIDE_SECONDS = 0.5  # between two calls of a search's ``decide``
_FREE_SECONDS = 10.0  # between two looks for what dead drivers hold: another run may wait for it
_HEADLESS_SECONDS = 60.0  # without the head's node, where drivers are: none of them can begin again


class RayExecutor:
    """Does runs on the Ray cluster that this process has joined or is joining."""

    def __init__(self, started: "Future[None] | None" = None) -> None:
        """Use Ray once ``started`` is done, or at once where it is None."""
        self._started = started

    def check(self, config: ExperimentConfig) -> None:
        """Refuse a cluster too small for one run, or one whose nodes do not share the experiment's files."""
        if self._started is not None:
            self._started.result()
        available_slots(config.cluster)
        check_shared_storage(config)

    def execute(
        self,
        plans: Iterable[RunPlan],
        function: TrainFunction,
        events: RunEvents = NO_EVENTS,
        *,
        decide: Callable[[], None] | None = None,
    ) -> None:
        """Do the runs; a trial holds no CPU of its own, so runs that wait for workers starve none that have them."""
        remaining = iter(plans)
        first = next(remaining, None)
        if first is None:  # workers of a killed command may have finished the last ones meanwhile
            return
        queue = _Queue(itertools.chain([first], remaining))
        cluster = first.config.cluster
        slots = available_slots(cluster)

        def trial(run: dict[str, str]) -> None:
            previous = run.get("previous")
            drive(run["plan"], function, previous=Path(previous) if previous else None)

        records = first.folder.experiment.ray_records
        shutil.rmtree(records, ignore_errors=True)
        for name in ("ray.tune", "ray.train"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # runs say by their statuses how they failed
        hide_deaths()
        tuner = tune.Tuner(
            tune.with_resources(trial, ON_HEAD_NODE),
            tune_config=tune.TuneConfig(
                search_alg=queue,
                num_samples=-1,
                max_concurrent_trials=slots if decide else trials_at_once(cluster, slots=slots),
                reuse_actors=True,
                trial_name_creator=_name,
                trial_dirname_creator=_name,
            ),
            run_config=tune.RunConfig(
                storage_path=str(records.parent),
                name=records.name,
                verbose=0,
                callbacks=[SilentTrialProgress(), _PassEvents(queue, events, decide)],
                failure_config=tune.FailureConfig(max_failures=cluster.max_failures),
            ),
        )
        try:
            results = tuner.fit()
        except TuneError as error:
            raise own_error(error) from None
        errors = {result.config["name"]: result.error for result in results if result.config and result.error}
        for name, plan in queue.plans.items():
            end_without_driver(plan, errors.get(name), before=queue.before[name])

    def live_queue(
        self, experiment: str, plans: Callable[[], Sequence[RunPlan]]
    ) -> contextlib.AbstractContextManager[object]:
        """Return a block during which Ray serves every run's state to Prometheus."""
        return QueueMetrics(experiment, plans)


def available_slots(cluster: Cluster) -> int:
    """Return how many runs the joined cluster holds at once.

    Raises:
        ResourceError: if one run does not fit: Ray would wait for ever.
    """
    return count_slots(cluster, [node["Resources"] for node in ray.nodes() if node["Alive"]])


def trials_at_once(cluster: Cluster, *, slots: int) -> int:
    """Return one more than fit: it gets its processes ready, and takes its workers when another run frees them.

    Not with a budget, which at the end of a run decides whether the next may begin, nor where the user limits their
    number: there may be room for one more.
    """
    is_limited = cluster.max_gpu_hours is not None or cluster.max_concurrent_runs is not None
    return slots if is_limited else slots + 1


def own_error(error: TuneError) -> BaseException:
    """Return what one of our events raised in Tune, which makes a traceback of it as a text."""
    inner: BaseException | None = error
    while isinstance(inner, TuneError):
        inner = inner.__cause__ or inner.__context__
    return inner or error


def end_without_driver(plan: RunPlan, error: object, *, before: RunStatus | None = None) -> None:
    """Set the final status of a run whose driver did not. Of a driver that died, Tune has a text and no exception.

    Args:
        plan: of the run.
        error: that Tune has of its trial, if any.
        before: its status before this command; if that is unchanged, this attempt has left none of its own.
    """
    status, stop = plan.status(), stop_reason(plan.run_dir)
    state = None if status is None else status.state
    if state == "failed" and status == before and error is not None:
        state = None
    if state == "running" and stop is not None:
        set_state(plan.run_dir, "stopped", message=stop)
    elif state == "running" or (stop is None and (state is None or (state == "stopped" and error is not None))):
        known = one_sentence(error) if isinstance(error, Exception) else "the run's driver process died"
        set_state(plan.run_dir, "failed", message=known)


class _Queue(Searcher):
    """Gives Tune one run after the other, when it has room for it."""

    def __init__(self, plans: Iterator[RunPlan]) -> None:
        super().__init__()
        self._remaining = plans
        self._last: RunPlan | None = None
        self.plans: dict[str, RunPlan] = {}
        self.before: dict[str, RunStatus | None] = {}

    def suggest(self, trial_id: str) -> dict[str, str] | None:
        del trial_id
        plan = next(self._remaining, None)
        if plan is None:
            return cast(dict[str, str], Searcher.FINISHED)  # a string, although the base class says otherwise
        self.plans[plan.name], self.before[plan.name] = plan, plan.status()
        previous = {} if self._last is None else {"previous": str(self._last.run_dir)}
        self._last = plan
        return {"name": plan.name, "plan": plan.to_json(), **previous}

    def on_trial_complete(self, trial_id: str, result: Mapping[str, object] | None = None, error: bool = False) -> None:
        """Do nothing: :class:`_PassEvents` is called too."""

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the run directories say what is done."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing, see :meth:`save`."""

    def __getstate__(self) -> dict[str, object]:
        """Pickle as nothing: Tune stores its settings for a restore, which never happens here."""
        return {}


class _PassEvents(tune.Callback):
    """Passes Tune's events on, in the launcher and before Tune starts the next trial."""

    def __init__(self, queue: _Queue, events: RunEvents, decide: Callable[[], None] | None) -> None:
        self._queue = queue
        self._events = events
        self._decide = decide
        self._decided_at = self._freed_at = self._had_head_at = time.monotonic()

    def __reduce__(self) -> tuple[type[tune.Callback], tuple[()]]:
        """Leave out the launcher's own objects: Tune keeps a pickle of its settings, which nobody reads."""
        return tune.Callback, ()

    def on_step_end(self, iteration: int, trials: list[Trial], **info: object) -> None:
        """Look after what Ray leaves behind.

        Raises:
            ResourceError: if the node of the cluster's head is gone although the head answers; Ray would wait for ever.
        """
        if time.monotonic() - self._freed_at > _FREE_SECONDS:
            free_leaked_placement_groups()
            self._freed_at = time.monotonic()
            if any(node["Alive"] and ON_HEAD_NODE.keys() <= node["Resources"].keys() for node in ray.nodes()):
                self._had_head_at = self._freed_at
            elif self._freed_at - self._had_head_at > _HEADLESS_SECONDS:
                raise ResourceError(
                    "the head of the Ray cluster has lost its own node, where every run is driven from; start the head "
                    "again, and the same command goes on"
                )
        if self._decide is not None and time.monotonic() - self._decided_at > _DECIDE_SECONDS:
            self._decide()
            self._decided_at = time.monotonic()

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._events.on_begin(self._queue.plans[_name(trial)])

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._events.on_end(self._queue.plans[_name(trial)])

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        name = _name(trial)
        end_without_driver(self._queue.plans[name], trial.get_error(), before=self._queue.before[name])
        self._events.on_end(self._queue.plans[name])


def _name(trial: Trial) -> str:
    return str(trial.config["name"])

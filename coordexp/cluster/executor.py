"""Runs on a Ray cluster: each is a Tune trial. As many run at once as fit, and Ray queues the others.

The process on the left talks to the one beside it, and only files lead back:

    command: RayExecutor       head node: a Tune trial       any node: Ray Train workers
    _Queue: plan as JSON  ──>  drive: TorchTrainer.fit  ──>  attempt: the run
    _PassEvents           <──  the trial ends           <──  the workers end
    reads the run's folder     <───────────────────────────  rows, checkpoints, status.json
"""

import itertools
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import cast

from ray import tune
from ray.tune import Stopper, TuneError
from ray.tune.experiment import Trial
from ray.tune.search import Searcher
from ray.tune.stopper import NoopStopper

from coordexp.cluster.run import drive
from coordexp.cluster.shared_storage import check_shared_storage
from coordexp.cluster.waiting import ClusterSurroundings, slots_on_cluster
from coordexp.config.schema import RunConfig
from coordexp.errors import chain
from coordexp.runs.executor import RunListener, TrainFunction
from coordexp.runs.plan import RunPlan
from coordexp.runs.status import Ended, tell
from coordexp.runs.stop import experiment_stop_reason, stop_reason

# A tiny share of the resource that marks the head node: it costs no CPU, and keeps drivers on that node.
_ON_HEAD_NODE = {"node:__internal_head__": 0.001}
_LOOK_SECONDS = 0.5  # between two looks for a stop, and two calls of `on_look`


class RayExecutor:
    """Does runs on the Ray cluster that this process has joined or is joining."""

    surroundings = ClusterSurroundings()

    def __init__(self, started: "Future[None] | None" = None) -> None:
        """Do runs once ``started`` is done; None if this process has joined a cluster already."""
        self._started = started

    def check(self, config: RunConfig) -> None:
        """Raise a ResourceError if the cluster is too small for one run, or its nodes do not share the files."""
        if self._started is not None:
            self._started.result()
        slots_on_cluster(config.cluster)
        check_shared_storage(config)

    def execute(self, plans: Iterable[RunPlan], function: TrainFunction, events: Sequence[RunListener] = ()) -> None:
        """Do the runs; arguments as of :meth:`coordexp.runs.executor.Executor.execute`.

        A trial holds no CPU of its own, so runs that wait for workers take nothing from those that have some.
        """
        plans_left = iter(plans)
        first = next(plans_left, None)
        if first is None:  # workers that a killed command left may have finished the last runs meanwhile
            return
        queue = _Queue(itertools.chain([first], plans_left))

        def trial(run: dict[str, str]) -> dict[str, int]:
            drive(run["plan"], function)
            return {"runs": 1}  # Tune prints a line on each trial without a result

        records = first.folder.experiment.ray_records
        shutil.rmtree(records, ignore_errors=True)
        tune_config = tune.TuneConfig(
            search_alg=queue,
            num_samples=-1,
            max_concurrent_trials=slots_on_cluster(first.config.cluster),
            reuse_actors=True,
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        )
        run_config = tune.RunConfig(
            storage_path=str(records.parent),
            name=records.name,
            verbose=0,
            stop=_NothingRuns(queue),
            callbacks=[_PassEvents(queue, events)],
            failure_config=tune.FailureConfig(max_failures=first.config.cluster.max_failures),
        )
        tuner = tune.Tuner(tune.with_resources(trial, _ON_HEAD_NODE), tune_config=tune_config, run_config=run_config)
        try:
            tuner.fit()
        except TuneError as error:
            raise own_error(error) from None
        for plan in queue.plans.values():
            if plan.status().state == "running":
                end_without_driver(plan)


def own_error(error: TuneError) -> BaseException:
    """Return the error that one of our listeners raised; Tune wraps it in errors of its own."""
    return next((link for link in chain(error) if not isinstance(link, TuneError)), error)


def end_without_driver(plan: RunPlan) -> None:
    """Record the end of a run whose driver died: stopped if that was requested, otherwise failed."""
    reason = stop_reason(plan.run_dir)
    tell(plan.run_dir, Ended("stopped", reason) if reason else Ended("failed", "the run's driver process died"))


# Tune pickles the three objects below so that it could restore them. It never does: the run folders say what is done.


class _Queue(Searcher):
    """Gives Tune one run after the other, each when Tune has room for it."""

    def __init__(self, plans: Iterator[RunPlan]) -> None:
        super().__init__()
        self._remaining = plans
        self.plans: dict[str, RunPlan] = {}

    def suggest(self, trial_id: str) -> dict[str, str] | None:
        """Return what the next trial runs; Tune asks for it whenever a place is free."""
        plan = next(self._remaining, None)
        if plan is None:
            return cast(dict[str, str], Searcher.FINISHED)  # a string, although the base class says otherwise
        self.plans[plan.name] = plan
        return {"name": plan.name, "plan": plan.to_json()}

    def on_trial_complete(self, trial_id: str, result: Mapping[str, object] | None = None, error: bool = False) -> None:
        """Do nothing: :class:`_PassEvents` hears of this, too."""

    def save(self, checkpoint_path: str) -> None: ...

    def restore(self, checkpoint_path: str) -> None: ...

    def __getstate__(self) -> dict[str, object]:
        return {}


class _NothingRuns(Stopper):
    """Ends Tune if a stop was requested and no run has workers. A run that waits for workers would not notice it."""

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue
        self._looked_at = time.monotonic()

    def __call__(self, trial_id: str, result: Mapping[str, object]) -> bool:
        return False

    def stop_all(self) -> bool:
        """Return whether Tune is to end: a stop is asked for, and no run of this command is at work."""
        plans = list(self._queue.plans.values())
        if time.monotonic() - self._looked_at < _LOOK_SECONDS or not plans:
            return False
        self._looked_at = time.monotonic()
        if experiment_stop_reason(plans[0].folder.experiment.path) is None:
            return False
        return all(plan.status().since is None for plan in plans)

    def __reduce__(self) -> tuple[type[Stopper], tuple[()]]:
        return NoopStopper, ()


class _PassEvents(tune.Callback):
    """Passes Tune's events on to our listeners, in the command's process and before Tune starts the next trial."""

    def __init__(self, queue: _Queue, events: Sequence[RunListener]) -> None:
        self._queue = queue
        self._events = events
        self._looked_at = time.monotonic()

    def __reduce__(self) -> tuple[type[tune.Callback], tuple[()]]:
        return tune.Callback, ()

    def on_step_end(self, iteration: int, trials: list[Trial], **info: object) -> None:
        """Let listeners look at the runs now and then; Tune calls this after whatever happens."""
        if time.monotonic() - self._looked_at > _LOOK_SECONDS:
            for listener in self._events:
                listener.on_look()
            self._looked_at = time.monotonic()

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        for listener in self._events:
            listener.on_begin(self._queue.plans[_name(trial)])

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        for listener in self._events:
            listener.on_end(self._queue.plans[_name(trial)])

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        end_without_driver(self._queue.plans[_name(trial)])
        self.on_trial_complete(iteration, trials, trial)


def _name(trial: Trial) -> str:
    return str(trial.config["name"])

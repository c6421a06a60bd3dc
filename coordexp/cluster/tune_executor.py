"""Runs on a Ray cluster: one Tune trial each, as many at once as fit, and one more that gets ready."""

import itertools
import logging
import shutil
from collections.abc import Mapping, Sequence

import ray
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TrialProgressCallback

from coordexp.cluster.driver import drive
from coordexp.cluster.slots import count_slots
from coordexp.config.schema import Cluster
from coordexp.runs.functions import TrainFunction
from coordexp.runs.listeners import RunEvents, Unheard
from coordexp.runs.outcome import one_sentence, set_state
from coordexp.runs.plan import RunPlan
from coordexp.runs.status import RunStatus
from coordexp.runs.stop import stop_reason
from coordexp.train.setup.strategy import is_elastic


class _TellEvents(tune.Callback):
    """Hands Tune's events on, in the launcher and before Tune starts the next trial."""

    def __init__(self, plans: Sequence[RunPlan], before: Mapping[str, RunStatus | None], events: RunEvents) -> None:
        self._plans = {plan.key: plan for plan in plans}
        self._before = before
        self._events = events

    def __reduce__(self) -> tuple[type[tune.Callback], tuple[()]]:
        """Leave out the launcher's own objects: Tune keeps a pickle of its settings, which nobody reads."""
        return tune.Callback, ()

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._events.begun(self._plans[trial.config["run"]])

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._events.ended(self._plans[trial.config["run"]])

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        plan = self._plans[trial.config["run"]]
        _end_what_has_no_driver(plan, trial.get_error(), before=self._before[plan.key])
        self._events.ended(plan)


class _NoTrialLines(TrialProgressCallback):
    """Stands in for Tune's own: a run's end is told by its status."""

    def _print(self, msg: str) -> None:
        del msg


def available_slots(cluster: Cluster) -> int:
    """Return how many runs the joined cluster holds at once.

    Raises:
        ResourceError: if one run does not fit: Ray would wait for ever.
    """
    return count_slots(cluster, [node["Resources"] for node in ray.nodes() if node["Alive"]])


def execute(plans: Sequence[RunPlan], function: TrainFunction, events: RunEvents | None = None) -> None:
    """Do the runs that nobody asked to stop; afterwards each one's status says how it ended.

    A trial holds no CPU of its own, only a trace of the head node's marker resource, so runs that wait for
    workers cannot starve the ones that have them.
    """
    if not plans:  # workers of a killed command may have finished the last ones meanwhile
        return
    slots = available_slots(plans[0].config.cluster)
    names = {plan.key: plan.name for plan in plans}
    before = {plan.key: plan.status() for plan in plans}
    packed = {plan.key: plan.to_json() for plan in plans}
    previous = {after.key: before.run_dir for before, after in itertools.pairwise(plans)}

    def trial(point: dict[str, str]) -> None:
        drive(packed[point["run"]], function, previous=previous.get(point["run"]))

    records = plans[0].folder.experiment.ray_records
    shutil.rmtree(records, ignore_errors=True)
    for name in ("ray.tune", "ray.train"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # failures are told by the runs' own statuses
    results = tune.Tuner(
        tune.with_resources(trial, {"node:__internal_head__": 0.001}),
        param_space={"run": tune.grid_search(list(packed))},
        tune_config=tune.TuneConfig(
            max_concurrent_trials=_trials_at_once(plans[0].config.cluster, slots=slots),
            reuse_actors=True,
            trial_name_creator=lambda trial: names[trial.config["run"]],
            trial_dirname_creator=lambda trial: names[trial.config["run"]],
        ),
        run_config=tune.RunConfig(
            storage_path=str(records.parent),
            name=records.name,
            verbose=0,
            callbacks=[_NoTrialLines(), _TellEvents(plans, before, events or Unheard())],
            failure_config=tune.FailureConfig(max_failures=plans[0].config.cluster.max_failures),
        ),
    ).fit()
    errors = {result.config["run"]: result.error for result in results if result.config and result.error}
    for plan in plans:
        _end_what_has_no_driver(plan, errors.get(plan.key), before=before[plan.key])


def _trials_at_once(cluster: Cluster, *, slots: int) -> int:
    """Return one more than fit: it gets its processes ready, and takes its workers when another run frees them.

    Not with a budget, which at the end of a run decides whether the next may begin; not where runs are elastic,
    which would share what they find; and not where the user limits their number: there may be room for one more.
    """
    is_limited = cluster.max_gpu_hours is not None or cluster.max_concurrent_runs is not None
    return slots if is_limited or is_elastic(cluster) else slots + 1


def _end_what_has_no_driver(plan: RunPlan, error: object, *, before: RunStatus | None = None) -> None:
    """Give an end to a run whose driver left none; of one that died Tune has a text and no exception.

    Args:
        plan: of the run.
        error: that Tune has of its trial, if any.
        before: its status before this command: where it is still that, nothing was told of this try.
    """
    status, stop = plan.status(), stop_reason(plan.run_dir)
    state = None if status is None else status.state
    if state == "failed" and status == before and error is not None:
        state = None
    if state == "running" and stop is not None:
        set_state(plan, "stopped", message=stop)
    elif state == "running" or (stop is None and (state is None or (state == "stopped" and error is not None))):
        known = one_sentence(error) if isinstance(error, Exception) else "the run's driver process died"
        set_state(plan, "failed", message=known)

"""The trials of a search on a Ray cluster: Tune asks for the next one, and stops what falls behind."""

import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from coordexp.cluster.driver import drive
from coordexp.cluster.tune_executor import available_slots
from coordexp.config.schema import Cluster
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.functions import TrainFunction
from coordexp.runs.outcome import set_state
from coordexp.runs.plan import RunPlan
from coordexp.runs.stop import stop_reason
from coordexp.sweep.halving import SUBSET_AP
from coordexp.sweep.trials import TrialSource


class _NoTrialLines(TrialProgressCallback):
    """Stands in for Tune's own: a trial's end is told by its status."""

    def _print(self, msg: str) -> None:
        del msg


class _Proposals(Searcher):
    """Hands Tune one trial after the other, as the sweep's record has or proposes them."""

    def __init__(self, source: TrialSource) -> None:
        super().__init__(metric=SUBSET_AP, mode="max")
        self._source = source
        self.plans: dict[str, RunPlan] = {}
        self.reasons: dict[str, str] = {}
        self.running: dict[str, RunPlan] = {}

    def suggest(self, trial_id: str) -> dict[str, str] | None:
        plan = self._source.next()
        if plan is None:
            return cast(dict[str, str], Searcher.FINISHED)  # a word, whatever the base says
        self.plans[plan.name] = self.running[trial_id] = plan
        return {"name": plan.name, "plan": plan.to_json()}

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        del result
        plan = self.running.pop(trial_id)
        if error and not plan.is_finished():
            set_state(plan, "failed", message="the trial's driver process is gone")
        self._source.ended(plan, pruned=self.reasons.get(plan.name))

    def decide(self, name: str, step: int, ap: float) -> str | None:
        """Return why the trial stops now, or None."""
        reason = self._source.observe(self.plans[name], step, ap)
        if reason is not None:
            self.reasons[name] = reason
        return reason

    def save(self, checkpoint_path: str) -> None:
        """Keep nothing: the sweep's own record is the one to go on from."""

    def restore(self, checkpoint_path: str) -> None:
        """Need nothing."""

    def __getstate__(self) -> dict[str, object]:
        """Travel empty: Tune pickles its settings for a restore that nobody asks for."""
        return {}


class _StopBehind(FIFOScheduler):
    """Starts trials in order, and ends one by the sweep's rule."""

    def __init__(self, proposals: _Proposals) -> None:
        super().__init__()
        self._proposals = proposals

    def on_trial_result(self, tune_controller: object, trial: Trial, result: Mapping[str, Any]) -> str:
        del tune_controller
        if SUBSET_AP not in result:
            return TrialScheduler.CONTINUE
        reason = self._proposals.decide(trial.config["name"], int(result["step"]), float(result[SUBSET_AP]))
        return TrialScheduler.CONTINUE if reason is None else TrialScheduler.STOP

    def __getstate__(self) -> dict[str, object]:
        return {}


def search_on_ray(source: TrialSource, function: TrainFunction, *, cluster: Cluster, directory: Path) -> None:
    """Do trials until there is no more; afterwards each one's status says how it ended.

    Args:
        source: gives trials and decides on them.
        function: what does one run.
        cluster: what a run asks for.
        directory: of the sweep; Tune keeps its notes below it.
    """
    slots = available_slots(cluster)
    records = ExperimentFolder(directory).ray_records
    shutil.rmtree(records, ignore_errors=True)
    for name in ("ray.tune", "ray.train"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # failures are told by the trials' own statuses
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"  # most reports hold losses, and no AP

    def trial(point: dict[str, str]) -> None:
        drive(point["plan"], function, tell_tune=True)

    proposals = _Proposals(source)
    tune.Tuner(
        tune.with_resources(trial, {"node:__internal_head__": 0.001}),
        tune_config=tune.TuneConfig(
            search_alg=proposals,
            scheduler=_StopBehind(proposals),
            num_samples=-1,
            max_concurrent_trials=slots,
            reuse_actors=False,  # a stopped trial's process still waits for its run
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        ),
        run_config=tune.RunConfig(
            storage_path=str(records.parent),
            name=records.name,
            verbose=0,
            callbacks=[_NoTrialLines()],
            failure_config=tune.FailureConfig(max_failures=cluster.max_failures),
        ),
    ).fit()
    for plan in proposals.plans.values():
        status, stop = plan.status(), stop_reason(plan.run_dir)
        if plan.name in proposals.reasons and status is not None and status.state not in ("finished", "pruned"):
            set_state(plan, "pruned", message=proposals.reasons[plan.name])  # its last words came after the decision
        elif stop is not None:
            if status is not None and status.state == "running":
                set_state(plan, "stopped", message=stop)
        elif status is None or status.state == "running":
            set_state(plan, "failed", message="the trial's driver process is gone")


def _name(trial: Trial) -> str:
    return str(trial.config["name"])

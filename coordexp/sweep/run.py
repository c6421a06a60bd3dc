"""One command, a whole sweep: divide the training images, search, run the winners again, report, choose."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from coordexp.ablation.common_inputs import prepare_all, shared_metrics
from coordexp.ablation.comparability import MIN_FREE_BYTES, check_disk_for, fingerprint_runs
from coordexp.ablation.executors import Executor, executor_for
from coordexp.cluster.gauges import live_queue
from coordexp.data.splits.tuning_split import TuningSplit, write_tuning_split
from coordexp.errors import TrackingError
from coordexp.runs.budget import BudgetKeeper
from coordexp.runs.experiment import check_disk, open_experiment
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.functions import TrainFunction, train
from coordexp.runs.interrupts import stop_on_signal, terminated_is_interrupted
from coordexp.runs.listeners import Listeners
from coordexp.runs.lock import experiment_lock
from coordexp.runs.outcome import settle
from coordexp.runs.plan import RunPlan
from coordexp.runs.stop import clear_stop
from coordexp.sweep.book import SweepBook, recorded_points
from coordexp.sweep.follow import Fingerprints, Follower, finish_parent
from coordexp.sweep.load import Sweep
from coordexp.sweep.results import best_trials, winner_plans
from coordexp.sweep.trials import SearchTrials, halving_of, without_model
from coordexp.tracking import Tracker
from coordexp.tracking.publish import Recorder, open_experiment_tracker

EXIT_FAILED = 1
EXIT_BUDGET = 3
EXIT_INTERRUPTED = 130
_GOES_ON = "the same command goes on from the last checkpoints"


@dataclass(frozen=True)
class _Ending:
    """How the runs ended: a code other than 0 and its sentence where they did not go through."""

    code: int = 0
    sentence: str = ""


@dataclass(frozen=True)
class _Work:
    """What the stages of a sweep share."""

    book: SweepBook
    split: TuningSplit
    follower: Follower
    function: TrainFunction
    console: Console


def run_sweep(
    sweep: Sweep, *, fresh: bool = False, console: Console, debug: bool = False, function: TrainFunction = train
) -> int:
    """Run every trial and every winner that is not finished yet, and report on all.

    The same call again is the resume: what was proposed stays proposed, finished and pruned trials are skipped,
    others go on from their last checkpoint.

    Args:
        sweep: the sweep.
        fresh: move a sweep of this name aside and start over.
        console: where progress and the report are printed.
        debug: let Ray's own log lines through.
        function: what does one run.

    Returns:
        0 if all runs are finished (or pruned) and recorded, 1 if not, 3 if ``cluster.max_gpu_hours`` ended it,
        130 if interrupted or asked to stop.

    Raises:
        CoordExpError: for whatever is wrong before the first trial begins.
    """
    config = sweep.config
    with experiment_lock(config), terminated_is_interrupted():
        check_disk(ExperimentFolder.of(config).path, needed_bytes=MIN_FREE_BYTES)
        clear_stop(ExperimentFolder.of(config).path)  # a request ends with the command it stopped
        tracker = open_experiment_tracker(config)
        instance = open_experiment(config, fresh=fresh).instance
        with console.status("dividing the training images"):
            split = divide(sweep)
        book = SweepBook(sweep, data=split.data_keys(), instance=instance)
        for plan in book.begun_plans():
            settle(plan)  # or the budget would count the time since a killed command
        first = (book.trials[0] if book.trials else None) or book.propose()
        assert first is not None
        with executor_for(config, debug=debug) if _is_pending(book) else contextlib.nullcontext() as executor:
            fingerprints = _prepare(book, first.plan, executor, console)
            parent_key = f"{config.experiment.name}/{instance}"
            parent_id = _start_parent(tracker, first.plan, sweep, parent_key)
            follower = Follower(tracker, parent_key=parent_key, fingerprints=fingerprints, console=console)
            work = _Work(book, split, follower, function, console)
            for plan in book.begun_plans():
                follower.send_again(plan, {"sweep_trial": plan.group, "sweep_stage": _stage(book, plan)})
            ending = _Ending()
            try:
                if executor is not None:
                    with live_queue(config, lambda: _runs_so_far(book)):
                        ending = _run(work, executor)
            finally:
                missing = follower.close()
    return _conclude(work, tracker, parent_id, missing, ending=ending)


def divide(sweep: Sweep) -> TuningSplit:
    """Write the two files that trials train on and are compared on.

    Raises:
        ConfigError: if the sweep's name holds another search.
        DataError: if the training annotations cannot be divided.
    """
    recorded_points(sweep)  # refuses, before the files of another sweep are replaced
    settings = sweep.settings.tuning_split
    return write_tuning_split(
        sweep.config.data,
        ExperimentFolder.of(sweep.config).path,
        data_dir=ExperimentFolder.of(sweep.config).data,
        num_images=settings.num_images,
        fraction=settings.fraction,
        seed=settings.seed,
    )


def _runs_so_far(book: SweepBook) -> list[RunPlan]:
    return [trial.plan for trial in book.trials] + (winner_plans(book) if book.is_searched() else [])


def _stage(book: SweepBook, plan: RunPlan) -> str:
    return "search" if plan.seed == book.seed else "winner"


def _is_pending(book: SweepBook) -> bool:
    return not book.is_searched() or any(not plan.is_finished() for plan in winner_plans(book))


def _prepare(book: SweepBook, plan: RunPlan, executor: Executor | None, console: Console) -> Fingerprints:
    """Do and check once what all trials need; refuse to go on with changed code or data."""
    with console.status("preparing data and base model"):
        prepared = prepare_all([plan])[plan.name]
        begun = [trial.plan for trial in book.trials if trial.plan.status() is not None]
        fingerprint_runs([plan, *begun], {item.name: prepared for item in [plan, *begun]})
        if executor is not None:
            check_disk_for([plan], prepared.base)
            executor.check(plan.config)
    return Fingerprints(prepared)


def _start_parent(tracker: Tracker, plan: RunPlan, sweep: Sweep, parent_key: str) -> str:
    parent_id = Recorder(tracker, [plan], parent_key=parent_key).parent_id
    settings = sweep.settings
    space = {key: parameter.model_dump(exclude_none=True) for key, parameter in settings.space.items()}
    tracker.set_tags(
        parent_id,
        {"sweep": settings.name, "sweep_group": settings.group, "sweep_space": json.dumps(space)},
    )
    tracker.set_final(parent_id, shared_metrics(plan.config))
    return parent_id


def _run(work: _Work, executor: Executor) -> _Ending:
    """Search, then run the winners again; say how that ended."""
    book = work.book
    # Again: Ray has installed a handler of its own, which aborts.
    with stop_on_signal(ExperimentFolder.of(book.sweep.config).path, show=work.follower.show):
        try:
            if not book.is_searched():
                _search(work)
            is_kept_back = book.stop_reason() is None and not book.is_spent() and _run_winners(work, executor)
        except KeyboardInterrupt:
            work.follower.stop_all()
            return _Ending(EXIT_INTERRUPTED, f"interrupted; {_GOES_ON}")
        reason = book.stop_reason()
    if reason is not None:
        return _Ending(EXIT_INTERRUPTED, f"stopped: {reason}; {_GOES_ON}")
    if is_kept_back or (book.is_spent() and _is_pending(book)):
        used, hours = book.used_hours(book.begun_plans()), book.sweep.config.cluster.max_gpu_hours
        return _Ending(
            EXIT_BUDGET, f"cluster.max_gpu_hours: {used:.3g} of {hours:g} are used; with more of them {_GOES_ON}"
        )
    return _Ending()


def _search(work: _Work) -> None:
    config = work.book.sweep.config
    source = SearchTrials(work.book, halving_of(work.book.sweep), work.follower)
    function = without_model(work.function)
    if config.cluster.executor == "inline":
        from coordexp.sweep.inline import search_inline

        search_inline(source, function)
        return
    from coordexp.cluster.sweep_executor import search_on_ray

    search_on_ray(source, function, cluster=config.cluster, directory=ExperimentFolder.of(config).path)


def _run_winners(work: _Work, executor: Executor) -> bool:
    """Run the winners again with further seeds; tell whether the budget kept one of them from its end."""
    book = work.book
    everyone = winner_plans(book)
    plans = [plan for plan in everyone if not plan.is_finished()]
    if not plans:
        return False
    names = ", ".join(dict.fromkeys(plan.group for plan in plans))
    work.follower.show(f"again with further seeds: {names}")
    for plan in plans:
        work.follower.begin(plan, {"sweep_trial": plan.group, "sweep_stage": "winner"})
    max_hours = book.sweep.config.cluster.max_gpu_hours
    if max_hours is None:
        executor.execute(plans, work.function, work.follower)
        return False
    names_of_all = {plan.name for plan in everyone}
    searched = book.used_hours(plan for plan in book.begun_plans() if plan.name not in names_of_all)
    with BudgetKeeper(everyone, max_hours, spent_hours=searched) as budget:
        executor.execute(plans, work.function, Listeners([budget, work.follower]))
        return budget.has_stopped()


def _conclude(work: _Work, tracker: Tracker, parent_id: str, missing: Sequence[str], *, ending: _Ending) -> int:
    from coordexp.report.sweep.write import report_sweep, store_sweep

    book, show = work.book, work.follower.show
    states = [_state(plan) for plan in (*(trial.plan for trial in book.trials), *winner_plans(book))]
    final = "KILLED" if ending.code else "FAILED" if "failed" in states else "FINISHED"
    if ending.code:
        lost = [*missing, *finish_parent(tracker, parent_id, final)]
        for sentence in lost:
            show(f"not recorded: {sentence}; the same command sends it")
        show(ending.sentence)
        return ending.code
    paths = report_sweep(book, work.split, work.console)
    try:
        store_sweep(tracker, parent_id, paths)
    except TrackingError as error:
        missing = [*missing, str(error)]
    missing = [*missing, *finish_parent(tracker, parent_id, final)]
    for sentence in missing:
        show(f"not recorded: {sentence}; the same command sends it")
    done = all(state in ("finished", "pruned") for state in states) and book.is_searched()
    return 0 if done and best_trials(book) and not missing else EXIT_FAILED


def _state(plan: RunPlan) -> str:
    status = plan.status()
    return status.state if status is not None else "new"

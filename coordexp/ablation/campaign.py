"""What an ablation and a sweep share: one experiment's folder, records and runs while one command works on it."""

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console

from coordexp.ablation.preparation import MIN_FREE_BYTES
from coordexp.config.schema import ExperimentConfig
from coordexp.runs.budget import BudgetKeeper
from coordexp.runs.executor import Executor, InlineExecutor, RunEvents, TrainFunction
from coordexp.runs.experiment import check_disk, open_experiment
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.lock import experiment_lock
from coordexp.runs.plan import RunPlan
from coordexp.runs.progress import ProgressDisplay
from coordexp.runs.status import Ended, RunStatus, tell
from coordexp.runs.stop import clear_stop, stop_on_signal, stop_reason, terminated_is_interrupted
from coordexp.tracking import Tracker
from coordexp.tracking.publish import Recorder, open_experiment_tracker, tracking_notes

EXIT_FAILED = 1
EXIT_BUDGET = 3
EXIT_INTERRUPTED = 130
GOES_ON = "the same command continues from the last checkpoints"


@dataclass(frozen=True)
class Ending:
    """How the runs of a command ended."""

    code: int = 0  # 0 if every run went through and is recorded, else one of EXIT_*
    sentence: str = ""  # why they ended early
    missing: tuple[str, ...] = ()  # a sentence for each thing that the tracking server does not have and could
    notes: tuple[str, ...] = ()  # a sentence for each thing that it cannot have


@dataclass(frozen=True)
class Campaign:
    """An experiment that this command alone works on."""

    config: ExperimentConfig
    tracker: Tracker
    instance: str  # identifies it among all of its name; --fresh makes a new one
    console: Console
    tracking_notes: tuple[str, ...] = ()  # what the tracking server lacks, as the command has said when it began

    def show(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def new_recorder(self, plan: RunPlan) -> Recorder:
        """Start or find the experiment's own run in MLflow; ``plan`` is any of its runs."""
        return Recorder(self.tracker, plan.config, parent_key=f"{self.config.experiment.name}/{self.instance}")

    def new_notes(self, recorder: Recorder) -> tuple[str, ...]:
        """Return what a recorder could not record, without what was said when the command began."""
        return tuple(note for note in recorder.notes() if note not in self.tracking_notes)

    @contextlib.contextmanager
    def executor(self, *, debug: bool = False) -> Generator[Executor]:
        """Yield the executor that ``cluster.executor`` names. Ray starts in the background."""
        if self.config.cluster.executor == "inline":
            yield InlineExecutor()
            return
        from coordexp.cluster.session import ray_session

        with ray_session(threads=self.config.threads_of_worker, debug=debug) as started:
            from coordexp.cluster.executor import RayExecutor

            yield RayExecutor(started)

    def live_queue(self, runs: Callable[[], Sequence[RunPlan]]) -> contextlib.AbstractContextManager[object]:
        """Return a block during which Ray serves each run's state to Prometheus, if there is a Ray."""
        if self.config.cluster.executor == "inline":
            return contextlib.nullcontext()
        from coordexp.cluster.gauges import QueueMetrics

        return QueueMetrics(self.config.experiment.name, runs)

    def execute(
        self,
        executor: Executor,
        plans: Iterable[RunPlan],
        function: TrainFunction,
        recorder: Recorder,
        *,
        runs: Callable[[], Sequence[RunPlan]],
        search: RunEvents | None = None,
    ) -> Ending:
        """Do runs in their order: show and record them, stop them at a signal; return how that ended.

        The recorder knows each of the plans; ``runs`` returns all runs of the experiment so far. A search decides which
        go on.
        """
        remaining, offered = itertools.tee(plans)  # the second one: the same plans once more, when the first is through

        def on_end(plan: RunPlan, status: RunStatus) -> None:
            recorder.end_run(plan, status)
            reason = f": {status.message}" if status.message else ""
            self.show(f"{plan.name}  {status.state} at step {status.step} after {status.seconds:.0f} s{reason}")

        display = ProgressDisplay(
            print_line=self.show,
            on_end=on_end,
            surroundings=executor.surroundings,
            plans=runs,
            console=self.console,
        )
        # Installed again, because Ray has put in a signal handler of its own, which aborts.
        with stop_on_signal(ExperimentFolder.of(self.config).path, print_line=display.say), display:
            budget = BudgetKeeper(self.config, runs)
            listeners = [listener for listener in (budget, search, display) if listener is not None]
            try:
                executor.execute(remaining, function, listeners)
                list(remaining)  # those that a stop has kept from being asked for
            except KeyboardInterrupt:
                for plan in runs():
                    if plan.status().state == "running":
                        _stop(plan, "interrupted", display)
                return Ending(EXIT_INTERRUPTED, f"interrupted; {GOES_ON}")
            not_done = [(plan, reason) for plan in offered if (reason := _why_not_done(plan, display))]
        for plan, reason in not_done:
            if not plan.has_begun():
                recorder.end_run(plan, RunStatus(state="stopped", message=reason))
                self.show(f"{plan.name}  not begun: {reason}")
        if budget.has_stopped and not_done:
            return Ending(EXIT_BUDGET, budget.sentence())
        if not_done:
            return Ending(EXIT_INTERRUPTED, f"stopped: {not_done[0][1]}; {GOES_ON}")
        return Ending()


@contextlib.contextmanager
def open_campaign(config: ExperimentConfig, *, fresh: bool, console: Console) -> Generator[Campaign]:
    """Hold the experiment's lock, open its record and its tracking server; ``fresh`` moves what is there aside."""
    with experiment_lock(config), terminated_is_interrupted():
        folder = ExperimentFolder.of(config)
        check_disk(folder.path, needed_bytes=MIN_FREE_BYTES)
        clear_stop(folder.path)  # a request ends with the command it stopped
        notes = tracking_notes(config)
        tracker = open_experiment_tracker(config)
        instance = open_experiment(config, fresh=fresh).instance
        campaign = Campaign(config, tracker, instance, console, tuple(notes))
        for note in notes:
            campaign.show(f"note: {note}")
        yield campaign


def _why_not_done(plan: RunPlan, display: ProgressDisplay) -> str | None:
    """Return why a run was stopped or not continued; one that an earlier command left is stopped by that, too."""
    status, reason = plan.status(), stop_reason(plan.run_dir)
    has_failed = status.state == "failed" and display.has_begun(plan)
    if reason is None or has_failed or plan.is_over():
        return None
    if status.state != "waiting":
        _stop(plan, reason, display)
    return reason


def _stop(plan: RunPlan, reason: str, display: ProgressDisplay) -> None:
    display.on_begin(plan)
    tell(plan.run_dir, Ended("stopped", reason))
    display.on_end(plan)

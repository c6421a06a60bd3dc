"""The session of one command: all that it holds while it works on an experiment, and how its runs are done.

    open_session          lock, free disk, tracking server, the experiment's record
      start_executor      inline, or Ray, which starts while data are prepared
        open_recorder     the experiment's own run in MLflow; a command may open several
          follow          which runs there are: for the budget, and for Ray's metrics
            execute       signals, display and budget, while some of the runs are done; once for each phase
        conclude          what the tracking server lacks is sent, and the command knows how it ended

What was opened last is closed first, also where something is raised. So a recorder still sends what Ray's workers have
written, and another command can take the lock only when nobody writes any more.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from coordexp.campaign.preparation import MIN_FREE_BYTES, needed_disk_bytes
from coordexp.config.schema import ExperimentConfig
from coordexp.logs import is_quiet
from coordexp.runs.budget import LARGER, BudgetKeeper
from coordexp.runs.executor import Executor, InlineExecutor, RunListener, TrainFunction
from coordexp.runs.experiment import check_disk, directory_bytes, open_experiment
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.lock import experiment_lock
from coordexp.runs.plan import RunPlan
from coordexp.runs.progress import ProgressDisplay
from coordexp.runs.status import Ended, RunStatus, tell
from coordexp.runs.stop import (
    clear_stop,
    experiment_stop_reason,
    stop_on_signal,
    stop_reason,
    terminated_is_interrupted,
)
from coordexp.tracking import Tracker
from coordexp.tracking.publish import ParentRun, Recorder, open_experiment_tracker, tracking_notes

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


class Session:
    """An experiment that this command alone works on; :func:`open_session` makes it."""

    def __init__(
        self,
        config: ExperimentConfig,
        *,
        tracker: Tracker,
        server_notes: Sequence[str],
        instance: str,
        console: Console,
        debug: bool,
        resources: contextlib.ExitStack,
    ) -> None:
        """Take over what :func:`open_session` has opened.

        Args:
            config: the experiment, with all of its groups.
            tracker: the experiment on its tracking server.
            server_notes: what the server lacks, as the command has already said.
            instance: tells this experiment from others of its name; ``--fresh`` makes a new one.
            console: where lines are shown, and a board if it is a terminal.
            debug: lets Ray's own log lines through.
            resources: closes whatever the session opens.
        """
        self.config = config
        self.tracker = tracker
        self.instance = instance
        self.console = console
        self.executor: Executor | None = None  # None where nothing is left to run
        self._server_notes = server_notes
        self._debug = debug
        self._resources = resources
        self._recorders: list[Recorder] = []
        self._runs: Callable[[], Sequence[RunPlan]] = tuple
        self._budget = BudgetKeeper(config, self.runs)
        self._ending = Ending()

    def show(self, line: str) -> None:
        """Print a line on the course of the command, unless the person wants warnings and the result alone."""
        if not is_quiet():
            self.warn(line)

    def warn(self, line: str) -> None:
        """Print a line that nobody should miss."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def runs(self) -> Sequence[RunPlan]:
        """Return every run that the experiment has so far, in whichever phase: what :meth:`follow` was given."""
        return self._runs()

    def start_executor(self) -> None:
        """Make the executor that ``cluster.executor`` names. Ray starts in the background."""
        if self.config.cluster.executor == "inline":
            self.executor = InlineExecutor()
            return
        from coordexp.cluster.session import ray_session

        started = self._resources.enter_context(ray_session(threads=self.config.threads_of_worker, debug=self._debug))
        from coordexp.cluster.executor import RayExecutor  # imports Ray, which reads what ray_session has set

        self.executor = RayExecutor(started)

    def check_room(self, plans: Sequence[RunPlan], *, base: Path) -> None:
        """Refuse runs for which the disk or the cluster has no room. This waits until Ray has started.

        Args:
            plans: the runs to do, at least one. All of them ask for the same workers.
            base: the checkpoint they start from; its size decides how much they write.
        """
        assert self.executor is not None
        check_disk(plans[0].run_dir, needed_bytes=needed_disk_bytes(plans, directory_bytes(base)))
        self.executor.check(plans[0].config)

    def open_recorder(self, plan: RunPlan, *, above: ParentRun | None = None) -> Recorder:
        """Start or find a parent of runs in MLflow: the experiment's own run, or a further one.

        Args:
            plan: any of its runs.
            above: a further parent; None: the experiment's own run.
        """
        key = f"{self.config.experiment.name}/{self.instance}"
        if above is not None:
            key += f"/{above.key}"
        recorder = Recorder(self.tracker, plan.config, parent_key=key, above=above)
        self._recorders.append(recorder)
        self._resources.callback(self._close, recorder)  # if an exception ends the command before `conclude`
        return recorder

    def follow(self, runs: Callable[[], Sequence[RunPlan]]) -> None:
        """Count what runs use against the budget, and serve their states to Prometheus if they are on Ray.

        Call this after :meth:`check_room`, which waits for Ray.

        Args:
            runs: returns every run there is or will be, as far as is known. It is asked again and again, since a
                search adds runs.
        """
        self._runs = runs
        if self.config.cluster.executor != "inline":
            from coordexp.cluster.gauges import QueueGauges

            self._resources.enter_context(QueueGauges(self.config.experiment.name, runs))

    def execute(
        self, plans: Iterable[RunPlan], function: TrainFunction, *, search: RunListener | None = None
    ) -> Ending:
        """Do runs in their order; show and record how each of them ends, and stop them all at a signal.

        Args:
            plans: the runs, each started by a recorder of this session. The next one is asked for only when there is
                room for it.
            function: does one run.
            search: hears of the runs, and may ask some of them to stop.

        Returns:
            How that ended. After a code other than 0 the command does no further runs.
        """
        assert self.executor is not None
        plans_left = iter(plans)
        offered: list[RunPlan] = []

        def next_plans() -> Iterator[RunPlan]:
            for plan in plans_left:
                offered.append(plan)
                yield plan

        display = ProgressDisplay(
            print_line=self.warn,  # it knows itself what is wanted
            on_end=self._record_end,
            surroundings=self.executor.surroundings,
            plans=self.runs,
            console=self.console,
        )
        listeners = [self._budget, display] if search is None else [self._budget, search, display]
        # For each phase anew: Ray, as it starts, installs a handler of its own, which aborts the command.
        with stop_on_signal(ExperimentFolder.of(self.config).path, print_line=display.say), display:
            self._budget.on_look()  # commands before this one may have spent it
            try:
                self.executor.execute(next_plans(), function, listeners)
                offered.extend(plans_left)  # a stop has kept the executor from asking for these
            except KeyboardInterrupt:
                self._stop_running(display)
                self._ending = Ending(EXIT_INTERRUPTED, f"interrupted; {GOES_ON}")
                return self._ending
            not_done = _stop_unfinished(offered, display)
        self._record_not_begun(not_done)
        if not_done and self._budget.has_stopped:
            self._ending = Ending(EXIT_BUDGET, self._budget.sentence())
        elif not_done:
            _, reason = not_done[0]
            self._ending = Ending(EXIT_INTERRUPTED, f"stopped: {reason}; {GOES_ON}")
        return self._ending

    def ending_if_stopped(self) -> Ending:
        """Return how :meth:`execute` ended, or that a stop has kept a search from proposing further runs.

        Where the stop came after the last proposed run had ended, no run is left undone and :meth:`execute` sees no
        reason to end the command.
        """
        reason = experiment_stop_reason(ExperimentFolder.of(self.config).path)
        if self._ending.code == 0 and reason is not None:
            code, way_on = (EXIT_BUDGET, LARGER) if self._budget.has_stopped else (EXIT_INTERRUPTED, GOES_ON)
            self._ending = Ending(code, f"stopped: {reason}; {way_on}")
        return self._ending

    def conclude(self, *, is_whole: bool, sentence: str = "") -> Ending:
        """Send what the tracking server lacks, end the parents in MLflow, and return how the command ended.

        Args:
            is_whole: whether every run that the command was to do is finished.
            sentence: what to say where nothing has ended the runs early.
        """
        missing: list[str] = []
        notes: list[str] = []
        for recorder in list(self._recorders):
            missing += self._close(recorder)
            notes += [note for note in recorder.notes() if note not in self._server_notes]
        code = self._ending.code
        if code == 0 and (missing or not is_whole):
            code = EXIT_FAILED
        return Ending(code, self._ending.sentence or sentence, tuple(missing), tuple(notes))

    def _close(self, recorder: Recorder) -> list[str]:
        """Close a recorder once; return a sentence for each thing that the tracking server could have and has not."""
        if recorder not in self._recorders:
            return []
        self._recorders.remove(recorder)
        return recorder.close(cut_short=self._ending.code != 0)

    def _record_end(self, plan: RunPlan, status: RunStatus) -> None:
        """Record and show how a run ended."""
        self._recorder_of(plan).end_run(plan, status)
        reason = f": {status.message}" if status.message else ""
        show = self.warn if status.state in ("failed", "stopped") else self.show
        show(f"{plan.name}  {status.state} at step {status.step} after {status.seconds:.0f} s{reason}")

    def _record_not_begun(self, not_done: Sequence[tuple[RunPlan, str]]) -> None:
        """Record and show why runs have not begun."""
        for plan, reason in not_done:
            if not plan.has_begun():
                self._recorder_of(plan).end_run(plan, RunStatus(state="stopped", message=reason))
                self.warn(f"{plan.name}  not begun: {reason}")

    def _recorder_of(self, plan: RunPlan) -> Recorder:
        return next(recorder for recorder in self._recorders if recorder.follows(plan))

    def _stop_running(self, display: ProgressDisplay) -> None:
        """Mark the runs as stopped that an interruption has left running."""
        for plan in self.runs():
            if plan.status().state == "running":
                _stop(plan, "interrupted", display)


@contextlib.contextmanager
def open_session(config: ExperimentConfig, *, fresh: bool, console: Console, debug: bool) -> Generator[Session]:
    """Hold the experiment's lock, open its record and its tracking server, and yield the session of the command.

    Args:
        config: the experiment, with all of its groups.
        fresh: moves an experiment of this name aside.
        console: where lines are shown, and a board if it is a terminal.
        debug: lets Ray's own log lines through.

    Raises:
        ResourceError: if another command works on the experiment, or there is no room on the disk.
        ConfigError: if the name is bound to another configuration.
        TrackingError: if the runs could not be recorded on the tracking server.
    """
    with contextlib.ExitStack() as resources:
        resources.enter_context(experiment_lock(config))
        resources.enter_context(terminated_is_interrupted())
        directory = ExperimentFolder.of(config).path
        check_disk(directory, needed_bytes=MIN_FREE_BYTES)
        clear_stop(directory)  # a request ends with the command it stopped
        server_notes = tracking_notes(config)
        tracker = open_experiment_tracker(config)
        record = open_experiment(config, fresh=fresh)
        session = Session(
            config,
            tracker=tracker,
            server_notes=server_notes,
            instance=record.instance,
            console=console,
            debug=debug,
            resources=resources,
        )
        for note in server_notes:
            session.warn(f"note: {note}")
        yield session


def _stop_unfinished(plans: Sequence[RunPlan], display: ProgressDisplay) -> list[tuple[RunPlan, str]]:
    """Mark as stopped what a stop has kept from going on, and return it with the reason.

    That may be a run which an earlier command has left and this one has not begun.
    """
    not_done: list[tuple[RunPlan, str]] = []
    for plan in plans:
        reason = stop_reason(plan.run_dir)
        status = plan.status()
        has_failed_now = status.state == "failed" and display.has_begun(plan)
        if reason is None or has_failed_now or plan.is_over():
            continue
        if status.state != "waiting":
            _stop(plan, reason, display)
        not_done.append((plan, reason))
    return not_done


def _stop(plan: RunPlan, reason: str, display: ProgressDisplay) -> None:
    display.on_begin(plan)
    tell(plan.run_dir, Ended("stopped", reason))
    display.on_end(plan)

"""What a watcher shows: frozen objects and arithmetic on where runs stand, how they compare and how long it takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from coordexp.report.study.data import Point, State

ENDED: tuple[State, ...] = ("finished", "failed", "stopped")
_STARTING_SECONDS = 600.0
_EVALUATING_SECONDS = 1800.0
_LEAST_SECONDS = 60.0
_USUAL_PAUSES = 10
_LONG_PAUSES = 2


@dataclass(frozen=True)
class RunRow:
    """One run as it stands.

    Attributes:
        name: ``A-s0``.
        group: its group.
        seed: its seed.
        state: where it stands; a run to be tried again waits.
        step: optimizer steps done.
        max_steps: how many there will be, where that is known.
        loss: total training loss of the last logging step.
        coord_loss: loss of the expected boxes there.
        images_per_second: speed there.
        seconds_left: of training, at ``last_seen``.
        seconds: wall time of the run, for one that has ended.
        subset_ap: AP on the subset evaluated during training, by step.
        final_ap: AP on all validation images.
        restarts: how often it began again.
        last_seen: Unix time of its last sign of life.
        patience: silence in seconds that is usual for it.
        message: why it failed or stopped, or the last alarm.
        is_starting: whether it waits for its workers again, for which there is no usual time.
    """

    name: str
    group: str
    seed: int
    state: State = "waiting"
    step: int = 0
    max_steps: int | None = None
    loss: float | None = None
    coord_loss: float | None = None
    images_per_second: float | None = None
    seconds_left: float | None = None
    seconds: float | None = None
    subset_ap: tuple[Point, ...] = ()
    final_ap: float | None = None
    restarts: int = 0
    last_seen: float | None = None
    patience: float = _STARTING_SECONDS
    message: str = ""
    is_starting: bool = False

    def age(self, now: float) -> float | None:
        """Return the seconds since the last sign of life; a clock that is ahead counts as none."""
        return None if self.last_seen is None else max(0.0, now - self.last_seen)

    def is_stalled(self, now: float) -> bool:
        """Say whether a run that should be at work has been silent for longer than is usual for it."""
        age = self.age(now)
        is_at_work = self.state == "running" and not self.is_starting
        return is_at_work and age is not None and age > self.patience

    def time_left(self, now: float) -> float | None:
        """Return the seconds of training that are left."""
        age = self.age(now)
        if self.state != "running" or self.seconds_left is None or age is None:
            return None
        return self.seconds_left if self.is_stalled(now) else max(0.0, self.seconds_left - age)

    def last_ap(self) -> float | None:
        """Return AP on all images, or else the newest on the subset."""
        if self.final_ap is not None:
            return self.final_ap
        return self.subset_ap[-1].value if self.subset_ap else None


@dataclass(frozen=True)
class Snapshot:
    """An experiment at one moment.

    Attributes:
        experiment: its name, or "" while there is none.
        source: where it was read.
        runs: in the order in which they are done.
        started: Unix time at which the command began, where that is known.
        note: what the reader has to know about the source, or "".
        ended: whether nothing more will come.
    """

    experiment: str
    source: str
    runs: tuple[RunRow, ...] = ()
    started: float | None = None
    note: str = ""
    ended: bool = False


@dataclass(frozen=True)
class GroupMean:
    """AP of a group so far.

    Attributes:
        group: its name.
        value: mean over seeds.
        num_seeds: how many have a value.
        at: at which steps, in words.
    """

    group: str
    value: float
    num_seeds: int
    at: str


def patience(*, usual: float | None, pauses: Sequence[float], is_evaluating: bool) -> float:
    """Return the silence after which a run counts as stalled.

    Ten usual pauses between two lines, or two of the longest it has made, an evaluation for example; the very
    longest is left out, since that may have been a restart.

    Args:
        usual: seconds between two logging steps, where known.
        pauses: seconds between its last signs of life.
        is_evaluating: whether all steps are done, so that the evaluation of all images is silent.
    """
    known = ([usual] if usual is not None else []) or ([median(pauses)] if pauses else [])
    longest = sorted(pauses)[-2] if len(pauses) > 1 else 0.0
    if not known:
        return _EVALUATING_SECONDS if is_evaluating else _STARTING_SECONDS
    least = _EVALUATING_SECONDS if is_evaluating else _LEAST_SECONDS
    return max(least, _USUAL_PAUSES * known[0], _LONG_PAUSES * longest)


def group_means(runs: Sequence[RunRow]) -> list[GroupMean]:
    """Return AP by group: of all images where every run has it, else at the last step that all have reached."""
    groups: dict[str, list[RunRow]] = {}
    for run in runs:
        if run.last_ap() is not None:
            groups.setdefault(run.group, []).append(run)
    return [_mean_of(group, found) for group, found in groups.items()]


def seconds_to_end(runs: Sequence[RunRow], now: float) -> float | None:
    """Return roughly how long the rest takes with as many runs at once as there are now; None if nothing is known."""
    running = [run for run in runs if run.state == "running"]
    waiting = [run for run in runs if run.state == "waiting"]
    left = [seconds for run in running if (seconds := run.time_left(now)) is not None]
    if not running and not waiting:
        return 0.0
    whole = _seconds_of_a_run(runs)
    if len(left) < len(running) or (waiting and whole is None):
        return None
    work = sum(left) + len(waiting) * (whole or 0.0)
    return max([work / max(1, len(running)), *left])


def _mean_of(group: str, runs: Sequence[RunRow]) -> GroupMean:
    finals = [run.final_ap for run in runs if run.final_ap is not None]
    if len(finals) == len(runs):
        return GroupMean(group, fmean(finals), len(finals), "all images")
    curves = [{point.step: point.value for point in run.subset_ap} for run in runs if run.subset_ap]
    common = set[int].intersection(*(set(curve) for curve in curves)) if curves else set[int]()
    if common:
        step = max(common)
        return GroupMean(group, fmean(curve[step] for curve in curves), len(curves), f"step {step}")
    values = [value for run in runs if (value := run.last_ap()) is not None]
    return GroupMean(group, fmean(values), len(values), "different steps")


def _seconds_of_a_run(runs: Sequence[RunRow]) -> float | None:
    whole = [run.seconds for run in runs if run.state == "finished" and run.seconds]
    if not whole:
        whole = [
            run.seconds_left * run.max_steps / (run.max_steps - run.step)
            for run in runs
            if run.seconds_left is not None and run.max_steps is not None and run.step < run.max_steps
        ]
    return fmean(whole) if whole else None

"""What a watcher shows of each run, and arithmetic on it: how runs compare and how long the rest takes."""

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
        images_per_second: throughput there.
        seconds_left: of training, at ``last_seen``.
        seconds: wall time of the run, for one that has ended.
        subset_ap: AP on the subset evaluated during training, by the group's reading, by step.
        final_ap: AP on all validation images.
        restarts: how often its workers were started again.
        last_seen: Unix time of its last sign of life.
        patience: silence in seconds that is usual for it.
        message: why it failed or stopped, or the last alarm.
        is_starting: whether it waits for its workers, for which there is no usual time.
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

    @property
    def is_evaluating(self) -> bool:
        """Whether all steps are done, so that it evaluates all images."""
        return self.state == "running" and self.max_steps is not None and self.step >= self.max_steps

    @property
    def last_ap(self) -> float | None:
        """AP on all images, or else the newest on the subset."""
        return self.subset_ap[-1].value if self.final_ap is None and self.subset_ap else self.final_ap

    def age(self, now: float) -> float | None:
        """Return the seconds since the last sign of life; a clock that is ahead counts as none."""
        return None if self.last_seen is None else max(0.0, now - self.last_seen)

    def is_stalled(self, now: float) -> bool:
        """Return whether a run that should be at work has been silent for longer than is usual for it."""
        age = self.age(now)
        return self.state == "running" and not self.is_starting and age is not None and age > self.patience

    def time_left(self, now: float) -> float | None:
        """Return the seconds of training that are left."""
        age = self.age(now)
        if self.state != "running" or self.seconds_left is None or age is None:
            return None
        return self.seconds_left if self.is_stalled(now) else max(0.0, self.seconds_left - age)


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


def patience(pauses: Sequence[float], *, is_evaluating: bool) -> float:
    """Return the silence after which a run counts as stalled: ten usual pauses, or two of the longest it has made.

    Args:
        pauses: seconds between its signs of life, which include evaluations.
        is_evaluating: whether all steps are done: the evaluation of all images is silent.
    """
    if not pauses:
        return _EVALUATING_SECONDS if is_evaluating else _STARTING_SECONDS
    least = _EVALUATING_SECONDS if is_evaluating else _LEAST_SECONDS
    return max(least, _USUAL_PAUSES * median(pauses), _LONG_PAUSES * max(pauses))


def group_means(runs: Sequence[RunRow]) -> list[str]:
    """Return AP by group in words: of all images where every run has it, else at the last step that all have."""
    groups: dict[str, list[RunRow]] = {}
    for run in runs:
        if run.last_ap is not None:
            groups.setdefault(run.group, []).append(run)
    words: list[str] = []
    for group, found in groups.items():
        finals = [run.final_ap for run in found if run.final_ap is not None]
        curves = [{point.step: point.value for point in run.subset_ap} for run in found if run.subset_ap]
        common = set[int].intersection(*map(set, curves)) if curves else set[int]()
        if len(finals) == len(found):
            values, at = finals, "all images"
        elif common:
            values, at = [curve[max(common)] for curve in curves], f"step {max(common)}"
        else:
            values, at = [run.last_ap for run in found if run.last_ap is not None], "different steps"
        seeds = "1 seed" if len(values) == 1 else f"{len(values)} seeds"
        words.append(f"{group} {fmean(values):.3f} ({seeds}, {at})")
    return words


def seconds_to_end(runs: Sequence[RunRow], now: float) -> float | None:
    """Return roughly how long the rest takes with as many runs at once as there are now; None if nothing is known."""
    running = [run for run in runs if run.state == "running"]
    num_waiting = sum(run.state == "waiting" for run in runs)
    left = [seconds for run in running if (seconds := run.time_left(now)) is not None]
    if not running and not num_waiting:
        return 0.0
    whole = [run.seconds for run in runs if run.state == "finished" and run.seconds] or [
        run.seconds_left * run.max_steps / (run.max_steps - run.step)
        for run in runs
        if run.seconds_left is not None and run.max_steps is not None and run.step < run.max_steps
    ]
    if len(left) < len(running) or (num_waiting and not whole):
        return None
    work = sum(left) + (num_waiting * fmean(whole) if num_waiting else 0.0)
    return max([work / max(1, len(running)), *left])

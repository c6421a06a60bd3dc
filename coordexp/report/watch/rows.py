"""What a watcher shows of each run, and arithmetic on it: when it was seen, and how long the rest takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from coordexp.report.study.data import State

ENDED: tuple[State, ...] = ("finished", "failed", "stopped")
_STARTING_SECONDS, _EVALUATING_SECONDS, _LEAST_SECONDS = 600.0, 1800.0, 60.0


@dataclass(frozen=True)
class RunRow:
    """One run as it stands.

    Attributes:
        name: ``A-s0``.
        group: its group.
        state: where it stands; a run to be tried again waits.
        step: optimizer steps done.
        max_steps: how many there will be, where that is known.
        loss: total training loss of the last logging step.
        images_per_second: throughput there.
        seconds_left: of training, at ``last_seen``.
        seconds: wall time of the run, for one that has ended.
        ap: AP on all validation images, or else the newest on the subset, by the group's reading.
        restarts: how often its workers were started again.
        last_seen: Unix time of its last sign of life.
        patience: silence in seconds that is usual for it.
        message: why it failed or stopped, or the last alarm.
        is_starting: whether it waits for its workers, for which there is no usual time.
    """

    name: str
    group: str
    state: State = "waiting"
    step: int = 0
    max_steps: int | None = None
    loss: float | None = None
    images_per_second: float | None = None
    seconds_left: float | None = None
    seconds: float | None = None
    ap: float | None = None
    restarts: int = 0
    last_seen: float | None = None
    patience: float = _STARTING_SECONDS
    message: str = ""
    is_starting: bool = False

    @property
    def is_evaluating(self) -> bool:
        """Whether all steps are done, so that it evaluates all images."""
        return self.state == "running" and self.max_steps is not None and self.step >= self.max_steps

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
        experiment: its name.
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


def patience(times: Sequence[float], *, is_evaluating: bool) -> float:
    """Return the silence after which a run counts as stalled: ten usual pauses, or two of the longest it has made.

    Args:
        times: of its signs of life, evaluations among them.
        is_evaluating: whether all steps are done: the evaluation of all images is silent.
    """
    pauses = [after - before for before, after in pairwise(times) if after > before]
    if not pauses:
        return _EVALUATING_SECONDS if is_evaluating else _STARTING_SECONDS
    return max(_EVALUATING_SECONDS if is_evaluating else _LEAST_SECONDS, 10 * median(pauses), 2 * max(pauses))

"""The trials of a search one after the other in this process, with the same points and the same rule as on Ray."""

from collections.abc import Callable, Sequence
from pathlib import Path

from coordexp.config.schema import ExperimentConfig
from coordexp.runs import inline_executor
from coordexp.runs.functions import TrainFunction
from coordexp.runs.plan import RunPlan
from coordexp.runs.reporter import Reporter, Row
from coordexp.sweep.halving import SUBSET_AP
from coordexp.sweep.trials import TrialSource


class _Pruned(Exception):  # noqa: N818 - no error: it leaves a trial that others have overtaken
    """Ends a trial from within; carries the reason."""


class _Halved:
    """A reporter that leaves the run after a commit whose AP is not good enough."""

    def __init__(self, reporter: Reporter, decide: Callable[[int, float], str | None]) -> None:
        self._reporter = reporter
        self._decide = decide

    def observe(self, row: Row) -> None:
        self._reporter.observe(row)

    def commit(self, rows: Sequence[Row], *, step: int, checkpoint: Path | None) -> None:
        rows = list(rows)
        self._reporter.commit(rows, step=step, checkpoint=checkpoint)
        for row in rows:
            if SUBSET_AP in row.metrics:
                reason = self._decide(row.step, row.metrics[SUBSET_AP])
                if reason is not None:
                    raise _Pruned(reason)

    def latest_checkpoint(self) -> Path | None:
        return self._reporter.latest_checkpoint()


def search_inline(source: TrialSource, function: TrainFunction) -> None:
    """Do trials until there is no more; afterwards each one's status says how it ended."""
    while (plan := source.next()) is not None:
        source.ended(plan, pruned=_do(plan, function, source))


def _do(plan: RunPlan, function: TrainFunction, source: TrialSource) -> str | None:
    def decide(step: int, ap: float) -> str | None:
        return source.observe(plan, step, ap)

    def halved(config: ExperimentConfig, *, reporter: Reporter, announce: Callable[[str], None]) -> None:
        function(config, reporter=_Halved(reporter, decide), announce=announce)

    try:
        inline_executor.execute([plan], halved)
    except _Pruned as pruned:
        return str(pruned)
    return None

"""What a dashboard can ask of a run: every exported metric, and the samples that a row or a status gives.

No Ray here: ``coordexp.cluster.live_metrics`` publishes the samples. Ray puts ``ray_`` before each name, and ``_total``
after a counter's.
"""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from coordexp.errors import DivergedError
from coordexp.metrics import GAUGES, gauge_of
from coordexp.runs.plan import RunPlan
from coordexp.runs.reporter import Row, read_rows

Kind = Literal["gauge", "counter"]

RUN_LABELS = ("experiment", "group", "seed", "run")
STATES = ("waiting", "running", "finished", "failed", "stopped", "pruned")

_CLOCKS_APART_SECONDS = 5.0  # a shared disk's clock may differ from ours by so much


@dataclass(frozen=True)
class Exported:
    """One exported metric.

    Attributes:
        name: as it is published, without what Ray adds.
        description: one line, with the unit.
        labels: keys that come with every sample.
        kind: a gauge is set, a counter only grows.
    """

    name: str
    description: str
    labels: tuple[str, ...] = RUN_LABELS
    kind: Kind = "gauge"

    @property
    def prometheus_name(self) -> str:
        """Return the name under which Prometheus stores it."""
        return f"ray_{self.name}" + ("_total" if self.kind == "counter" else "")


@dataclass(frozen=True)
class GaugeSample:
    """One value to publish; labels are those that the run itself does not give."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


_ALL = (
    *(Exported(gauge.name, gauge.description, (*RUN_LABELS, *gauge.labels)) for gauge in GAUGES),
    Exported("coordexp_step", "optimizer steps done"),
    Exported("coordexp_max_steps", "optimizer steps of the whole run"),
    Exported("coordexp_last_step_time_seconds", "Unix time of the last row: training, validation or evaluation"),
    Exported(
        "coordexp_memory_bytes",
        "bytes of rank 0's device: allocated, reserved, peak, limit; on CPU resident memory of the process, its peak "
        "and the machine's",
        (*RUN_LABELS, "device", "kind"),
    ),
    Exported("coordexp_report_wait_seconds", "seconds blocked in reports of rows and checkpoints", kind="counter"),
    Exported("coordexp_nonfinite_rows", "rows of this attempt whose total loss was not finite"),
    Exported("coordexp_run_state", ", ".join(f"{number} {state}" for number, state in enumerate(STATES))),
    Exported("coordexp_run_diverged", "1 if the run failed because loss or gradients were not finite, else 0"),
    Exported("coordexp_restarts", "how often the run was started again after a failure"),
    Exported("coordexp_runs", "runs of the ablation in each state", ("experiment", "state")),
    Exported("coordexp_ablation_seconds", "seconds since this command began to run", ("experiment",)),
)
EXPORTED: dict[str, Exported] = {metric.name: metric for metric in _ALL}

_TOTALS = {"num_images": "train_total_loss", "eval_coord_diag/coord_tokens": "eval_total_loss"}


def run_labels(plan: RunPlan) -> dict[str, str]:
    """Return what every sample of a run carries."""
    return {
        "experiment": plan.config.experiment.name,
        "group": plan.group,
        "seed": str(plan.seed),
        "run": plan.name,
    }


def start_samples(*, max_steps: int, now: float) -> list[GaugeSample]:
    """Return what is known when a worker begins: a start counts as a sign of life."""
    return [
        GaugeSample("coordexp_max_steps", max_steps),
        GaugeSample("coordexp_last_step_time_seconds", now),
        GaugeSample("coordexp_nonfinite_rows", 0),
    ]


def row_samples(row: Row) -> list[GaugeSample]:
    """Return what dashboards show of a row of metrics; other names are left out."""
    samples = [GaugeSample("coordexp_step", row.step), GaugeSample("coordexp_last_step_time_seconds", row.time)]
    for name, value in row.metrics.items():
        gauge = gauge_of(name)
        if gauge is not None:
            samples.append(GaugeSample(gauge[0], value, gauge[1]))
    return samples


def is_nonfinite(row: Row) -> bool:
    """Return whether a row of training or validation lacks its total loss: what is not finite is left out of rows."""
    return any(name in row.metrics and loss not in row.metrics for name, loss in _TOTALS.items())


def run_samples(plan: RunPlan, *, since: float = 0.0) -> list[GaugeSample]:
    """Return the state of a run by its status file, which is true even after its worker was killed.

    Args:
        plan: the run.
        since: see :func:`state_of`.
    """
    status, state = plan.status(), state_of(plan, since=since)
    return [
        GaugeSample("coordexp_run_state", STATES.index(state)),
        GaugeSample("coordexp_restarts", 0 if status is None else status.restarts),
        GaugeSample("coordexp_run_diverged", float(state == "failed" and has_diverged(plan))),
    ]


def final_samples(plan: RunPlan) -> list[GaugeSample]:
    """Return the final AP of a run from its rows: its worker may end before Ray has handed the value on."""
    for row in reversed(read_rows(plan.folder.metrics)):
        found = [sample for sample in row_samples(row) if sample.labels.get("images") == "all"]
        if found:
            return found
    return []


def queue_samples(states: Sequence[str], *, seconds: float) -> list[GaugeSample]:
    """Return the runs in each state, with zeros, and the age of the ablation.

    Args:
        states: one of ``STATES`` for each run.
        seconds: since the command began to run.
    """
    counted = Counter(states)
    runs = [GaugeSample("coordexp_runs", counted[state], {"state": state}) for state in STATES]
    return [*runs, GaugeSample("coordexp_ablation_seconds", seconds)]


def state_of(plan: RunPlan, *, since: float = 0.0) -> str:
    """Return one of ``STATES``; a run never begun is waiting.

    Args:
        plan: the run.
        since: Unix time at which the present command began its runs: a run that an earlier command left failed,
            stopped or running counts as waiting until this one begins it.
    """
    status = plan.status()
    if status is None:
        return "waiting"
    with contextlib.suppress(OSError):  # the file was there a moment ago
        written = plan.folder.status.stat().st_mtime
        if status.state in ("running", "failed", "stopped") and written < since - _CLOCKS_APART_SECONDS:
            return "waiting"
    return status.state


def has_diverged(plan: RunPlan) -> bool:
    """Return whether a run failed because a loss or gradient was not finite."""
    status = plan.status()
    log = plan.folder.error_log
    if status is None or status.state != "failed" or not log.is_file():
        return False
    raised = f"{DivergedError.__module__}.{DivergedError.__qualname__}: {status.message}"
    return raised in log.read_text(encoding="utf-8", errors="replace")

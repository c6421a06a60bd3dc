"""Live metrics: what dashboards can ask of runs, published through ``ray.util.metrics``. Never stops a run.

Ray's agent on each node serves the values to Prometheus. It puts ``ray_`` before each name, and ``_total`` after a
counter's; values vanish 20 s after the process that published them.
"""

import logging
import resource
import threading
import time
from collections import Counter as Count
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import TracebackType
from typing import Literal, Protocol

import psutil
from ray.exceptions import RayError
from ray.util.metrics import Counter, Gauge

from coordexp.errors import DivergedError
from coordexp.metrics import GAUGES, gauge_of
from coordexp.runs.plan import RunPlan
from coordexp.runs.rows import Row, read_rows
from coordexp.runs.status import RunStatus

RUN_LABELS = ("experiment", "group", "seed", "run")
STATES = ("waiting", "running", "finished", "failed", "stopped", "pruned")
LOOK_SECONDS = 5.0  # Ray's own export is every ten

_CLOCKS_APART_SECONDS = 5.0  # a shared disk's clock may differ from ours by so much
# What publishing may meet: a device or file that is gone, a Ray that is shutting down, a value it refuses.
_FAILURES = (OSError, RuntimeError, ValueError, TypeError, psutil.Error, RayError)
_LOG = logging.getLogger(__name__)


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
    kind: Literal["gauge", "counter"] = "gauge"

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


class Sink(Protocol):
    """Takes one value of one exported metric."""

    def __call__(self, sample: GaugeSample, labels: Mapping[str, str]) -> None:
        """Take ``sample`` with all its labels."""
        ...


def to_ray(sample: GaugeSample, labels: Mapping[str, str]) -> None:
    """Hand one sample to this process's Ray worker."""
    metric = _metric(sample.name)
    if isinstance(metric, Counter):
        metric.inc(sample.value, tags=dict(labels))
    else:
        metric.set(sample.value, tags=dict(labels))


class RunMetrics:
    """What rank 0 of a run publishes."""

    def __init__(self, plan: RunPlan, *, sink: Sink = to_ray) -> None:
        self._labels = run_labels(plan)
        self._sink = sink
        self._guard = _Guard()
        self._nonfinite_rows = 0
        self._publish(
            lambda: [
                GaugeSample("coordexp_max_steps", plan.config.training.num_steps),
                GaugeSample("coordexp_last_step_time_seconds", time.time()),  # a start is a sign of life
                GaugeSample("coordexp_nonfinite_rows", 0),
            ]
        )

    def observe(self, row: Row) -> None:
        """Publish a row and the memory of the device."""
        # What is not finite is left out of rows.
        self._nonfinite_rows += any(name in row.metrics and loss not in row.metrics for name, loss in _TOTALS.items())
        nonfinite = GaugeSample("coordexp_nonfinite_rows", self._nonfinite_rows)
        self._publish(lambda: [*row_samples(row), nonfinite, *memory_samples()])

    def waited(self, seconds: float) -> None:
        """Add to the time blocked in reports."""
        if seconds > 0:
            self._publish(lambda: [GaugeSample("coordexp_report_wait_seconds", seconds)])

    def _publish(self, make: Callable[[], Sequence[GaugeSample]]) -> None:
        with self._guard:
            for sample in make():
                self._sink(sample, self._labels | dict(sample.labels))


class QueueMetrics:
    """What the ablation's own process publishes: every run's state, restarts, final AP, and the runs in each state.

    While it lives, a run whose worker is gone is known to be running, failed or finished.
    """

    def __init__(
        self,
        experiment: str,
        plans: Callable[[], Sequence[RunPlan]],
        *,
        sink: Sink = to_ray,
        every_seconds: float = LOOK_SECONDS,
    ) -> None:
        """Follow the runs that ``plans`` returns, also finished ones; it is called each time: a sweep adds some."""
        self._experiment = experiment
        self._plans = plans
        self._sink = sink
        self._every = every_seconds
        self._finished: set[str] = set()
        self._started, self._since = time.monotonic(), time.time()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="queue-metrics", daemon=True)

    def __enter__(self) -> "QueueMetrics":
        """Start publishing."""
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Publish how it all ended, then stop."""
        self._stop.set()
        self._thread.join()

    def publish(self) -> None:
        """Publish every run's state, and the final AP of those that finished since."""
        states = Count[str]()
        for plan in self._plans():
            status = plan.status()
            state = state_of(plan, status, since=self._since)
            states[state] += 1
            samples = run_samples(plan, status, state)
            if state == "finished" and plan.name not in self._finished:
                self._finished.add(plan.name)
                samples += final_samples(plan)
            for sample in samples:
                self._sink(sample, run_labels(plan) | dict(sample.labels))
        shared = [GaugeSample("coordexp_runs", states[state], {"state": state}) for state in STATES]
        shared.append(GaugeSample("coordexp_ablation_seconds", time.monotonic() - self._started))
        for sample in shared:
            self._sink(sample, {"experiment": self._experiment} | dict(sample.labels))

    def _follow(self) -> None:
        guard, is_over = _Guard(), False
        while not is_over:
            with guard:
                self.publish()
            is_over = self._stop.wait(self._every)
        with guard:
            self.publish()


def run_labels(plan: RunPlan) -> dict[str, str]:
    """Return what every sample of a run carries."""
    return {
        "experiment": plan.config.experiment.name,
        "group": plan.group,
        "seed": str(plan.seed),
        "run": plan.name,
    }


def row_samples(row: Row) -> list[GaugeSample]:
    """Return what dashboards show of a row of metrics; other names are left out."""
    samples = [GaugeSample("coordexp_step", row.step), GaugeSample("coordexp_last_step_time_seconds", row.time)]
    for name, value in row.metrics.items():
        gauge = gauge_of(name)
        if gauge is not None:
            samples.append(GaugeSample(gauge[0], value, gauge[1]))
    return samples


def state_of(plan: RunPlan, status: RunStatus | None, *, since: float = 0.0) -> str:
    """Return one of ``STATES``; a run never begun is waiting.

    Args:
        plan: the run.
        status: of it.
        since: Unix time at which the present command began its runs: a run that an earlier command left failed,
            stopped or running counts as waiting until this one begins it.
    """
    if status is None:
        return "waiting"
    is_left = status.state in ("running", "failed", "stopped")
    if is_left and plan.folder.status.stat().st_mtime < since - _CLOCKS_APART_SECONDS:
        return "waiting"
    return status.state


def run_samples(plan: RunPlan, status: RunStatus | None, state: str) -> list[GaugeSample]:
    """Return the state of a run by its status, which is true even after its worker was killed."""
    return [
        GaugeSample("coordexp_run_state", STATES.index(state)),
        GaugeSample("coordexp_restarts", 0 if status is None else status.restarts),
        GaugeSample("coordexp_run_diverged", float(state == "failed" and has_diverged(plan, status))),
    ]


def final_samples(plan: RunPlan) -> list[GaugeSample]:
    """Return the final AP of a run from its rows: its worker may end before Ray has handed the value on."""
    for row in reversed(read_rows(plan.folder.metrics)):
        found = [sample for sample in row_samples(row) if sample.labels.get("images") == "all"]
        if found:
            return found
    return []


def has_diverged(plan: RunPlan, status: RunStatus | None) -> bool:
    """Return whether a failed run failed because a loss or gradient was not finite."""
    log = plan.folder.error_log
    if status is None or not log.is_file():
        return False
    raised = f"{DivergedError.__module__}.{DivergedError.__qualname__}: {status.message}"
    return raised in log.read_text(encoding="utf-8", errors="replace")


def memory_samples() -> list[GaugeSample]:
    """Return the memory of this process's device, in bytes; of the process and its machine where there is no GPU."""
    import torch  # here: the launcher imports this module too

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        index = torch.cuda.current_device()
        device = f"cuda:{index}"
        values = {
            "allocated": torch.cuda.memory_allocated(index),
            "reserved": torch.cuda.memory_reserved(index),
            "peak": torch.cuda.max_memory_allocated(index),
            "limit": torch.cuda.get_device_properties(index).total_memory,
        }
    else:
        device, resident = "cpu", psutil.Process().memory_info().rss
        values = {
            "allocated": resident,
            "reserved": resident,
            "peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,  # Linux counts in KiB
            "limit": psutil.virtual_memory().total,
        }
    return [
        GaugeSample("coordexp_memory_bytes", float(value), {"device": device, "kind": kind})
        for kind, value in values.items()
    ]


class _Guard:
    """Suppresses the errors that publishing may meet, with a warning the first time; the next row tries again."""

    def __init__(self) -> None:
        self._has_warned = False

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or not isinstance(error, _FAILURES):
            return False
        if not self._has_warned:
            _LOG.warning("live metrics are incomplete, the run goes on: %s: %s", type(error).__name__, error)
        self._has_warned = True
        return True


@cache
def _metric(name: str) -> Counter | Gauge:
    exported = EXPORTED[name]
    kind = Counter if exported.kind == "counter" else Gauge
    return kind(name, description=exported.description, tag_keys=exported.labels)

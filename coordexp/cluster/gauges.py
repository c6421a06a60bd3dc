"""Live metrics: what dashboards can ask of runs, published through ``ray.util.metrics``. Never stops a run.

Ray's agent on each node serves the values to Prometheus, with ``ray_`` before each name. Values vanish 20 s after the
process that published them.
"""

import logging
import resource
import threading
import time
from collections import Counter as Count
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import psutil
from ray.exceptions import RayError
from ray.util import metrics as ray_metrics

from coordexp.errors import DivergedError
from coordexp.metrics import GAUGES, Gauge, gauge_of
from coordexp.runs.executor import Follower
from coordexp.runs.plan import RunPlan
from coordexp.runs.rows import Row, read_rows
from coordexp.runs.status import RunStatus

RUN_LABELS = ("experiment", "group", "seed", "run")
STATES = ("waiting", "running", "finished", "failed", "stopped", "pruned")
LOOK_SECONDS = 5.0  # Ray's own export is every ten

# Errors of publishing: a device or file is gone, Ray is shutting down, or Ray refuses a value.
_FAILURES = (OSError, RuntimeError, ValueError, TypeError, psutil.Error, RayError)
_LOG = logging.getLogger(__name__)
HAS_WARNED = threading.Event()

_ALL = (
    *(replace(gauge, labels=(*RUN_LABELS, *gauge.labels)) for gauge in GAUGES),
    Gauge("coordexp_step", "optimizer steps done", RUN_LABELS),
    Gauge("coordexp_max_steps", "optimizer steps of the whole run", RUN_LABELS),
    Gauge(
        "coordexp_last_step_time_seconds", "Unix time of the last row: training, validation or evaluation", RUN_LABELS
    ),
    Gauge(
        "coordexp_memory_bytes",
        "bytes of rank 0's device: allocated, reserved, peak, limit; on CPU resident memory of the process, its peak "
        "and the machine's",
        (*RUN_LABELS, "device", "kind"),
    ),
    Gauge("coordexp_nonfinite_rows", "rows of this attempt whose total loss was not finite", RUN_LABELS),
    Gauge("coordexp_run_state", ", ".join(f"{number} {state}" for number, state in enumerate(STATES)), RUN_LABELS),
    Gauge("coordexp_run_diverged", "1 if the run failed because loss or gradients were not finite, else 0", RUN_LABELS),
    Gauge("coordexp_restarts", "how often the run was started again after a failure", RUN_LABELS),
    Gauge("coordexp_runs", "runs of the ablation in each state", ("experiment", "state")),
    Gauge("coordexp_ablation_seconds", "seconds since this command began to run", ("experiment",)),
)
EXPORTED: dict[str, Gauge] = {metric.name: metric for metric in _ALL}

# A row with a name on the left has the loss on the right, too, unless that loss was not finite.
_TOTALS = {"num_images": "train_total_loss", "eval_coord_diag/coord_tokens": "eval_total_loss"}


@dataclass(frozen=True)
class Sample:
    """One value to publish."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


def publish(samples: Iterable[Sample], labels: Mapping[str, str]) -> None:
    """Give samples to this process's Ray worker, with ``labels`` added to their own.

    The first failure, also one of reading ``samples``, is a warning. The next row tries again.
    """
    try:
        for sample in samples:
            to_ray(replace(sample, labels={**labels, **sample.labels}))
    except _FAILURES as error:
        if not HAS_WARNED.is_set():
            _LOG.warning("live metrics are incomplete, the run continues: %s: %s", type(error).__name__, error)
        HAS_WARNED.set()


def to_ray(sample: Sample) -> None:
    _metric(sample.name).set(sample.value, tags=dict(sample.labels))


@cache
def _metric(name: str) -> ray_metrics.Gauge:
    return ray_metrics.Gauge(name, description=EXPORTED[name].description, tag_keys=EXPORTED[name].labels)


class RunGauges:
    """Publishes what rank 0 knows of its run."""

    def __init__(self, plan: RunPlan) -> None:
        """Publish that the run has started, and how long it will be."""
        self._labels = run_labels(plan)
        self._nonfinite_rows = 0
        started = [
            Sample("coordexp_max_steps", plan.config.training.num_steps),
            Sample("coordexp_last_step_time_seconds", time.time()),  # a start is a sign of life
            Sample("coordexp_nonfinite_rows", 0),
        ]
        publish(started, self._labels)

    def observe(self, row: Row) -> None:
        """Publish a row of metrics, and the memory that the run uses now."""
        for name, loss in _TOTALS.items():
            if name in row.metrics and loss not in row.metrics:
                self._nonfinite_rows += 1
                break
        nonfinite = Sample("coordexp_nonfinite_rows", self._nonfinite_rows)
        publish([*row_samples(row), nonfinite], self._labels)
        publish(memory_samples(), self._labels)  # a generator, so that errors of reading a device are caught there


class QueueGauges(Follower):
    """Publishes what the command knows: the state, restarts and final AP of every run, and the runs in each state.

    So a dashboard knows the state of a run whose worker, and with it the worker's own values, is gone.
    """

    def __init__(
        self, experiment: str, plans: Callable[[], Sequence[RunPlan]], *, every_seconds: float = LOOK_SECONDS
    ) -> None:
        """Follow runs while the ``with`` block lasts.

        Args:
            experiment: its name.
            plans: returns all runs, finished ones too. It is called each time, since a search adds runs.
            every_seconds: between two looks at the runs.
        """
        super().__init__("queue-metrics")
        self._experiment = experiment
        self._plans = plans
        self._every = every_seconds
        self._finished: set[str] = set()
        self._before = {plan.name: plan.status() for plan in plans()}
        self._started = time.monotonic()

    def publish(self) -> None:
        publish(self._samples(), {"experiment": self._experiment})

    def _samples(self) -> Iterator[Sample]:
        states = Count[str]()
        for plan in self._plans():
            status = plan.status()
            state = status.state
            if status == self._before.get(plan.name) and state in ("running", "failed", "stopped"):
                state = "waiting"  # an earlier command has left it so, and this one has not begun it yet
            states[state] += 1
            samples = [
                Sample("coordexp_run_state", STATES.index(state)),
                Sample("coordexp_restarts", status.restarts),
                Sample("coordexp_run_diverged", float(state == "failed" and has_diverged(plan, status))),
            ]
            if state == "finished" and plan.name not in self._finished:
                self._finished.add(plan.name)
                samples += final_samples(plan)
            yield from (replace(sample, labels={**run_labels(plan), **sample.labels}) for sample in samples)
        yield from (Sample("coordexp_runs", states[state], {"state": state}) for state in STATES)
        yield Sample("coordexp_ablation_seconds", time.monotonic() - self._started)

    def _follow(self) -> None:
        self.publish()
        while not self._is_closed.wait(self._every):
            self.publish()
        self.publish()


def run_labels(plan: RunPlan) -> dict[str, str]:
    values = (plan.config.experiment.name, plan.group, str(plan.seed), plan.name)
    return dict(zip(RUN_LABELS, values, strict=True))


def row_samples(row: Row) -> list[Sample]:
    """Return what dashboards show of a row of metrics; other metrics are left out."""
    samples = [Sample("coordexp_step", row.step), Sample("coordexp_last_step_time_seconds", row.time)]
    for name, value in row.metrics.items():
        gauge = gauge_of(name)
        if gauge is not None:
            gauge_name, labels = gauge
            samples.append(Sample(gauge_name, value, labels))
    return samples


def final_samples(plan: RunPlan) -> list[Sample]:
    """Return the final AP of a run from its rows, since its worker may end before Ray has passed the value on."""
    for row in reversed(read_rows(plan.folder.metrics)):
        samples_of_all_images = [sample for sample in row_samples(row) if sample.labels.get("images") == "all"]
        if samples_of_all_images:
            return samples_of_all_images
    return []


def has_diverged(plan: RunPlan, status: RunStatus) -> bool:
    """Return whether a failed run ended because its loss or gradients were not finite, as its traceback says."""
    log = plan.folder.error_log
    if not log.is_file():
        return False
    raised = f"{DivergedError.__module__}.{DivergedError.__qualname__}: {status.message}"
    return raised in log.read_text(encoding="utf-8", errors="replace")


def memory_samples() -> Iterator[Sample]:
    """Yield the memory of this process's GPU in bytes, or of the process and its machine if it uses no GPU."""
    import torch  # only here: the command imports this module, too, and needs no torch for it

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        device = f"cuda:{torch.cuda.current_device()}"
        values = {
            "allocated": torch.cuda.memory_allocated(),
            "reserved": torch.cuda.memory_reserved(),
            "peak": torch.cuda.max_memory_allocated(),
            "limit": torch.cuda.get_device_properties(device).total_memory,
        }
    else:
        device, resident = "cpu", psutil.Process().memory_info().rss
        values = {
            "allocated": resident,
            "reserved": resident,
            "peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,  # Linux counts in KiB
            "limit": psutil.virtual_memory().total,
        }
    for kind, value in values.items():
        yield Sample("coordexp_memory_bytes", float(value), {"device": device, "kind": kind})

"""Publishes live metrics through Ray, whose agent on each node serves them to Prometheus. Never stops a run."""

import logging
import resource
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from http.client import HTTPException
from types import TracebackType
from typing import Protocol

import psutil
import ray
from ray.exceptions import RayError
from ray.util.metrics import Counter, Gauge

from coordexp.cluster.gauges import (
    EXPORTED,
    GaugeSample,
    final_samples,
    is_nonfinite,
    queue_samples,
    row_samples,
    run_labels,
    run_samples,
    start_samples,
    state_of,
)
from coordexp.runs.plan import RunPlan
from coordexp.runs.reporter import Row

LOOK_SECONDS = 5.0  # Ray's own export is every ten
READ_SECONDS = 60.0  # as a Prometheus reads Ray's agent
# What publishing may meet: a device or file that is gone, a Ray that is shutting down, a value it refuses.
_FAILURES = (OSError, RuntimeError, ValueError, TypeError, psutil.Error, RayError, HTTPException)
_LOG = logging.getLogger(__name__)


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
    """What rank 0 of a run publishes. The values vanish 20 s after the process that published them."""

    def __init__(self, plan: RunPlan, *, sink: Sink = to_ray) -> None:
        self._labels = run_labels(plan)
        self._sink = sink
        self._guard = _Guard()
        self._nonfinite_rows = 0
        self._publish(lambda: start_samples(max_steps=plan.config.training.num_steps, now=time.time()))

    def observe(self, row: Row) -> None:
        """Publish a row and the memory of the device."""
        self._nonfinite_rows += is_nonfinite(row)
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

    While it lives, a run whose worker is gone is known to be running, failed or finished; when it ends, its
    values are gone after 20 s, and nothing looks alive any more.
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
        plans = self._plans()
        for plan in plans:
            is_new = plan.name not in self._finished and plan.is_finished()
            for sample in run_samples(plan, since=self._since) + (final_samples(plan) if is_new else []):
                self._sink(sample, run_labels(plan) | dict(sample.labels))
            if is_new:
                self._finished.add(plan.name)
        seconds = time.monotonic() - self._started
        for sample in queue_samples([state_of(plan, since=self._since) for plan in plans], seconds=seconds):
            self._sink(sample, {"experiment": self._experiment} | dict(sample.labels))

    def _follow(self) -> None:
        guard, agent, next_reading = _Guard(), None, time.monotonic() + READ_SECONDS
        with guard:
            self.publish()
            agent = agent_address()
        while not self._stop.wait(self._every):
            with guard:
                self.publish()
            if agent is not None and time.monotonic() > next_reading:
                with guard:
                    read_metrics(agent)
                next_reading = time.monotonic() + READ_SECONDS
        with guard:
            self.publish()


def agent_address() -> str | None:
    """Return where Ray's agent on this node serves its metrics; None where Ray or its agent is not there."""
    if not ray.is_initialized():
        return None
    here = ray.get_runtime_context().get_node_id()
    served = [node for node in ray.nodes() if node["NodeID"] == here and node["MetricsExportPort"] > 0]
    return f"http://{served[0]['NodeManagerAddress']}:{served[0]['MetricsExportPort']}/metrics" if served else None


def read_metrics(address: str) -> int:
    """Read what an agent serves, and return how many bytes: only then does it let go of what ended workers said.

    Without a reader it keeps .8 MiB of each run for ever.

    Raises:
        OSError: if it does not answer within ten seconds.
        HTTPException: if it ends within its answer.
    """
    direct, count = urllib.request.build_opener(urllib.request.ProxyHandler({})), 0
    with direct.open(address, timeout=10) as answer:
        while piece := answer.read(2**20):
            count += len(piece)
    return count


def memory_samples() -> list[GaugeSample]:
    """Return the memory of this process's device, in bytes; of the process and its machine where there is no GPU."""
    import torch  # here: a run's driver imports this module, and trains nothing

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        device = torch.cuda.current_device()
        values = {
            "allocated": torch.cuda.memory_allocated(device),
            "reserved": torch.cuda.memory_reserved(device),
            "peak": torch.cuda.max_memory_allocated(device),
            "limit": torch.cuda.get_device_properties(device).total_memory,
        }
        return _memory(f"cuda:{device}", values)
    resident, peak = psutil.Process().memory_info().rss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    values = {
        "allocated": resident,
        "reserved": resident,
        "peak": peak * (1 if sys.platform == "darwin" else 1024),  # Linux counts in KiB
        "limit": psutil.virtual_memory().total,
    }
    return _memory("cpu", values)


def _memory(device: str, values: Mapping[str, float]) -> list[GaugeSample]:
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

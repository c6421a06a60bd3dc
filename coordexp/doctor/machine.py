"""Where a run would run: this machine and the disk it writes to, and Ray and MLflow, which are asked briefly.

Nothing is created there but the lock beside a database that exists.
"""

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from coordexp.campaign.preparation import needed_disk_bytes
from coordexp.cluster.capacity import check_answers, cluster_address, count_slots, local_nodes, ray_folder
from coordexp.config.schema import ExperimentConfig, RunConfig
from coordexp.cpus import usable_cpus
from coordexp.errors import ResourceError, counted
from coordexp.files import nearest_existing
from coordexp.findings import Check, attempt, guarded, ok, size_text, warning
from coordexp.runs.executor import InlineExecutor
from coordexp.runs.experiment import check_disk, check_experiment
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.lock import check_unlocked, check_writable
from coordexp.runs.plan import RunPlan
from coordexp.temporary import short_temporary_folder
from coordexp.tracking.address import sqlite_path
from coordexp.tracking.connection import check_names_file
from coordexp.tracking.publish import tracking_uri
from coordexp.tracking.server import CHECK as TRACKING
from coordexp.tracking.server import examine_server
from coordexp.train.setup.strategy import check_strategy

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Machine:
    """The GPUs of this machine, the memory of it or of the container we are in, the CPUs that this process may use."""

    gpu_names: tuple[str, ...]
    gpu_bytes: tuple[int, ...]
    ram_bytes: int
    num_cpus: int

    @classmethod
    def here(cls) -> "Machine":
        gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        ram_bytes = int(psutil.virtual_memory().total)
        with contextlib.suppress(OSError):
            limit = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
            ram_bytes = min(ram_bytes, int(limit)) if limit.isdigit() else ram_bytes
        return cls(
            gpu_names=tuple(gpu.name for gpu in gpus),
            gpu_bytes=tuple(gpu.total_memory for gpu in gpus),
            ram_bytes=ram_bytes,
            num_cpus=usable_cpus(),
        )

    def describe(self) -> str:
        gpus = ", ".join(
            f"{name} ({size / 2**30:.0f} GiB)" for name, size in zip(self.gpu_names, self.gpu_bytes, strict=True)
        )
        return f"{counted(self.num_cpus, 'CPU')}, {self.ram_bytes / 2**30:.0f} GiB of memory, {gpus or 'no GPU'}"


def examine_experiment(run: ExperimentConfig) -> Check[None]:
    """Check that the experiment's name is free or goes on, and that its directory can be written."""
    folder = ExperimentFolder.of(run)
    problems = [
        *attempt("experiment", lambda: check_experiment(run)),
        *attempt("runs_dir", lambda: check_writable(folder)),
        *attempt("experiment", lambda: check_unlocked(folder)),
    ]
    state = "continues there" if folder.record.is_file() else "new"
    yield from problems or [ok("runs_dir", f"{folder.path}: {state}, writable")]


def examine_disk(plans: list[RunPlan], weights_bytes: int | None) -> Check[None]:
    """Check that the disk holds bases, merged models and checkpoints of unfinished runs; None: no model is known."""
    pending = [plan for plan in plans if not plan.is_finished()]
    if not pending:
        yield ok("disk", "all runs are finished")
        return
    directory = pending[0].run_dir
    existing = nearest_existing(directory)
    if weights_bytes is None:
        yield warning("disk", f"{existing}: what the runs need there is known once the checkpoint is here")
        return
    bases = {ExperimentFolder.of(plan.config).base(plan.config) for plan in pending}
    needed = needed_disk_bytes(pending, weights_bytes) + weights_bytes * sum(not base.exists() for base in bases)
    free = shutil.disk_usage(existing).free
    said = f"{size_text(free)} free at {existing}; {counted(len(pending), 'run')}: about {size_text(needed)}"
    problems = [*attempt("disk", lambda: check_disk(directory, needed_bytes=needed))]
    yield from problems or [ok("disk", said)]


def examine_cluster(run: RunConfig, num_gpus: int) -> Check[None]:
    """Check that one run fits into what the executor gives it, and that its workers can share it as asked."""
    yield from attempt("strategy", lambda: check_strategy(run))
    temporary = yield from attempt("temporary files", short_temporary_folder)
    if temporary not in (None, tempfile.gettempdir()):
        yield ok("temporary files", f"{tempfile.gettempdir()} is too long for sockets; a run uses {temporary}")
    if run.cluster.executor == "inline":
        problems = [*attempt("executor", lambda: InlineExecutor().check(run))]
        yield from problems or [ok("executor", "inline: one run after the other in one process, without Ray")]
        return
    address, nodes = cluster_address(), local_nodes(num_gpus)
    if address is not None:
        problems = [*attempt("ray", lambda: check_answers(address))]
        said = f"{address} takes connections; whether a run fits there is known when it is joined"
        yield from problems or [warning("ray", said)]
        return
    slots = yield from attempt("ray", lambda: count_slots(run.cluster, nodes))
    folder = yield from attempt("ray", ray_folder)
    if slots is not None and folder is not None:
        at_once = f"{slots} runs at a time" if slots > 1 else "one run at a time"
        yield ok(
            "ray",
            f"a private Ray would start on this machine, its sockets in {folder}: {counted(nodes[0]['CPU'], 'CPU')}, "
            f"{counted(num_gpus, 'GPU')}, {at_once}",
        )
    if run.data.num_workers > run.cluster.cpus_per_worker:
        yield warning(
            "ray",
            f"data.num_workers is {run.data.num_workers}, but a worker has {run.cluster.cpus_per_worker:g} CPUs "
            "(cluster.cpus_per_worker): its loaders will wait for each other",
        )


def examine_tracking(run: RunConfig) -> Check[None]:
    """Check the tracking server or database as a run does; a database that is not there yet is not made."""
    uri = tracking_uri(run)
    path = sqlite_path(uri)
    if path is not None:
        is_writable = yield from attempt(TRACKING, lambda: _check_writable(uri, path))
        if is_writable is None:
            return
        if not path.exists():
            yield ok(TRACKING, f"{path} will be made")
            return
    yield from guarded(TRACKING, examine_server(uri, run.experiment.name))


def _check_writable(uri: str, path: Path) -> bool:
    check_names_file(uri, path)
    existing = nearest_existing(path)
    is_there = existing == path
    if not os.access(existing, os.W_OK if is_there else os.W_OK | os.X_OK) or not (is_there or existing.is_dir()):
        raise ResourceError(f"{path}: the tracking database cannot be written; set tracking.uri")
    return True

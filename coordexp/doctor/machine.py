"""Where a run would run: this machine, the disk it writes to, Ray, and MLflow.

Nothing is created there, except the lock beside a database that exists.
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
    """What this process may use.

    Attributes:
        gpu_names: name of each GPU.
        gpu_bytes: memory of each GPU.
        ram_bytes: memory of the machine, or of the container if that has a smaller limit.
        num_cpus: CPUs that this process may use.
    """

    gpu_names: tuple[str, ...]
    gpu_bytes: tuple[int, ...]
    ram_bytes: int
    num_cpus: int

    @classmethod
    def here(cls) -> "Machine":
        """Look at the machine that this process runs on."""
        gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        ram_bytes = int(psutil.virtual_memory().total)
        with contextlib.suppress(OSError):
            limit = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
            if limit.isdigit():  # "max" where there is none
                ram_bytes = min(ram_bytes, int(limit))
        return cls(
            gpu_names=tuple(gpu.name for gpu in gpus),
            gpu_bytes=tuple(gpu.total_memory for gpu in gpus),
            ram_bytes=ram_bytes,
            num_cpus=usable_cpus(),
        )

    def describe(self) -> str:
        """Return e.g. ``8 CPUs, 64 GiB of memory, NVIDIA H100 (80 GiB)``."""
        gpus = [f"{name} ({size / 2**30:.0f} GiB)" for name, size in zip(self.gpu_names, self.gpu_bytes, strict=True)]
        gpu_text = ", ".join(gpus) or "no GPU"
        return f"{counted(self.num_cpus, 'CPU')}, {self.ram_bytes / 2**30:.0f} GiB of memory, {gpu_text}"


def examine_experiment(run: ExperimentConfig) -> Check[None]:
    """Check that the experiment's folder can be written, and that it is new or of the same configuration."""
    folder = ExperimentFolder.of(run)
    problems = [
        *attempt("experiment", lambda: check_experiment(run)),
        *attempt("runs_dir", lambda: check_writable(folder)),
        *attempt("experiment", lambda: check_unlocked(folder)),
    ]
    state = "continues there" if folder.record.is_file() else "new"
    yield from problems or [ok("runs_dir", f"{folder.path}: {state}, writable")]


def examine_disk(plans: list[RunPlan], weights_bytes: int | None) -> Check[None]:
    """Check that the disk has room for bases, merged models and checkpoints of the unfinished runs.

    Args:
        plans: all runs of the experiment.
        weights_bytes: size of the model's weights; None if no model is known.
    """
    pending = [plan for plan in plans if not plan.is_finished()]
    if not pending:
        yield ok("disk", "all runs are finished")
        return
    directory = pending[0].run_dir
    existing = nearest_existing(directory)
    if weights_bytes is None:
        yield warning("disk", f"{existing}: what the runs need there is known once the checkpoint is here")
        return

    # Runs that share data and model share a base, which is made once.
    bases = {ExperimentFolder.of(plan.config).base(plan.config) for plan in pending}
    missing_bases = [base for base in bases if not base.exists()]
    needed_bytes = needed_disk_bytes(pending, weights_bytes) + weights_bytes * len(missing_bases)
    free_bytes = shutil.disk_usage(existing).free
    sentence = (
        f"{size_text(free_bytes)} free at {existing}; {counted(len(pending), 'run')}: about {size_text(needed_bytes)}"
    )
    problems = [*attempt("disk", lambda: check_disk(directory, needed_bytes=needed_bytes))]
    yield from problems or [ok("disk", sentence)]


def examine_cluster(run: RunConfig, num_gpus: int) -> Check[None]:
    """Check that one run fits into what the executor gives it, and that its strategy can divide it over its workers.

    Args:
        run: the run.
        num_gpus: GPUs of this machine.
    """
    yield from attempt("strategy", lambda: check_strategy(run))
    temporary = yield from attempt("temporary files", short_temporary_folder)
    if temporary not in (None, tempfile.gettempdir()):
        yield ok("temporary files", f"{tempfile.gettempdir()} is too long for sockets; a run uses {temporary}")
    if run.cluster.executor == "inline":
        problems = [*attempt("executor", lambda: InlineExecutor().check(run))]
        yield from problems or [ok("executor", "inline: one run after the other in one process, without Ray")]
        return

    address = cluster_address()
    if address is not None:
        problems = [*attempt("ray", lambda: check_answers(address))]
        sentence = f"{address} takes connections; whether a run fits there is known when it is joined"
        yield from problems or [warning("ray", sentence)]
        return
    nodes = local_nodes(num_gpus)
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
    """Check the tracking server or database as a run does. A database that does not exist yet is not made."""
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
    """Check that a database can be written, or made in the nearest folder that exists."""
    check_names_file(uri, path)
    existing = nearest_existing(path)
    if existing == path:
        is_writable = os.access(path, os.W_OK)
    else:
        is_writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    if not is_writable:
        raise ResourceError(f"{path}: the tracking database cannot be written; set tracking.uri")
    return True

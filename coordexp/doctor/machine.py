"""What this machine has: GPUs, memory, and room on the disk that a run writes to."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from coordexp.ablation.preparation import needed_disk_bytes
from coordexp.config.schema import ExperimentConfig
from coordexp.files import nearest_existing
from coordexp.findings import Check, attempt, ok, size_text, warning
from coordexp.runs.experiment import check_disk, check_experiment
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.lock import check_unlocked, check_writable
from coordexp.runs.plan import RunPlan

_PROCESS_BYTES = 2**30  # Python, torch and what a worker keeps beside the weights
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Machine:
    """The resources of this machine.

    Attributes:
        gpu_names: of each GPU.
        gpu_bytes: memory of each.
        ram_bytes: memory of the machine, or of the container we are in.
        num_cpus: that this process may use.
    """

    gpu_names: tuple[str, ...]
    gpu_bytes: tuple[int, ...]
    ram_bytes: int
    num_cpus: int

    @classmethod
    def here(cls) -> "Machine":
        """Return what this machine has."""
        gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return cls(
            gpu_names=tuple(gpu.name for gpu in gpus),
            gpu_bytes=tuple(gpu.total_memory for gpu in gpus),
            ram_bytes=_ram_bytes(),
            num_cpus=len(os.sched_getaffinity(0)),
        )

    def describe(self) -> str:
        """Return them in words."""
        gpus = ", ".join(
            f"{name} ({size / 2**30:.0f} GiB)" for name, size in zip(self.gpu_names, self.gpu_bytes, strict=True)
        )
        return f"{self.num_cpus} CPUs, {self.ram_bytes / 2**30:.0f} GiB of memory, {gpus or 'no GPU'}"


def examine_experiment(run: ExperimentConfig) -> Check[None]:
    """Check that the experiment's name is free or goes on, and that its directory can be written."""
    folder = ExperimentFolder.of(run)
    problems = [
        *attempt("experiment", lambda: check_experiment(run)),
        *attempt("runs_dir", lambda: check_writable(folder)),
        *attempt("experiment", lambda: check_unlocked(folder)),
    ]
    yield from problems
    if not problems:
        yield ok("runs_dir", f"{folder.path}: {'goes on there' if folder.record.is_file() else 'new'}, writable")


def examine_disk(plans: list[RunPlan], weights_bytes: int | None) -> Check[None]:
    """Check that the disk holds the bases, the merged models and the checkpoints of unfinished runs.

    Args:
        plans: of the experiment.
        weights_bytes: of the expanded base; None where no model is known.
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
    bases = {ExperimentFolder.of(plan.config).base(plan.config) for plan in pending}
    needed = needed_disk_bytes(pending, weights_bytes) + weights_bytes * sum(not base.exists() for base in bases)
    problems = [*attempt("disk", lambda: check_disk(directory, needed_bytes=needed))]
    yield from problems
    if not problems:
        free, runs = shutil.disk_usage(existing).free, "run" if len(pending) == 1 else "runs"
        yield ok("disk", f"{size_text(free)} free at {existing}; {len(pending)} {runs} need about {size_text(needed)}")


def examine_loading(run: ExperimentConfig, weight_bytes: int, machine: Machine) -> Check[None]:
    """Check that the workers of a run can read their weights, which pass through the machine's own memory."""
    workers = min(run.cluster.num_workers, len(machine.gpu_bytes))
    needed = workers * (weight_bytes + _PROCESS_BYTES)
    if needed > machine.ram_bytes:
        yield warning(
            "loading",
            f"{workers} workers here read {size_text(weight_bytes)} of weights each before the GPUs have them: about "
            f"{size_text(needed)}, but the machine has {size_text(machine.ram_bytes)}",
        )


def _ram_bytes() -> int:
    total = int(psutil.virtual_memory().total)
    try:
        limit = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total

"""Whether a run, seen from inside its own worker, may stand beside the others of its experiment.

The command that starts runs has compared what it could see: keys, code, data, the base. A worker adds what only it
knows: versions of packages and what torch and accelerate really compute with.
"""

import os
from collections.abc import Mapping
from dataclasses import replace

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch.backends import cuda, cudnn

from coordexp.config.identity.differences import WORKER, find_differences, shown_value
from coordexp.config.identity.fingerprint import Fingerprint, installed_packages, package_versions, read_fingerprint
from coordexp.config.schema import RunConfig
from coordexp.coord_tokens.offset_adapter import inner_model
from coordexp.errors import ComparisonError, CoordExpError
from coordexp.files import JsonValue, write_text
from coordexp.runs import ranks
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.runs.status import has_taken_step, read_status
from coordexp.train.setup.components import Components

_NAMED = 4
# What torch's libraries read by themselves, and no switch of torch shows.
_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "MKL_CBWR", "NCCL_ALGO", "NCCL_PROTO", "NVIDIA_TF32_OVERRIDE", "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
)  # fmt: skip


def confirm_comparable(config: RunConfig, parts: Components, accelerator: Accelerator) -> None:
    """Compare what this worker computes with to the experiment's other runs, and add it to ``fingerprint.json``.

    Every rank calls it, after its process was set up and before it trains, and all end if one does: by a
    ComparisonError if they differ from each other, or from the other runs outside ``ablation.factor``. A run that was
    started by itself, without a fingerprint, is compared with nothing. With ``ablation.allow_differences`` all is
    recorded and nothing refused.
    """
    readings = ranks.gather_to_first([read_worker(parts, accelerator)])
    refusal: Exception | None = None
    if ranks.rank() == 0 and RunFolder.of(config).fingerprint.is_file():
        try:
            _confirm(config, [reading for (reading,) in readings])
        except (CoordExpError, OSError) as error:  # the other ranks wait for what becomes of this
            refusal = error
    (sentence,) = ranks.from_first(["" if refusal is None else str(refusal)])
    if refusal is not None:
        raise refusal
    if sentence:
        raise ComparisonError(sentence)


def read_worker(parts: Components, accelerator: Accelerator) -> dict[str, JsonValue]:
    """Return what a run's numbers follow from and only its own process knows, by names as ``threads``."""
    kind = accelerator.distributed_type
    # How many processes there are may change from one start to the next.
    is_replicated = kind in (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
    own_autocast = "_original_forward" in vars(parts.model)  # zero.autocast_forward
    found: dict[str, JsonValue] = {
        "model.dtype": str(inner_model(parts.model).dtype).removeprefix("torch."),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "matmul.reduced_bfloat16_sums": bool(cuda.matmul.allow_bf16_reduced_precision_reduction),
        "cudnn.allow_tf32": bool(cudnn.allow_tf32),
        "cudnn.benchmark": bool(cudnn.benchmark),
        "precision.autocast": "bf16" if own_autocast else str(accelerator.mixed_precision),
        "precision.strategy": "ddp" if is_replicated else kind.value.lower(),
        "device": "cuda" if torch.cuda.is_available() else "cpu",
    }
    if not torch.cuda.is_available():  # a GPU's numbers do not depend on them
        found["threads"] = torch.get_num_threads()
    found |= {f"environment.{name}": os.environ[name] for name in _VARIABLES if name in os.environ}
    return found | {f"packages.{name}": version for name, version in package_versions().items()}


def _confirm(config: RunConfig, readings: list[dict[str, JsonValue]]) -> None:
    folder = RunFolder.of(config)
    stored = read_fingerprint(folder.fingerprint)
    # Differs between machines that are equally good, and is only shown.
    machine = {"cpu": torch.backends.cpu.get_cpu_capability(), "torch_threads": str(torch.get_num_threads())}
    if torch.cuda.is_available():
        machine |= {"gpu": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda), "cudnn": str(cudnn.version())}
    machine |= {"installed_packages": installed_packages()}
    current = replace(stored, worker=readings[0], machine=machine)
    if config.ablation.allow_differences:
        write_text(folder.fingerprint, current.to_json() + "\n")
        return
    for rank, reading in enumerate(readings[1:], start=1):
        _check({"rank 0": current}, f"rank {rank}", replace(stored, worker=reading), config)
    write_text(folder.fingerprint, current.to_json() + "\n")
    try:  # behind the writing: of two runs that begin at the same time, one at least sees the other
        _check(_others(config, stored), folder.name, current, config)
    except ComparisonError:
        write_text(folder.fingerprint, stored.to_json() + "\n")
        raise


def _others(config: RunConfig, stored: Fingerprint) -> dict[str, Fingerprint]:
    """Return the fingerprints that workers have completed: of the other runs, and of this one before it went on.

    A run that ended before its first step has no numbers to stand beside. One that is running may have got no further
    yet, and counts: runs that begin at one moment must see each other.
    """
    own = RunFolder.of(config)
    found = {f"{own.name} (before)": stored} if has_taken_step(own.path) else {}
    for run in ExperimentFolder.of(config).begun_like(own.name):
        counts = read_status(run.path).state == "running" or has_taken_step(run.path)
        if run.name != own.name and counts and run.fingerprint.is_file():
            found[run.name] = read_fingerprint(run.fingerprint)
    return {name: item for name, item in found.items() if item.worker}


def _check(others: Mapping[str, Fingerprint], name: str, own: Fingerprint, config: RunConfig) -> None:
    """Compare what a worker found with what others have found; the rest was compared by the command."""
    found = [
        item
        for item in find_differences({**others, name: own}, config.ablation.factor)
        if item.other_run == name and item.key.startswith(WORKER)
    ]
    if not found:
        return
    shown = "; ".join(
        f"{item.key.removeprefix(WORKER)} is {shown_value(item.other_value)} here and {shown_value(item.value)} there"
        for item in found[:_NAMED]
    )
    more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    threads = any(item.key == f"{WORKER}threads" for item in found)
    hint = " (training.num_threads sets the threads)" if threads else ""
    raise ComparisonError(
        f"{name} would not be comparable with {found[0].run}: {shown}{more}{hint}; make it equal and give the "
        "same command again, or ablation.allow_differences: true"
    )

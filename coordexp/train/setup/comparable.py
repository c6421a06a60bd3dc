"""Whether a run, seen from inside its own worker, can be compared with the others of its experiment.

The command that starts runs has compared what it could see: keys, code, data, the base. A worker adds what only it
knows: versions of packages, and what torch and accelerate really compute with.
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

_NUM_SHOWN = 4  # differences that an error lists
# Torch's libraries read these by themselves, and no switch of torch shows their effect.
_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "MKL_CBWR", "NCCL_ALGO", "NCCL_PROTO", "NVIDIA_TF32_OVERRIDE", "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
)  # fmt: skip


def confirm_comparable(config: RunConfig, parts: Components, accelerator: Accelerator) -> None:
    """Compare what this worker computes with to the experiment's other runs, and add it to ``fingerprint.json``.

    Every rank calls it, after its process was set up and before it trains. If one rank ends, all do. A run that was
    started by itself, without a fingerprint, is compared with nothing. With ``ablation.allow_differences`` everything
    is recorded and nothing is refused.

    Raises:
        ComparisonError: if ranks differ from each other, or this run from another one outside ``ablation.factor``.
    """
    values_per_rank = ranks.gather_to_first([read_worker(parts, accelerator)])
    refusal: Exception | None = None
    if ranks.rank() == 0 and RunFolder.of(config).fingerprint.is_file():
        try:
            _confirm(config, [values for (values,) in values_per_rank])
        except (CoordExpError, OSError) as error:
            refusal = error  # raised below: the other ranks wait to hear of it first
    (sentence,) = ranks.from_first(["" if refusal is None else str(refusal)])
    if refusal is not None:
        raise refusal
    if sentence:
        raise ComparisonError(sentence)


def read_worker(parts: Components, accelerator: Accelerator) -> dict[str, JsonValue]:
    """Return what a run's numbers follow from and only its own process knows, by names such as ``threads``."""
    kind = accelerator.distributed_type
    # The number of processes may change when a run is resumed, so one process and several are the same strategy here.
    is_replicated = kind in (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
    has_own_autocast = "_original_forward" in vars(parts.model)  # zero.autocast_forward sets it
    values: dict[str, JsonValue] = {
        "model.dtype": str(inner_model(parts.model).dtype).removeprefix("torch."),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "matmul.reduced_bfloat16_sums": bool(cuda.matmul.allow_bf16_reduced_precision_reduction),
        "cudnn.allow_tf32": bool(cudnn.allow_tf32),
        "cudnn.benchmark": bool(cudnn.benchmark),
        "precision.autocast": "bf16" if has_own_autocast else str(accelerator.mixed_precision),
        "precision.strategy": "ddp" if is_replicated else kind.value.lower(),
        "device": "cuda" if torch.cuda.is_available() else "cpu",
    }
    if not torch.cuda.is_available():  # numbers of a GPU do not depend on the threads
        values["threads"] = torch.get_num_threads()
    values |= {f"environment.{name}": os.environ[name] for name in _VARIABLES if name in os.environ}
    return values | {f"packages.{name}": version for name, version in package_versions().items()}


def _confirm(config: RunConfig, values_per_rank: list[dict[str, JsonValue]]) -> None:
    """Compare the ranks with each other and the run with the others; on rank 0."""
    folder = RunFolder.of(config)
    stored = read_fingerprint(folder.fingerprint)
    completed = replace(stored, worker=values_per_rank[0], machine=_machine())
    if config.ablation.allow_differences:
        write_text(folder.fingerprint, completed.to_json() + "\n")
        return
    for rank, values in enumerate(values_per_rank[1:], start=1):
        _check({"rank 0": completed}, f"rank {rank}", replace(stored, worker=values), config)

    # Written before it is compared: if two runs begin at the same time, at least one of them sees the other.
    write_text(folder.fingerprint, completed.to_json() + "\n")
    try:
        _check(_others(config, stored), folder.name, completed, config)
    except ComparisonError:
        write_text(folder.fingerprint, stored.to_json() + "\n")
        raise


def _machine() -> dict[str, str]:
    """Return what may differ between machines whose numbers are equally good; it is shown, and never refused."""
    machine = {"cpu": torch.backends.cpu.get_cpu_capability(), "torch_threads": str(torch.get_num_threads())}
    if torch.cuda.is_available():
        machine |= {"gpu": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda), "cudnn": str(cudnn.version())}
    machine["installed_packages"] = installed_packages()
    return machine


def _others(config: RunConfig, stored: Fingerprint) -> dict[str, Fingerprint]:
    """Return the fingerprints that workers have completed: of the other runs, and of this one before it was resumed.

    A run that ended before its first step has no numbers to compare. A running one counts even before its first step:
    runs that begin at the same moment must see each other.
    """
    this_run = RunFolder.of(config)
    fingerprints: dict[str, Fingerprint] = {}
    if has_taken_step(this_run.path):
        fingerprints[f"{this_run.name} (before)"] = stored
    for run in ExperimentFolder.of(config).begun_like(this_run.name):
        counts = read_status(run.path).state == "running" or has_taken_step(run.path)
        if run.name != this_run.name and counts and run.fingerprint.is_file():
            fingerprints[run.name] = read_fingerprint(run.fingerprint)
    return {name: fingerprint for name, fingerprint in fingerprints.items() if fingerprint.worker}


def _check(others: Mapping[str, Fingerprint], name: str, fingerprint: Fingerprint, config: RunConfig) -> None:
    """Raise a ComparisonError if a worker's values differ from those of others. The command compared the rest."""
    differences = [
        difference
        for difference in find_differences({**others, name: fingerprint}, config.ablation.factor)
        if difference.other_run == name and difference.key.startswith(WORKER)
    ]
    if not differences:
        return
    sentences: list[str] = []
    for difference in differences[:_NUM_SHOWN]:
        this_value = shown_value(difference.other_value)
        that_value = shown_value(difference.value)
        sentences.append(f"{difference.key.removeprefix(WORKER)} is {this_value} here and {that_value} there")
    if len(differences) > _NUM_SHOWN:
        sentences.append(f"and {len(differences) - _NUM_SHOWN} more")
    has_threads = any(difference.key == f"{WORKER}threads" for difference in differences)
    hint = " (training.num_threads sets the threads)" if has_threads else ""
    raise ComparisonError(
        f"{name} would not be comparable with {differences[0].run}: {'; '.join(sentences)}{hint}; make it equal and "
        "give the same command again, or ablation.allow_differences: true"
    )

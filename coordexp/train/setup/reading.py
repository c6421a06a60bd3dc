"""What this process computes with, read back from inside it: what an environment may change and no key says.

The switches are read from torch, after everything that sets one has set it; the variables are those that torch's
libraries read by themselves and tell nobody of.
"""

import functools
import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch.backends import cuda, cudnn, mkldnn

from coordexp.config.identity.libraries import libraries
from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.offset_adapter import inner_model
from coordexp.files import JsonValue, sha256_of_text
from coordexp.train.setup.components import Components

# Read by cuBLAS, MKL, oneDNN, OpenBLAS, numpy, NCCL and OpenMP themselves. Threads are not among them: torch says how
# many it has.
_VARIABLES = (
    "ATEN_CPU_CAPABILITY", "CUBLAS_WORKSPACE_CONFIG", "DNNL_DEFAULT_FPMATH_MODE", "DNNL_MAX_CPU_ISA",
    "MKL_CBWR", "MKL_DYNAMIC", "MKL_ENABLE_INSTRUCTIONS", "MKL_NUM_THREADS", "NCCL_ALGO", "NCCL_PROTO",
    "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES", "NVIDIA_TF32_OVERRIDE", "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA", "OMP_DYNAMIC", "OPENBLAS_CORETYPE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
)  # fmt: skip
# numba has a hundred: how it compiles the loops of AP, and where compiled ones lie. Threads change no number.
_NUMBA, _NUMBA_THREADS, _NUMBA_FILE = "NUMBA_", "NUMBA_NUM_THREADS", ".numba_config.yaml"
_OF_NO_INFLUENCE = ("_name_or_path", "transformers_version")  # of a model's configuration


def read_worker(config: ExperimentConfig, parts: Components, accelerator: Accelerator) -> dict[str, JsonValue]:
    """Return what a run's numbers follow from and only its own process knows, by names as ``threads``.

    Args:
        config: of the run; its process has been set up.
        parts: of the run, before they train.
        accelerator: of the trainer.
    """
    on_gpu = torch.cuda.is_available()
    found: dict[str, JsonValue] = {"device": "cuda" if on_gpu else "cpu"}
    if not on_gpu:  # a GPU's numbers do not depend on them
        found["threads"] = torch.get_num_threads()
    found |= read_switches() | _settings(parts) | _precision(parts, accelerator)
    found |= {f"environment.{name}": value for name, value in read_variables(os.environ).items()}
    used = libraries(
        deepspeed=config.cluster.strategy != "ddp",
        flash_attention=config.model.attn_implementation == "flash_attention_2",
    )
    return found | {f"libraries.{name}": value for name, value in used.items()}


def read_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that libraries read by themselves, and a hash of the file that numba reads its own from."""
    found = {
        name: value
        for name, value in environment.items()
        if name in _VARIABLES or (name.startswith(_NUMBA) and name != _NUMBA_THREADS)
    }
    if (file := Path(_NUMBA_FILE)).is_file():
        found[_NUMBA_FILE] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    return found


def read_switches() -> dict[str, JsonValue]:
    """Return torch's switches of precision and of algorithms."""
    matmul = cuda.matmul
    return {
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "matmul.reduced_bfloat16_sums": bool(matmul.allow_bf16_reduced_precision_reduction),
        "matmul.reduced_float16_sums": bool(matmul.allow_fp16_reduced_precision_reduction),
        "cudnn.enabled": bool(cudnn.enabled),
        "cudnn.allow_tf32": bool(cudnn.allow_tf32),
        "cudnn.benchmark": bool(cudnn.benchmark),
        "cudnn.deterministic": bool(cudnn.deterministic),
        "mkldnn.enabled": bool(mkldnn.enabled),
        "attention.kernels": [
            name
            for name, is_on in (
                ("flash", cuda.flash_sdp_enabled()),
                ("memory_efficient", cuda.mem_efficient_sdp_enabled()),
                ("cudnn", cuda.cudnn_sdp_enabled()),
                ("math", cuda.math_sdp_enabled()),
            )
            if is_on
        ],
    }


def _precision(parts: Components, accelerator: Accelerator) -> dict[str, JsonValue]:
    """Return what accelerate made of the precision and the strategy that were asked for."""
    kind = accelerator.distributed_type
    # How many processes there are may change from one start to the next, see strategy.is_elastic.
    is_replicated = kind in (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
    own_autocast = "_original_forward" in vars(parts.model)  # zero.autocast_forward
    return {
        "precision.autocast": "bf16" if own_autocast else str(accelerator.mixed_precision),
        "precision.strategy": "ddp" if is_replicated else kind.value.lower(),
    }


def read_machine() -> dict[str, str]:
    """Return what is around a process and differs between machines that are equally good, to be shown only."""
    found = {"cpu": torch.backends.cpu.get_cpu_capability(), "torch_threads": str(torch.get_num_threads())}
    if torch.cuda.is_available():
        found |= {"gpu": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda), "cudnn": str(cudnn.version())}
    loaded = {name.partition(".")[0] for name in sys.modules}
    versions: dict[str, str] = {}
    for package, modules in _installed():
        if not loaded.isdisjoint(modules):
            name, version = _name_and_version(package)
            versions.setdefault(name, version)  # the first on the path is the one that is imported
    return found | {f"imported.{name}": versions[name] for name in sorted(versions)}


@functools.cache
def _installed() -> list[tuple[importlib.metadata.Distribution, set[str]]]:
    """Return each package with the modules that it installs; the runs of a process look at them once."""
    return [(package, _modules_of(package)) for package in importlib.metadata.distributions()]


@functools.cache
def _name_and_version(package: importlib.metadata.Distribution) -> tuple[str, str]:
    found = package.metadata  # parsed anew each time it is asked for
    return found["Name"], found["Version"]


def _modules_of(package: importlib.metadata.Distribution) -> set[str]:
    """Return the modules that a package installs, by its own list; ``packages_distributions`` looks at every file."""
    declared = package.read_text("top_level.txt")
    if declared and (names := set(declared.split())):
        return names
    files = (line.partition(",")[0] for line in (package.read_text("RECORD") or "").splitlines())
    return {name.partition("/")[0].removesuffix(".py") for name in files if name.endswith(".py")}


def _settings(parts: Components) -> dict[str, JsonValue]:
    """Return the settings of model and images as they came out of their files and their classes."""
    config, spec = inner_model(parts.model).config, parts.encoding.image_spec
    settings = cast("Mapping[str, JsonValue]", json.loads(config.to_json_string(use_diff=False)))
    settings = {name: value for name, value in settings.items() if name not in _OF_NO_INFLUENCE}
    return {
        "model.attention": str(config._attn_implementation),  # pyright: ignore[reportPrivateUsage]
        "model.dtype": str(inner_model(parts.model).dtype).removeprefix("torch."),
        "model.settings": sha256_of_text(json.dumps(settings, sort_keys=True))[:16],
        "processor.image_mean": list(spec.mean),
        "processor.image_std": list(spec.std),
        "processor.rescale_factor": spec.rescale_factor,
        "processor.resample": spec.resample,
        "processor.min_pixels": spec.min_pixels,
        "processor.max_pixels": spec.max_pixels,
    }

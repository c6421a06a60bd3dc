"""DeepSpeed in a worker: nothing compiled on a CPU, and trained weights in float32."""

import importlib
import logging
import os
import warnings
from types import MethodType

import torch
from accelerate.utils import convert_outputs_to_fp32
from torch import nn


def set_deepspeed_device() -> None:
    """Tell DeepSpeed that there is no GPU: it would search for one, and warn. Accelerate imports it under DDP too."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def prepare_deepspeed() -> None:
    """Import DeepSpeed, and keep it from compiling on a CPU, from loading unsafe checkpoints, and from talking."""
    set_deepspeed_device()
    deepspeed = importlib.import_module("deepspeed")
    if not torch.cuda.is_available():
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiling it on a CPU takes a minute
    # Its checkpoint engine would let torch load any pickle, which may run any code. Plain values and DeepSpeed's own
    # four classes are enough.
    loss_scaler = importlib.import_module("deepspeed.runtime.fp16.loss_scaler")
    fragment = importlib.import_module("deepspeed.utils.tensor_fragment")
    config = importlib.import_module("deepspeed.runtime.zero.config")
    torch.serialization.add_safe_globals([
        loss_scaler.LossScaler, loss_scaler.DynamicLossScaler, fragment.fragment_address, config.ZeroStageEnum,
    ])  # fmt: skip
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    for name in ("DeepSpeed", "accelerate.accelerator"):  # accelerate says that accumulation is left to DeepSpeed
        logging.getLogger(name).setLevel(logging.ERROR)
    # DeepSpeed calls it at every gather.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)


def autocast_forward(model: nn.Module, *, device_type: str) -> None:
    """Run a model's forward in bfloat16 autocast with outputs in float32, as accelerate does under DDP.

    DeepSpeed's own bf16 would cast the trained adapters themselves, and save them in bfloat16.
    ``accelerator.unwrap_model(..., keep_fp32_wrapper=False)`` undoes it.
    """
    forward = model.forward
    autocast = torch.autocast(device_type=device_type, dtype=torch.bfloat16)
    vars(model)["_original_forward"] = forward  # accelerate restores the forward that it finds here
    inner = autocast(forward.__func__)  # pyright: ignore[reportFunctionMemberAccess]
    model.forward = MethodType(convert_outputs_to_fp32(inner), model)

"""DeepSpeed in a worker: nothing compiled on a CPU, trained weights in float32, and whole weights between steps.

ZeRO-3 keeps a share of each parameter and gathers it while its module runs. What reads parameters elsewhere
(the split head, evaluation, merging) asks for them here.
"""

import contextlib
import importlib
import logging
import os
import warnings
from collections.abc import Generator, Iterable
from types import MethodType
from typing import Protocol, cast

import torch
from accelerate.utils import convert_outputs_to_fp32
from torch import nn
from transformers.integrations.deepspeed import unset_hf_deepspeed_config


class _Handle(Protocol):
    def remove(self) -> None: ...


class _Offload(Protocol):
    """What gathers and releases weights around each module's forward: DeepSpeedZeRoOffload."""

    forward_hooks: list[_Handle]
    backward_hooks: list[_Handle]
    persistent_parameters: list["_Partitioned"]

    def destroy(self) -> None: ...

    def setup_zero_stage3_hooks(self) -> None: ...


class _Partitioned(Protocol):
    """A parameter of ZeRO-3."""

    ds_active_sub_modules: set[int]
    ds_persist: bool
    is_external_param: bool

    def all_gather(self, *, param_list: list["_Partitioned"]) -> None: ...


def set_deepspeed_device() -> None:
    """Spare a process without a GPU DeepSpeed's search and its warning; accelerate imports it under DDP too."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def prepare_deepspeed() -> None:
    """Import DeepSpeed for the device that is here; by itself it compiles an operation on a CPU for a minute."""
    set_deepspeed_device()
    deepspeed = importlib.import_module("deepspeed")
    if not torch.cuda.is_available():
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    _read_no_foreign_pickles()
    # Its own messages, accelerate's that the steps of accumulation are DeepSpeed's, and torch's at every gather.
    for name in ("DeepSpeed", "accelerate.accelerator"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)


def autocast_forward(model: nn.Module, *, device_type: str) -> None:
    """Run a model's forward in bfloat16 autocast with outputs in float32, as accelerate does under DDP.

    DeepSpeed's own bf16 would cast the trained adapters themselves, and save them so. Undone by
    ``accelerator.unwrap_model(..., keep_fp32_wrapper=False)``.
    """
    forward = model.forward
    autocast = torch.autocast(device_type=device_type, dtype=torch.bfloat16)
    vars(model)["_original_forward"] = forward  # where accelerate looks for it
    inner = autocast(forward.__func__)  # pyright: ignore[reportFunctionMemberAccess]
    model.forward = MethodType(convert_outputs_to_fp32(inner), model)


def _read_no_foreign_pickles() -> None:
    """Let torch load plain values and DeepSpeed's own four classes: its checkpoint engine asks for every pickle."""
    loss_scaler = importlib.import_module("deepspeed.runtime.fp16.loss_scaler")
    fragment = importlib.import_module("deepspeed.utils.tensor_fragment")
    config = importlib.import_module("deepspeed.runtime.zero.config")
    torch.serialization.add_safe_globals([
        loss_scaler.LossScaler, loss_scaler.DynamicLossScaler, fragment.fragment_address, config.ZeroStageEnum,
    ])  # fmt: skip
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"


@contextlib.contextmanager
def whole_weights(engine: nn.Module) -> Generator[None]:
    """Make all weights whole inside the block, so that each rank may run the model on its own.

    Every rank must enter it, between optimizer steps. Does nothing unless the engine is of ZeRO-3.
    """
    offload = _offload(engine)
    if offload is None:
        yield
        return
    import deepspeed

    parameters = list(engine.parameters())
    _detach(offload, parameters)  # its hooks would hand each module's weights back after its forward
    with deepspeed.zero.GatheredParameters(parameters):
        yield
    # Not after an error: it may be this rank's alone, and the others would not answer.
    offload.setup_zero_stage3_hooks()
    _gather(offload.persistent_parameters)  # the block's end has shared these out too


def keep_whole(engine: nn.Module, parameters: Iterable[nn.Parameter]) -> None:
    """Keep parameters whole on every rank while training, for what reads them outside their module's forward.

    The loss does so, forwards and backwards, with the output table and the coord offsets. To be called on every
    rank before the first step. Does nothing unless the engine is of ZeRO-3.
    """
    offload = _offload(engine)
    if offload is None:
        return
    kept = offload.persistent_parameters
    for parameter in cast("Iterable[_Partitioned]", parameters):
        parameter.is_external_param = True  # the first pass, which is recorded, releases the others
        if not parameter.ds_persist:
            parameter.ds_persist = True
            kept.append(parameter)
    _gather(kept)


def make_whole(engine: nn.Module) -> None:
    """Make all weights whole for good, after training. Does nothing unless the engine is of ZeRO-3."""
    offload = _offload(engine)
    if offload is None:
        return
    parameters = list(engine.parameters())
    _detach(offload, parameters)
    _gather(cast("list[_Partitioned]", parameters))
    for parameter in parameters:
        parameter.data = parameter.data.clone()  # not a view of what the engine lets go of


def forget_deepspeed() -> None:
    """Let transformers load and generate as without DeepSpeed; the engine, once built, needs no help of it."""
    unset_hf_deepspeed_config()


def _offload(engine: nn.Module) -> _Offload | None:
    optimizer = vars(engine).get("optimizer")
    return None if optimizer is None else vars(optimizer).get("parameter_offload")


def _gather(parameters: list[_Partitioned]) -> None:
    if parameters:
        parameters[0].all_gather(param_list=parameters)


def _detach(offload: _Offload, parameters: list[nn.Parameter]) -> None:
    for parameter in cast("list[_Partitioned]", parameters):
        parameter.ds_active_sub_modules.clear()
    offload.destroy()
    offload.forward_hooks.clear()
    offload.backward_hooks.clear()

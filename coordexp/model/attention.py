"""Check whether a way to compute attention can work, before anything is loaded or prepared."""

import importlib.util
from typing import Literal

import torch

from coordexp.coord_tokens.offset_adapter import DTypeName
from coordexp.errors import ConfigError, ResourceError

AttnImplementation = Literal["sdpa", "eager", "flash_attention_2"]

_FLASH = "flash_attention_2"
_PACKAGE = "flash_attn"


def check_attention(implementation: AttnImplementation, *, dtype: DTypeName = "auto", elsewhere: bool = False) -> None:
    """Refuse FlashAttention where it cannot run.

    transformers itself would look for a replacement on the hub, and else stop long after the data was prepared.

    Args:
        implementation: how attention is to be computed.
        dtype: of the weights; ``auto`` for the checkpoint's.
        elsewhere: the GPUs are on other machines, such as a cluster's workers; only this environment's packages
            are looked at.

    Raises:
        ConfigError: if it cannot compute in this dtype.
        ResourceError: if its package or a CUDA device is not there.
    """
    if implementation != _FLASH:
        return
    if dtype == "float32":
        raise ConfigError(
            "model.attn_implementation: flash_attention_2 computes in half precision only, but model.dtype is float32; "
            "set model.dtype: bfloat16, or model.attn_implementation: sdpa"
        )
    if importlib.util.find_spec(_PACKAGE) is None:
        raise ResourceError(
            "model.attn_implementation: flash_attention_2 needs the package flash-attn, which is not installed; "
            "install it, or set model.attn_implementation: sdpa"
        )
    if not elsewhere and not torch.cuda.is_available():
        raise ResourceError(
            "model.attn_implementation: flash_attention_2 needs a CUDA device, and there is none here; "
            "set model.attn_implementation: sdpa"
        )

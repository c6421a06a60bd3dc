"""What trains: LoRA or DoRA on linear layers (with the coord offsets), or everything."""

import re
from typing import Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import PreTrainedModel

from coordexp.coord_tokens.offset_adapter import ADAPTER_NAME, active_offset, reattach_coord_offset_hooks
from coordexp.errors import ConfigError
from coordexp.model.checkpoint.stored_model import quiet
from coordexp.model.families import family_of

Tuning = Literal["lora", "dora", "full"]

_LANGUAGE = "model.language_model"
_VISION = "model.visual"


def apply_tuning(
    model: PreTrainedModel,
    *,
    tuning: Tuning,
    rank: int,
    alpha: float,
    dropout: float,
    vision: bool,
    seed: int,
) -> PreTrainedModel | PeftModel:
    """Prepare a base for training, with its coord-offset adapter if there is to be one.

    ``lora`` and ``dora`` freeze the base and add ``alpha / rank * B A`` to every linear layer but the head, in a
    PeftModel; ``full`` trains ``model`` itself, routed experts excepted. Without ``vision`` the vision tower and the
    mergers stay frozen, without adapters. ``seed`` is that of the adapters' initial weights; the global random state is
    left alone.

    Raises:
        ConfigError: if ``full`` meets a coord-offset adapter, which needs frozen tables.
    """
    if tuning == "full":
        if active_offset(model) is not None:
            raise ConfigError("training.tuning: full trains the tables; switch off custom.coord_offset, or use lora")
        frozen = family_of(model.config.model_type, where="the model").frozen
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(frozen.isdisjoint(name.split(".")))
        model.get_submodule(_VISION).requires_grad_(vision)
        return model
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=alpha,  # pyright: ignore[reportArgumentType] - an int by its annotation, a factor in use
        lora_dropout=dropout,
        use_dora=tuning == "dora",
        target_modules=linear_layers(model, vision=vision),
        modules_to_save=None if active_offset(model) is None else [ADAPTER_NAME],
    )
    cuda = [model.device] if model.device.type == "cuda" else []
    with quiet(), torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        wrapped = get_peft_model(model, config)
    reattach_coord_offset_hooks(wrapped)
    return wrapped


def linear_layers(model: PreTrainedModel, *, vision: bool) -> str:
    """Return the pattern, as PEFT matches it, of the linear layers to adapt.

    Whole names with the layer numbers left open: short in ``adapter_config.json``, and it cannot
    catch a layer of another kind by its last name (the patch convolution is a ``proj`` too).
    """
    roots = (f"{_LANGUAGE}.", f"{_VISION}.") if vision else (f"{_LANGUAGE}.",)
    unadapted = family_of(model.config.model_type, where="the model").unadapted
    chosen = {
        _any_number(name)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.startswith(roots) and name.rpartition(".")[2] not in unadapted
    }
    return f"({'|'.join(sorted(chosen))})"


def _any_number(name: str) -> str:
    *parents, own = name.split(".")  # a number at the end tells a linear layer from what stands beside it in a sequence
    return r"\.".join([*(r"\d+" if part.isdigit() else re.escape(part) for part in parents), re.escape(own)])

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
    """Prepare a base for training. If it is to have coord offsets, install them before.

    Args:
        model: the base.
        tuning: ``lora`` and ``dora`` freeze the base and add ``alpha / rank * B A`` to every linear layer except the
            head, in a PeftModel; ``full`` trains the model itself, except routed experts.
        rank: of ``B A``.
        alpha: see ``tuning``.
        dropout: before ``A``.
        vision: whether the vision tower and the mergers train too.
        seed: of the initial weights of adapters; the global random state does not change.

    Returns:
        A PeftModel, or under ``full`` the model itself.

    Raises:
        ConfigError: if ``full`` meets a coord-offset adapter, which needs frozen tables.
    """
    if tuning == "full":
        if active_offset(model) is not None:
            raise ConfigError("training.tuning: full trains the tables; switch off custom.coord_offset, or use lora")
        frozen = family_of(model.config.model_type, where="the model").frozen
        for name, parameter in model.named_parameters():
            module_names = name.split(".")
            parameter.requires_grad_(frozen.isdisjoint(module_names))
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

    The pattern has whole names with open layer numbers. So it is short in ``adapter_config.json``, and does not match a
    layer of another kind that has the same last name: the patch convolution is a ``proj`` too.
    """
    roots = (f"{_LANGUAGE}.", f"{_VISION}.") if vision else (f"{_LANGUAGE}.",)
    unadapted = family_of(model.config.model_type, where="the model").unadapted
    patterns: set[str] = set()
    for name, module in model.named_modules():
        last_name = name.rpartition(".")[2]
        if isinstance(module, nn.Linear) and name.startswith(roots) and last_name not in unadapted:
            patterns.add(_any_layer(name))
    return f"({'|'.join(sorted(patterns))})"


def _any_layer(name: str) -> str:
    """Return the pattern of a module's name with any layer number.

    A number at the end stays: in a ``nn.Sequential`` it tells the linear layer from its neighbours.
    """
    *parents, last_name = name.split(".")
    words = [r"\d+" if parent.isdigit() else re.escape(parent) for parent in parents]
    return r"\.".join([*words, re.escape(last_name)])

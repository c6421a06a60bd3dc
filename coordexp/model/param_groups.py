"""Optimizer groups: vision, aligner, language model and coord offsets, each with its learning rate."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from torch import nn

from coordexp.coord_tokens.offset_adapter import ADAPTER_NAME, active_offset
from coordexp.errors import ConfigError

OptimizerName = Literal["multimodal", "multimodal_coord_offset"]
Part = Literal["vision", "aligner", "llm", "coord_embed_offset", "coord_head_offset"]

_VISION = ".visual."
_TIED_NOTE = "one table for embedding and head (tie_head); head_lr has no effect"
_ALIGNER = (".visual.merger.", ".visual.deepstack_merger_list.")


class ParamGroup(TypedDict):
    """One group as ``torch.optim`` takes it, with its name and a note for the printed table."""

    name: str
    params: list[nn.Parameter]
    lr: float
    weight_decay: float
    note: str


@dataclass(frozen=True)
class GroupRow:
    """One line of the table printed at start."""

    name: str
    num_tensors: int
    num_parameters: int
    learning_rate: float
    weight_decay: float
    note: str


def build_param_groups(
    model: nn.Module,
    *,
    optimizer: OptimizerName,
    learning_rate: float,
    vit_lr: float | None = None,
    aligner_lr: float | None = None,
    weight_decay: float = 0.0,
    embed_lr: float | None = None,
    head_lr: float | None = None,
    offset_weight_decay: float = 0.0,
) -> list[ParamGroup]:
    """Split the trainable parameters into groups in a fixed order. Each parameter is in exactly one group.

    Norms, biases and DoRA magnitudes (everything of one dimension) are not decayed. They form groups of their own,
    ``*_no_decay``.

    Args:
        model: in any wrappers.
        optimizer: the kind of grouping.
        learning_rate: of the language model, and of every part whose rate is None.
        vit_lr: of the vision tower.
        aligner_lr: of the mergers between vision tower and language model.
        weight_decay: of everything but the offsets.
        embed_lr: of the offsets of the embedding; with ``tie_head`` of the one table.
        head_lr: of the offsets of the head. With ``tie_head`` it has no effect, which the group's note says.
        offset_weight_decay: of all offsets.

    Raises:
        ConfigError: if a rate was given for a part that does not exist or is frozen, if the optimizer has no group for
            the offsets, or if nothing is trainable.
    """
    offset = active_offset(model)
    if optimizer == "multimodal" and offset is not None:
        raise ConfigError(
            "training.optimizer: multimodal has no group for the coord offsets, so that their learning rates "
            "would have no effect; use training.optimizer: multimodal_coord_offset"
        )
    parameters: dict[Part, list[nn.Parameter]] = {module: [] for module in get_args(Part)}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameters[part_of(name)].append(parameter)
    if not any(parameters.values()):
        raise ConfigError("training.tuning: the model has no trainable parameter")
    optional_rates: list[tuple[str, float | None, Part]] = [
        ("vit_lr", vit_lr, "vision"),
        ("aligner_lr", aligner_lr, "aligner"),
    ]
    for key, rate, module in optional_rates:
        if rate is not None and not parameters[module]:
            raise ConfigError(
                f"training.{key} is {rate}, but no parameter of the {module} trains; leave it out, or set "
                "training.lora.vision: true"
            )

    has_one_offset_table = offset is not None and offset.tie_head
    settings: dict[Part, tuple[float | None, float]] = {
        "vision": (vit_lr, weight_decay),
        "aligner": (aligner_lr, weight_decay),
        "llm": (learning_rate, weight_decay),
        "coord_embed_offset": (embed_lr, offset_weight_decay),
        "coord_head_offset": (head_lr, offset_weight_decay),
    }
    groups: list[ParamGroup] = []
    for module, (rate, decay) in settings.items():
        note = _TIED_NOTE if module == "coord_embed_offset" and has_one_offset_table else ""
        lr = learning_rate if rate is None else rate
        decayed = [parameter for parameter in parameters[module] if parameter.ndim > 1]
        not_decayed = [parameter for parameter in parameters[module] if parameter.ndim <= 1]
        groups += [
            ParamGroup(name=module, params=decayed, lr=lr, weight_decay=decay, note=note),
            ParamGroup(name=f"{module}_no_decay", params=not_decayed, lr=lr, weight_decay=0.0, note=note),
        ]
    return [group for group in groups if group["params"]]


def describe(groups: Iterable[ParamGroup]) -> list[GroupRow]:
    """Return the rows of the table that is printed at start."""
    return [
        GroupRow(
            name=group["name"],
            num_tensors=len(group["params"]),
            num_parameters=sum(parameter.numel() for parameter in group["params"]),
            learning_rate=group["lr"],
            weight_decay=group["weight_decay"],
            note=group["note"],
        )
        for group in groups
    ]


def part_of(name: str) -> Part:
    """Return the part of the model that a parameter belongs to. ``name`` may have the prefix of any wrapper."""
    dotted = f".{name}."
    if f".{ADAPTER_NAME}." in dotted:
        return "coord_head_offset" if dotted.endswith(".head_offset.") else "coord_embed_offset"
    if any(merger in dotted for merger in _ALIGNER):  # asked first: the mergers are inside the vision tower
        return "aligner"
    return "vision" if _VISION in dotted else "llm"

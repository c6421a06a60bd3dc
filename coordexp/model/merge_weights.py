"""What an adapter does to each weight of its base, computed in float32.

Shapes: K adapted ids, D hidden, V vocabulary, O x I a linear layer, R rank.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from safetensors.torch import load_file
from torch import Tensor

from coordexp.coord_tokens.offset_adapter import ADAPTER_NAME
from coordexp.errors import CheckpointError
from coordexp.model.checkpoint_io import ADAPTER_WEIGHTS, AdapterInfo, JsonObject

EMBEDDING = "model.language_model.embed_tokens.weight"
HEAD = "lm_head.weight"

_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.(?P<kind>lora_A|lora_B|lora_magnitude_vector)(\.weight)?")
_OFFSET_KEY = re.compile(rf"base_model\.model\.{ADAPTER_NAME}\.(?P<kind>coord_ids|embed_offset|head_offset)")
_PLAIN: JsonObject = {
    "fan_in_fan_out": False,
    "bias": "none",
    "lora_bias": False,
    "rank_pattern": {},
    "alpha_pattern": {},
}


@dataclass(frozen=True)
class LinearDelta:
    """LoRA or DoRA of one linear layer.

    Attributes:
        a: ``[R, I]``.
        b: ``[O, R]``.
        scaling: factor of ``B A``.
        magnitude: ``[O]`` row norms under DoRA, else None.
    """

    a: Tensor
    b: Tensor
    scaling: float
    magnitude: Tensor | None

    def apply(self, weight_OI: Tensor) -> Tensor:
        """Return ``W + s B A``, under DoRA rescaled to the trained row norms, in float32."""
        merged_OI = weight_OI.float() + self.scaling * (self.b.float() @ self.a.float())
        if self.magnitude is None:
            return merged_OI
        norm_O1 = torch.linalg.norm(merged_OI, dim=1, keepdim=True)
        return self.magnitude.float().unsqueeze(1) / norm_O1 * merged_OI


@dataclass(frozen=True)
class OffsetDelta:
    """The coord offsets.

    Attributes:
        ids: ``[K]`` rows that change.
        embed: ``[K, D]`` added to the embedding.
        head: ``[K, D]`` added to the head; the same tensor when ``tie_head``.
        tie_head: one table, or two.
    """

    ids: Tensor
    embed: Tensor
    head: Tensor
    tie_head: bool

    def to_embedding(self, table_VD: Tensor) -> Tensor:
        """Return the embedding table with the offsets added, in float32 on the listed rows."""
        return _add_rows(table_VD, self.ids, self.embed)

    def to_head(self, table_VD: Tensor) -> Tensor:
        """Return the head table with the offsets added."""
        return _add_rows(table_VD, self.ids, self.head)


@dataclass(frozen=True)
class AdapterDelta:
    """Everything an adapter changes: linear layers by weight name, and the coord offsets."""

    linear: Mapping[str, LinearDelta]
    offset: OffsetDelta | None

    @classmethod
    def read(cls, info: AdapterInfo) -> "AdapterDelta":
        """Read a saved adapter.

        Raises:
            CheckpointError: if it holds something that cannot be merged.
        """
        _check_supported(info)
        tensors = load_file(info.directory / ADAPTER_WEIGHTS)
        by_module: dict[str, dict[str, Tensor]] = {}
        offsets: dict[str, Tensor] = {}
        for key, tensor in tensors.items():
            if match := _OFFSET_KEY.fullmatch(key):
                offsets[match["kind"]] = tensor
            elif match := _KEY.fullmatch(key):
                by_module.setdefault(match["module"], {})[match["kind"]] = tensor
            else:
                raise CheckpointError(
                    f"{info.directory}: cannot merge {key}; expected LoRA, DoRA and coord offsets only"
                )
        linear = {f"{module}.weight": _linear(parts, module, info) for module, parts in by_module.items()}
        return cls(linear=linear, offset=_offset(offsets, info))

    @property
    def unties_head(self) -> bool:
        """Whether embedding and head get different offsets, so that a tied table has to be split."""
        return self.offset is not None and not self.offset.tie_head

    def apply(self, name: str, weight: Tensor) -> Tensor:
        """Return the merged weight, in the dtype of ``weight``."""
        merged = weight
        if name in self.linear:
            merged = self.linear[name].apply(weight)
        elif self.offset is not None and name == EMBEDDING:
            merged = self.offset.to_embedding(weight)
        elif self.offset is not None and name == HEAD:
            merged = self.offset.to_head(weight)
        return merged.to(weight.dtype)


def _add_rows(table_VD: Tensor, ids: Tensor, offset_KD: Tensor) -> Tensor:
    summed_VD = table_VD.clone()
    summed_VD[ids] = (table_VD[ids].float() + offset_KD.float()).to(table_VD.dtype)
    return summed_VD


def _linear(parts: Mapping[str, Tensor], module: str, info: AdapterInfo) -> LinearDelta:
    if not {"lora_A", "lora_B"} <= parts.keys():
        raise CheckpointError(f"{info.directory}: {module} has {sorted(parts)}, expected lora_A and lora_B")
    rank, alpha = parts["lora_A"].shape[0], info.config.get("lora_alpha")
    if not isinstance(alpha, int | float):
        raise CheckpointError(f"{info.directory}: lora_alpha is {alpha!r}, expected a number")
    scaling = alpha / (math.sqrt(rank) if info.config.get("use_rslora") else rank)
    return LinearDelta(parts["lora_A"], parts["lora_B"], scaling, parts.get("lora_magnitude_vector"))


def _offset(tensors: Mapping[str, Tensor], info: AdapterInfo) -> OffsetDelta | None:
    if not tensors:
        return None
    if not {"coord_ids", "embed_offset"} <= tensors.keys():
        raise CheckpointError(f"{info.directory}: {ADAPTER_NAME} lacks coord_ids or embed_offset")
    embed = tensors["embed_offset"]
    head = tensors.get("head_offset", embed)
    return OffsetDelta(tensors["coord_ids"], embed, head, tie_head="head_offset" not in tensors)


def _check_supported(info: AdapterInfo) -> None:
    for key, plain in _PLAIN.items():
        if info.config.get(key, plain) not in (plain, None):
            raise CheckpointError(f"{info.directory}: {key} is {info.config[key]!r}; merging supports {plain!r} only")

"""What an adapter does to each weight of its base, computed in float32.

Shapes: K adapted ids, D hidden, V vocabulary, O x I a linear layer, R rank.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from coordexp.coord_tokens.offset_adapter import ADAPTER_NAME
from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.adapter import AdapterInfo
from coordexp.model.checkpoint.directory import JsonObject
from coordexp.model.checkpoint.stored_model import EMBEDDING, HEAD, StoredModel

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
        magnitude: ``[O]`` trained row norms under DoRA; None under LoRA.
    """

    a: Tensor
    b: Tensor
    scaling: float
    magnitude: Tensor | None


@dataclass(frozen=True)
class OffsetDelta:
    """The coord offsets.

    Attributes:
        ids: ``[K]`` rows that change.
        tables: ``[K, D]`` added to embedding and head, by weight name; the same tensor when ``tie_head``.
        tie_head: whether both are one table.
    """

    ids: Tensor
    tables: Mapping[str, Tensor]
    tie_head: bool


@dataclass(frozen=True)
class AdapterDelta:
    """Everything an adapter changes: linear layers by weight name, and the coord offsets."""

    directory: Path
    linear: Mapping[str, LinearDelta]
    offset: OffsetDelta | None

    @classmethod
    def read(cls, info: AdapterInfo) -> "AdapterDelta":
        """Read the tensors of a saved adapter.

        Raises:
            CheckpointError: if it has an option or a tensor that cannot be merged, or holds NaN or infinity.
        """
        for key, plain in _PLAIN.items():
            value = info.config.get(key, plain)
            if value not in (plain, None):
                raise CheckpointError(f"{info.directory}: {key} is {value!r}; merging supports {plain!r} only")
        by_module: dict[str, dict[str, Tensor]] = {}
        offsets: dict[str, Tensor] = {}
        for key, tensor in info.tensors().items():
            if not torch.isfinite(tensor).all():
                raise CheckpointError(f"{info.directory}: {key} holds NaN or infinity; expected a trained adapter")
            offset_key = _OFFSET_KEY.fullmatch(key)
            linear_key = _KEY.fullmatch(key)
            if offset_key is not None:
                offsets[offset_key["kind"]] = tensor
            elif linear_key is not None:
                by_module.setdefault(linear_key["module"], {})[linear_key["kind"]] = tensor
            else:
                raise CheckpointError(
                    f"{info.directory}: cannot merge {key}; expected LoRA, DoRA and coord offsets only"
                )
        linear = {f"{module}.weight": _linear(tensors, module, info) for module, tensors in by_module.items()}
        return cls(info.directory, linear, _offset(offsets, info))

    @property
    def changes(self) -> set[str]:
        """Names of the weights that change."""
        offset_tables = () if self.offset is None else self.offset.tables
        return {*self.linear, *offset_tables}

    @property
    def unties_head(self) -> bool:
        """Whether embedding and head get different offsets, so that a tied table has to be split."""
        return self.offset is not None and not self.offset.tie_head

    def check_fits(self, base: StoredModel) -> None:
        """Raise a CheckpointError if the adapter was trained on another model."""
        where = base.weights.directory
        missing = sorted(self.linear.keys() - base.shapes.keys())
        if missing:
            raise CheckpointError(
                f"{where}: the adapter changes {len(missing)} weights that this base does not have, "
                f"e.g. {missing[0]}; give the base it was trained on"
            )
        for name, delta in sorted(self.linear.items()):
            shape = [delta.b.shape[0], delta.a.shape[1]]
            if list(base.shapes[name]) != shape:
                raise CheckpointError(
                    f"{where}: the adapter is for another base: it changes {name} of {shape}, and this "
                    f"base has {list(base.shapes[name])}"
                )
        if self.offset is None:
            return
        rows, columns = base.shapes[EMBEDDING]
        last_id = int(self.offset.ids.max())
        width = self.offset.tables[EMBEDDING].shape[1]
        if last_id >= rows or width != columns:
            raise CheckpointError(
                f"{where}: the adapter is for another base: its coord offsets reach id {last_id} in {width} columns, "
                f"and the embedding of this base has {rows} rows of {columns}"
            )

    def apply(self, name: str, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a weight of the base with the adapter's change, computed in float32 and rounded once to ``dtype``.

        A layer becomes ``W + s B A``; under DoRA its rows are then rescaled to the trained norms.

        Args:
            name: of the weight.
            weight: the base's, as the adapter was trained on it.
            dtype: of the result.

        Raises:
            CheckpointError: if DoRA would divide by a row norm of zero.
        """
        layer = self.linear.get(name)
        if layer is not None:
            return self._apply_linear(layer, name, weight).to(dtype)
        if self.offset is None or name not in self.offset.tables:
            return weight.to(dtype)
        ids = self.offset.ids
        offset_KD = self.offset.tables[name]
        merged_VD = weight.to(dtype).clone()
        merged_VD[ids] = (weight[ids].float() + offset_KD.float()).to(dtype)
        return merged_VD

    def _apply_linear(self, layer: LinearDelta, name: str, weight_OI: Tensor) -> Tensor:
        merged_OI = weight_OI.float() + layer.scaling * (layer.b.float() @ layer.a.float())
        if layer.magnitude is None:
            return merged_OI
        norm_O1 = torch.linalg.norm(merged_OI, dim=1, keepdim=True)
        if not norm_O1.all():
            row = f"{name}: row {int(norm_O1.flatten().argmin())}"
            raise CheckpointError(f"{self.directory}: {row} of W + B A is zero, and DoRA divides by its norm")
        return layer.magnitude.float().unsqueeze(1) / norm_O1 * merged_OI


def _linear(tensors: Mapping[str, Tensor], module: str, info: AdapterInfo) -> LinearDelta:
    """Return the change of one layer from its tensors by kind (``lora_A``, ...)."""
    if not {"lora_A", "lora_B"} <= tensors.keys():
        raise CheckpointError(f"{info.directory}: {module} has {sorted(tensors)}, expected lora_A and lora_B")
    a_RI, b_OR = tensors["lora_A"], tensors["lora_B"]
    if not a_RI.ndim == b_OR.ndim == 2:
        raise CheckpointError(f"{info.directory}: {module} is no linear layer; merging supports linear layers only")
    rank = a_RI.shape[0]
    alpha = info.config.get("lora_alpha")
    if not isinstance(alpha, int | float):
        raise CheckpointError(f"{info.directory}: lora_alpha is {alpha!r}, expected a number")
    divisor = math.sqrt(rank) if info.config.get("use_rslora") else rank
    return LinearDelta(a_RI, b_OR, alpha / divisor, tensors.get("lora_magnitude_vector"))


def _offset(tensors: Mapping[str, Tensor], info: AdapterInfo) -> OffsetDelta | None:
    """Return the coord offsets from their tensors by kind; None if there are none."""
    if not tensors:
        return None
    if not {"coord_ids", "embed_offset"} <= tensors.keys():
        raise CheckpointError(f"{info.directory}: {ADAPTER_NAME} lacks coord_ids or embed_offset")
    embed = tensors["embed_offset"]
    tables = {EMBEDDING: embed, HEAD: tensors.get("head_offset", embed)}
    return OffsetDelta(tensors["coord_ids"], tables, tie_head="head_offset" not in tensors)

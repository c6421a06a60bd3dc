"""A trained adapter on disk: save it, read what it says of itself, and check that all of it reached a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import safe_open
from torch import Tensor

from coordexp.coord_tokens.offset_adapter import ADAPTER_NAME
from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.directory import JsonObject, read_json, tensor_names

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"


@dataclass(frozen=True)
class OffsetInfo:
    """The coord-offset adapter inside a saved adapter.

    Attributes:
        coord_ids: the ids of its rows; None if the file does not say.
        num_ids: how many rows it has.
        tie_head: one table, or two.
        dtype: of the tables.
    """

    coord_ids: list[int] | None
    num_ids: int
    tie_head: bool
    dtype: torch.dtype


@dataclass(frozen=True)
class AdapterInfo:
    """A saved PEFT adapter: its configuration and what its weights file holds."""

    directory: Path
    config: JsonObject
    keys: tuple[str, ...]
    offset: OffsetInfo | None

    @property
    def base(self) -> str | None:
        """The base checkpoint it was trained on, as its configuration says."""
        base = self.config.get("base_model_name_or_path")
        return base if isinstance(base, str) and base else None

    @property
    def weights(self) -> Path:
        """The file of its tensors."""
        return self.directory / ADAPTER_WEIGHTS


def read_adapter(directory: str | Path) -> AdapterInfo:
    """Read what a saved adapter says about itself.

    Raises:
        CheckpointError: if a file is missing or damaged, or it is no LoRA or DoRA adapter.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such adapter directory")
    config = read_json(directory / ADAPTER_CONFIG)
    if config.get("peft_type") != "LORA":
        raise CheckpointError(f"{directory}: peft_type is {config.get('peft_type')!r}; expected 'LORA' (LoRA or DoRA)")
    if config.get("megatron_config"):  # PEFT would import the module that megatron_core names
        raise CheckpointError(f"{directory / ADAPTER_CONFIG}: megatron_config is set; expected a plain LoRA or DoRA")
    file = directory / ADAPTER_WEIGHTS
    keys = tensor_names(file)
    return AdapterInfo(directory=directory, config=config, keys=tuple(keys), offset=_offset_info(file, keys))


def save_adapter(model: PeftModel, directory: str | Path, *, state_dict: dict[str, Tensor] | None = None) -> None:
    """Write adapter and offsets with PEFT, and nothing of the base.

    PEFT's own default compares vocabulary sizes with the base on the hub, and on a resized one
    stores the whole embedding table beside the adapter.

    Args:
        model: the adapted model.
        directory: where to; made if it is not there.
        state_dict: the weights, where they were gathered from several ranks; None for the model's own.
    """
    model.save_pretrained(str(directory), state_dict=state_dict, save_embedding_layers=False)


def check_adapter_keys(info: AdapterInfo, wrapped: PeftModel) -> None:
    """Check that a saved adapter has a tensor for each place in the model, and a place for each tensor.

    PEFT itself loads what fits and only warns of the rest.

    Raises:
        CheckpointError: if something is on one side only.
    """
    expected = set(get_peft_model_state_dict(wrapped, save_embedding_layers=False))
    if different := sorted(expected.symmetric_difference(info.keys)):
        raise CheckpointError(
            f"{info.directory}: the adapter does not fit the base: {len(different)} tensors are on one side only, "
            f"e.g. {different[0]}"
        )


def _offset_info(file: Path, keys: Sequence[str]) -> OffsetInfo | None:
    by_name = {key.rsplit(".", 1)[1]: key for key in keys if f".{ADAPTER_NAME}." in f".{key}"}
    if "embed_offset" not in by_name:
        return None
    with safe_open(file, framework="pt") as handle:
        table = handle.get_tensor(by_name["embed_offset"])
        ids = handle.get_tensor(by_name["coord_ids"]).tolist() if "coord_ids" in by_name else None
    return OffsetInfo(
        coord_ids=ids,
        num_ids=table.shape[0],
        tie_head="head_offset" not in by_name,
        dtype=table.dtype,
    )

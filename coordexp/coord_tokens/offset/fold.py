"""The end of a coord-offset adapter in memory: its rows join the tables, and the model is a plain one."""

from dataclasses import dataclass
from os import PathLike
from typing import Self, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from coordexp.coord_tokens.offset.hooks import ADAPTER_NAME, adapter_slot, detach_hooks, embedding_and_head
from coordexp.coord_tokens.offset.module import CoordOffsetAdapter, head_offset_table
from coordexp.errors import CheckpointError


@torch.no_grad()
def fold_coord_offset_adapter(model: PreTrainedModel) -> None:
    """Add the offsets to embedding and head for good, and remove the adapter, in place.

    What PEFT's ``merge_and_unload()`` leaves is a plain model with a working adapter beside it, which
    no other program would load. A tied model with ``tie_head: false`` becomes untied.
    ``coordexp.model.merge.merge`` does the same on disk, shard by shard.

    Args:
        model: a Hugging Face model with an adapter, without PEFT around or inside it.

    Raises:
        CheckpointError: if it has no adapter, or PEFT still holds it.
    """
    adapter = adapter_slot(model) if isinstance(model, PreTrainedModel) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if not isinstance(adapter, CoordOffsetAdapter):
        raise CheckpointError(
            f"{type(model).__name__} holds no coord offsets of its own to fold; give the model that PEFT's "
            "merge_and_unload() returns"
        )
    embedding, head = embedding_and_head(model)
    table_VD = embedding.get_parameter("weight")
    tied = head.get_parameter("weight") is table_VD
    if tied and not adapter.tie_head:
        head.register_parameter("weight", nn.Parameter(table_VD.detach().clone(), requires_grad=table_VD.requires_grad))
        _untie(model)
    if not (tied and adapter.tie_head):
        _add_rows(head.get_parameter("weight"), adapter.coord_ids, head_offset_table(adapter))
    _add_rows(table_VD, adapter.coord_ids, adapter.embed_offset)
    detach_hooks(model)
    delattr(model, ADAPTER_NAME)
    vars(model).pop("save_pretrained", None)


@dataclass(eq=False)
class GuardedSave:
    """A model's ``save_pretrained`` that refuses to write offsets where ``from_pretrained`` never reads them."""

    owner: PreTrainedModel

    def __call__(self, save_directory: str | PathLike[str], **options: object) -> None:
        """Save as the model's class does, if no bare adapter is in it.

        Raises:
            CheckpointError: if one is.
        """
        if isinstance(adapter_slot(self.owner), CoordOffsetAdapter):
            raise CheckpointError(
                f"{save_directory}: a plain checkpoint would lose the coord offsets; call "
                "fold_coord_offset_adapter(model) first, or save the PeftModel around it"
            )
        type(self.owner).save_pretrained(self.owner, save_directory, **options)  # pyright: ignore[reportArgumentType]

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Follow a copied model."""
        return type(self)(cast("PreTrainedModel", memo.get(id(self.owner), self.owner)))


def _add_rows(table_VD: Tensor, ids_K: Tensor, offset_KD: Tensor) -> None:
    rows_KD = table_VD[ids_K].float() + offset_KD.to(table_VD.device).float()
    table_VD[ids_K] = rows_KD.to(table_VD.dtype)


def _untie(model: PreTrainedModel) -> None:
    for config in {id(config): config for config in (model.config, model.config.get_text_config())}.values():
        config.tie_word_embeddings = False
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)

"""The oracle of a merge on disk: offsets folded into a model in memory, after PEFT's own ``merge_and_unload``."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from coordexp.coord_tokens.offset.hooks import ADAPTER_NAME, adapter_slot, embedding_and_head
from coordexp.coord_tokens.offset.module import CoordOffsetAdapter, head_offset_table


@torch.no_grad()
def fold_coord_offset_adapter(model: PreTrainedModel) -> None:
    """Add the offsets to embedding and head for good, and remove the adapter, in place.

    What ``merge_and_unload()`` leaves is a plain model with a working adapter beside it. A tied model with
    ``tie_head: false`` becomes untied. The hooks stay, and find nothing to add.
    """
    adapter = adapter_slot(model)
    assert isinstance(adapter, CoordOffsetAdapter)
    embedding, head = embedding_and_head(model)
    table_VD = embedding.get_parameter("weight")
    tied = head.get_parameter("weight") is table_VD
    if tied and not adapter.tie_head:
        head.register_parameter("weight", nn.Parameter(table_VD.detach().clone(), requires_grad=table_VD.requires_grad))
        _untie(model)
    if not (tied and adapter.tie_head):
        _add_rows(head.get_parameter("weight"), adapter.coord_ids, head_offset_table(adapter))
    _add_rows(table_VD, adapter.coord_ids, adapter.embed_offset)
    delattr(model, ADAPTER_NAME)
    vars(model).pop("save_pretrained", None)


def _add_rows(table_VD: Tensor, ids_K: Tensor, offset_KD: Tensor) -> None:
    rows_KD = table_VD[ids_K].float() + offset_KD.to(table_VD.device).float()
    table_VD[ids_K] = rows_KD.to(table_VD.dtype)


def _untie(model: PreTrainedModel) -> None:
    for config in {id(config): config for config in (model.config, model.config.get_text_config())}.values():
        config.tie_word_embeddings = False
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)

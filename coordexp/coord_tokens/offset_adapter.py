"""The coord-offset adapter: trained additions to the rows of listed tokens in a frozen table.

The table ``offset [K, D]`` is added to the embeddings of the K listed ids and, as ``hidden @ offset^T``, to their
logits; nothing else changes by a bit. It sits in the model as ``coord_offset_adapter``, works through forward hooks on
the input and output embeddings, and travels with PEFT's ``modules_to_save``.
"""

from dataclasses import dataclass
from os import PathLike
from typing import cast, get_args

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from coordexp.coord_tokens.codec import DEFAULT_COORD_IDS, CoordIds, as_id_list
from coordexp.coord_tokens.dtypes import DTYPES, DTypeName
from coordexp.coord_tokens.offset.hooks import (
    ADAPTER_NAME,
    active_offset,
    adapter_slot,
    attach_hooks,
    embedding_and_head,
    inner_model,
)
from coordexp.coord_tokens.offset.module import CoordOffsetAdapter, head_offset_block, head_offset_table
from coordexp.coord_tokens.vocab import STRUCTURE_TOKENS, coord_vocab
from coordexp.errors import CheckpointError, ConfigError, TokenizerError

__all__ = [
    "ADAPTER_NAME",
    "DTYPES",
    "CoordOffsetAdapter",
    "DTypeName",
    "active_offset",
    "head_offset_block",
    "head_offset_table",
    "inner_model",
    "install_coord_offset_adapter",
    "reattach_coord_offset_hooks",
]


def install_coord_offset_adapter(
    model: PreTrainedModel,
    *,
    coord_ids: CoordIds | None = None,
    tie_head: bool = True,
    dtype: DTypeName | torch.dtype = "auto",
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> CoordOffsetAdapter:
    """Add a zero offset adapter to a model and freeze its embedding and head tables.

    Call it before PEFT wraps the model, with ``modules_to_save=["coord_offset_adapter"]`` there, and
    before ``PeftModel.from_pretrained``, which refuses saved offsets on a model without the adapter
    (``coordexp.model.load`` does both). What PEFT does to modules to save it does here: each
    adapter has offsets of its own, ``disable_adapter()`` gives the base, and ``merge_and_unload()`` and
    ``unload()`` both leave the active offsets at work. A plain model is made of it on disk
    (``coordexp.model.merge``).

    Args:
        model: a causal language model, tied or untied.
        coord_ids: ids to adapt: a range, ``{"start": a, "end": b}`` (both included) or a list;
            None for Qwen3-VL's 151670..152669.
        tie_head: one table for embedding and head, or two.
        dtype: of the tables; ``auto`` takes the embedding's, and later that of tables loaded into them.
        tokenizer: if given, the ids must be coord tokens of it, all or some (and added structure tokens), no others.

    Returns:
        The adapter, which is now ``model.coord_offset_adapter``.

    Raises:
        TokenizerError: if an id lies outside the tables, or is no coordinate token of ``tokenizer``.
        ConfigError: if the model has an adapter, PEFT layers or no head, or ``dtype`` is none.
    """
    given = cast("nn.Module", model)
    if not isinstance(given, PreTrainedModel) or any(isinstance(module, BaseTunerLayer) for module in model.modules()):
        raise ConfigError(
            f"the coord-offset adapter goes into a Hugging Face model before PEFT does, got {type(model).__name__} "
            "(or PEFT's layers in it); install it first, then wrap the model"
        )
    if adapter_slot(model) is not None:
        raise ConfigError("the model already has a coord_offset_adapter; install it once, before PEFT wraps the model")
    embedding, head = (module.get_parameter("weight") for module in embedding_and_head(model))
    chosen = embedding.dtype if dtype == "auto" else dtype if isinstance(dtype, torch.dtype) else DTYPES.get(dtype)
    if chosen is None or not chosen.is_floating_point:
        got = f"{dtype!r}, the embedding's {embedding.dtype}" if dtype == "auto" else repr(dtype)
        raise ConfigError(f"coord_offset.dtype: got {got}; expected one of {', '.join(get_args(DTypeName))}")
    try:
        ids = as_id_list(DEFAULT_COORD_IDS if coord_ids is None else coord_ids)
    except ValueError as error:
        raise TokenizerError(f"coord_offset.ids: {error}") from None
    num_rows = min(embedding.shape[0], head.shape[0])
    if max(ids) >= num_rows:
        raise TokenizerError(
            f"coord_offset.ids reach {max(ids)} but the model has {num_rows} rows (ids 0..{num_rows - 1}); "
            "expand the vocabulary first, or give this tokenizer's ids"
        )
    vocab_size: int = model.config.get_text_config().vocab_size  # pyright: ignore[reportAttributeAccessIssue]
    if max(ids) >= vocab_size:
        raise TokenizerError(
            f"coord_offset.ids reach {max(ids)} but config.vocab_size is {vocab_size}; resize the model by "
            "resize_token_embeddings, which sets both"
        )
    if tokenizer is not None:
        _check_tokens(ids, tokenizer)
    adapter = CoordOffsetAdapter(
        ids,
        hidden_size=embedding.shape[1],
        tie_head=tie_head,
        dtype=chosen,
        device=embedding.device,
        adopts_dtype=dtype == "auto",
    )
    embedding.requires_grad_(False)
    head.requires_grad_(False)
    model.add_module(ADAPTER_NAME, adapter)
    attach_hooks(model)
    model.save_pretrained = _GuardedSave(model)  # pyright: ignore[reportAttributeAccessIssue] - it takes what the method does
    return adapter


def reattach_coord_offset_hooks(model: nn.Module) -> CoordOffsetAdapter | None:
    """Make sure that the present embedding and head carry the hooks, once each.

    Hooks find the adapter when they run, and the model looks after its hooks before each of its own
    forwards. What is left is calling a replaced embedding or head, or the model inside, by itself. Safe at any time.

    Returns:
        The adapter that is active now, or None if the model has none.
    """
    owner = inner_model(model)
    if adapter_slot(owner) is not None:
        attach_hooks(owner)
    return active_offset(owner)


@dataclass(eq=False)
class _GuardedSave:
    """A model's ``save_pretrained`` that refuses to write offsets where ``from_pretrained`` never reads them."""

    owner: PreTrainedModel

    def __call__(self, save_directory: str | PathLike[str], **options: object) -> None:
        if isinstance(adapter_slot(self.owner), CoordOffsetAdapter):
            raise CheckpointError(
                f"{save_directory}: a plain checkpoint would lose the coord offsets; save the PeftModel around the "
                "model, and merge that (coordexp.model.merge)"
            )
        reattach_coord_offset_hooks(self.owner)
        type(self.owner).save_pretrained(self.owner, save_directory, **options)  # pyright: ignore[reportArgumentType]


def _check_tokens(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that the ids are coord tokens of a tokenizer, all or some, and beside them only added structure tokens."""
    coords = coord_vocab(tokenizer).coord_ids
    start, _, end = STRUCTURE_TOKENS["spec"]
    tokens = {one: str(tokenizer.convert_ids_to_tokens(one)) for one in sorted(set(ids) - set(coords))}
    wrong = next((f"hold {one}, which is {token!r}" for one, token in tokens.items() if token not in (start, end)), "")
    if wrong or len(tokens) == len(ids):
        raise TokenizerError(
            f"coord_offset.ids {wrong or 'hold no coord token'}; expected coord tokens only, of this tokenizer "
            f"{coords.start}..{coords.stop - 1}"
        )

"""The coord-offset adapter: trained additions to the rows of listed tokens in a frozen table.

Why not train the table itself? Its gradient would be ``[V, D]``, 152,670 rows for 1,000 that matter, with two moments
of the same size in the optimizer; and text tokens would move with it. So the tables stay frozen, and one small
``offset [K, D]`` is trained: it acts as if it were added to the K listed rows. Nothing else changes by a bit.

From table to logit::

    ids [B, T]                                                   offset [K, D], float32 or the model's dtype
       |                                                            |
    embed_tokens (frozen) -> rows [B, T, D]                         |
       |   forward hook: rows of listed ids += offset  <------------+   hooks.py _EmbeddingHook
    layers                                                          |   module.py add_to_embeddings
       |                                                            |
    hidden [B, T, D]                                                |
       |-- generation, evaluation --> lm_head (frozen) -> logits    |
       |      forward hook: listed columns += hidden @ offset^T <---+   hooks.py _HeadHook, module.py add_to_logits
       |                                                            |
       `-- training --> lm_head is bypassed (model/head_bypass.py): its "logits" are hidden, the hook adds nothing
              train/forward.py takes hidden at supervised positions and hands over the table and the offset
              losses/head.py split_head: hidden @ (W[listed] + offset)^T  <-- module.py head_offset_block

With ``tie_head`` the same offset acts at both ends, otherwise each end has its own. A hook looks the adapter up each
time it runs, because PEFT (``modules_to_save``) replaces the adapter by a copy that trains. Under DDP and ZeRO the
offset is one ordinary parameter of every rank: :meth:`CoordOffsetAdapter.add_to_embeddings` uses it for every token,
listed or not, so that it has a gradient in every microbatch.
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

    Call it before PEFT wraps the model, and give PEFT ``modules_to_save=["coord_offset_adapter"]``. Call it also before
    ``PeftModel.from_pretrained``, which refuses saved offsets on a model without the adapter. ``coordexp.model.load``
    does both.

    PEFT treats the adapter like any module of ``modules_to_save``: each PEFT adapter has offsets of its own, and
    ``disable_adapter()`` gives the base. ``merge_and_unload()`` and ``unload()`` leave the active offsets in place.
    ``coordexp.model.merge`` writes a plain model to disk.

    Args:
        model: a causal language model, tied or untied.
        coord_ids: ids to adapt: a range, ``{"start": a, "end": b}`` (both included) or a list; None for Qwen3-VL's
            151670..152669.
        tie_head: whether embedding and head share one table of offsets.
        dtype: dtype of the tables. ``auto`` takes that of the embedding, and later that of saved tables when they are
            loaded.
        tokenizer: if given, each id must be a coord token or an added structure token of it.

    Returns:
        The adapter, which is now ``model.coord_offset_adapter``.

    Raises:
        TokenizerError: if an id lies outside the tables, or is not a coordinate token of ``tokenizer``.
        ConfigError: if the model has the adapter or PEFT layers already, or is not a Hugging Face model; or if
            ``dtype`` is not a floating-point dtype.
    """
    candidate = cast("nn.Module", model)
    has_peft_layers = any(isinstance(module, BaseTunerLayer) for module in model.modules())
    if not isinstance(candidate, PreTrainedModel) or has_peft_layers:
        raise ConfigError(
            f"the coord-offset adapter goes into a Hugging Face model before PEFT does, got {type(model).__name__} "
            "(or PEFT's layers in it); install it first, then wrap the model"
        )
    if adapter_slot(model) is not None:
        raise ConfigError("the model already has a coord_offset_adapter; install it once, before PEFT wraps the model")
    embedding_VD, head_VD = (module.get_parameter("weight") for module in embedding_and_head(model))
    table_dtype = _table_dtype(dtype, embedding_dtype=embedding_VD.dtype)
    try:
        ids = as_id_list(DEFAULT_COORD_IDS if coord_ids is None else coord_ids)
    except ValueError as error:
        raise TokenizerError(f"coord_offset.ids: {error}") from None
    _check_ids(ids, model, tokenizer, num_rows=min(len(embedding_VD), len(head_VD)))
    adapter = CoordOffsetAdapter(
        ids,
        hidden_size=embedding_VD.shape[1],
        tie_head=tie_head,
        dtype=table_dtype,
        device=embedding_VD.device,
        adopts_dtype=dtype == "auto",
    )
    embedding_VD.requires_grad_(False)
    head_VD.requires_grad_(False)
    model.add_module(ADAPTER_NAME, adapter)
    attach_hooks(model)
    model.save_pretrained = _GuardedSave(model)  # pyright: ignore[reportAttributeAccessIssue] - it takes what the method does
    return adapter


def _table_dtype(dtype: DTypeName | torch.dtype, *, embedding_dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the tables, or raise a ConfigError if it is not a floating-point one."""
    if dtype == "auto":
        table_dtype, got = embedding_dtype, f"'auto', the embedding's {embedding_dtype}"
    elif isinstance(dtype, torch.dtype):
        table_dtype, got = dtype, repr(dtype)
    else:
        table_dtype, got = DTYPES.get(dtype), repr(dtype)
    if table_dtype is None or not table_dtype.is_floating_point:
        raise ConfigError(f"coord_offset.dtype: got {got}; expected one of {', '.join(get_args(DTypeName))}")
    return table_dtype


def _check_ids(
    ids: list[int], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, *, num_rows: int
) -> None:
    """Raise a TokenizerError unless the ids are rows of both tables, and coord tokens of the tokenizer."""
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


def reattach_coord_offset_hooks(model: nn.Module) -> CoordOffsetAdapter | None:
    """Make sure that the present embedding and head carry the hooks, once each.

    The model does this itself before each of its forwards. Call this function if you replaced the embedding or head and
    then call that module, or the inner model, on its own. It is safe at any time.

    Returns:
        The adapter that is active now, or None if the model has none.
    """
    owner = inner_model(model)
    if adapter_slot(owner) is not None:
        attach_hooks(owner)
    return active_offset(owner)


@dataclass(eq=False)
class _GuardedSave:
    """A model's ``save_pretrained`` that refuses to write a plain checkpoint of a model with offsets.

    ``from_pretrained`` would skip the offsets without a word, and every coord token of the loaded model would be wrong.
    """

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
    """Raise a TokenizerError unless the ids hold coord tokens and, beside them, only added structure tokens."""
    coords = coord_vocab(tokenizer).coord_ids
    start, _, end = STRUCTURE_TOKENS["spec"]
    problem = ""
    if not set(ids) & set(coords):
        problem = "hold no coord token"
    for token_id in sorted(set(ids) - set(coords)):
        token = str(tokenizer.convert_ids_to_tokens(token_id))
        if token not in (start, end):
            problem = f"hold {token_id}, which is {token!r}"
            break
    if problem:
        raise TokenizerError(
            f"coord_offset.ids {problem}; expected coord tokens only, which this tokenizer has at "
            f"{coords.start}..{coords.stop - 1}"
        )

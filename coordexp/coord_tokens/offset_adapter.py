"""The coord-offset adapter: trained additions to the rows of listed tokens in a frozen table.

Shapes: K listed ids, D hidden, V vocabulary, T tokens (any leading shape).

The table ``offset [K, D]`` is added to the embeddings of the listed ids and, as ``hidden @ offset^T``,
to their logits; nothing else changes by a bit. It sits in the model as ``coord_offset_adapter``, works
through forward hooks on the input and output embeddings, and travels with PEFT's ``modules_to_save``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Self, cast, get_args

import numpy as np
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
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
    _check_model(model)
    embedding, head = (module.get_parameter("weight") for module in embedding_and_head(model))
    ids = _checked_ids(
        DEFAULT_COORD_IDS if coord_ids is None else coord_ids,
        num_rows=min(embedding.shape[0], head.shape[0]),
        vocab_size=model.config.get_text_config().vocab_size,  # pyright: ignore[reportAttributeAccessIssue]
    )
    if tokenizer is not None:
        _check_tokens(ids, tokenizer)
    adapter = CoordOffsetAdapter(
        ids,
        hidden_size=embedding.shape[1],
        tie_head=tie_head,
        dtype=_dtype(dtype, like=embedding),
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
        """Save as the model's class does, if no bare adapter is in it.

        Raises:
            CheckpointError: if one is.
        """
        if isinstance(adapter_slot(self.owner), CoordOffsetAdapter):
            raise CheckpointError(
                f"{save_directory}: a plain checkpoint would lose the coord offsets; save the PeftModel around the "
                "model, and merge that (coordexp.model.merge)"
            )
        reattach_coord_offset_hooks(self.owner)
        type(self.owner).save_pretrained(self.owner, save_directory, **options)  # pyright: ignore[reportArgumentType]

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Follow a copied model."""
        return type(self)(cast("PreTrainedModel", memo.get(id(self.owner), self.owner)))


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, PreTrainedModel) or any(isinstance(module, BaseTunerLayer) for module in model.modules()):
        raise ConfigError(
            f"the coord-offset adapter goes into a Hugging Face model before PEFT does, got {type(model).__name__} "
            "(or PEFT's layers in it); install it first, then wrap the model"
        )
    if adapter_slot(model) is not None:
        raise ConfigError("the model already has a coord_offset_adapter; install it once, before PEFT wraps the model")


def _dtype(name: DTypeName | torch.dtype, *, like: Tensor) -> torch.dtype:
    chosen = like.dtype if name == "auto" else name if isinstance(name, torch.dtype) else DTYPES.get(name)
    if chosen is None or not chosen.is_floating_point:
        given = f"{name!r}, the embedding's {like.dtype}" if name == "auto" else repr(name)
        raise ConfigError(f"coord_offset.dtype: got {given}; expected one of {', '.join(get_args(DTypeName))}")
    return chosen


def _checked_ids(coord_ids: CoordIds, *, num_rows: int, vocab_size: int) -> list[int]:
    """Expand the ids and check that the tables hold them.

    Args:
        coord_ids: a range, ``{"start": a, "end": b}`` (both included) or a list.
        num_rows: rows of embedding and head; of the shorter one.
        vocab_size: what the model's configuration says.

    Raises:
        TokenizerError: if the ids are malformed or reach beyond either number.
    """
    _check_form(coord_ids)
    try:
        ids = as_id_list(coord_ids)
    except ValueError as error:
        raise TokenizerError(f"coord_offset.ids: {error}") from None
    if max(ids) >= num_rows:
        raise TokenizerError(
            f"coord_offset.ids reach {max(ids)} but the model has {num_rows} rows (ids 0..{num_rows - 1}); "
            "expand the vocabulary first, or give this tokenizer's ids"
        )
    if max(ids) >= vocab_size:
        raise TokenizerError(
            f"coord_offset.ids reach {max(ids)} but config.vocab_size is {vocab_size}; resize the model by "
            "resize_token_embeddings, which sets both"
        )
    return ids


def _check_tokens(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that the ids are coord tokens of a tokenizer, all or some, and beside them only added structure tokens.

    Raises:
        TokenizerError: if another token is listed (the wildcard, say), or no coord token.
    """
    coords = set(coord_vocab(tokenizer).coord_ids)
    start, _, end = STRUCTURE_TOKENS["spec"]
    others = [(one, str(tokenizer.convert_ids_to_tokens(one))) for one in sorted(set(ids) - coords)]
    wrong = next((f"hold {one}, which is {token!r}" for one, token in others if token not in (start, end)), None)
    missing = sorted(coords - set(ids))
    if missing and (wrong is not None or len(missing) == len(coords)):  # as those of another vocabulary do
        wrong = f"lack {len(missing)} coord tokens of the tokenizer, first id {missing[0]}" + (
            f", and {wrong}" if wrong else ""
        )
    if wrong is not None:
        raise TokenizerError(f"coord_offset.ids {wrong}; expected coord tokens only")


def _check_form(coord_ids: object) -> None:
    """Refuse what ``int()`` would take for an id: 5.7, True, "641"."""
    if isinstance(coord_ids, Mapping):
        if set(coord_ids) != {"start", "end"}:
            raise TokenizerError(f"coord_offset.ids: got the keys {list(coord_ids)}, expected start and end")
        items = [coord_ids["start"], coord_ids["end"]]
    elif isinstance(coord_ids, Sequence) and not isinstance(coord_ids, str | bytes):
        items = [] if isinstance(coord_ids, range) else list(coord_ids)
    else:
        raise TokenizerError(
            f"coord_offset.ids: got {coord_ids!r}, expected a range, a list of ids, or a mapping of start and end"
        )
    for item in items:
        if isinstance(item, bool) or not isinstance(item, int | np.integer):
            raise TokenizerError(f"coord_offset.ids: got {item!r}, expected an integer")
    if isinstance(coord_ids, Mapping) and items[0] > items[1]:
        raise TokenizerError(f"coord_offset.ids: start {items[0]} is above end {items[1]}")

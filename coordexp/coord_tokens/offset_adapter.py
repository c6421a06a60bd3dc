"""The coord-offset adapter: trained additions to the rows of listed tokens in a frozen table.

Shapes: K listed ids, D hidden, V vocabulary, T tokens (any leading shape).

The table ``offset [K, D]`` is added to the embeddings of the listed ids and, as ``hidden @ offset^T``,
to their logits; nothing else changes by a bit. It sits in the model as ``coord_offset_adapter``, works
through forward hooks on the input and output embeddings, and travels with PEFT's ``modules_to_save``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from peft.utils import ModulesToSaveWrapper
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from coordexp.coord_tokens.codec import CoordIds
from coordexp.coord_tokens.offset_ids import DEFAULT_COORD_IDS, check_tokens, checked_ids
from coordexp.errors import TokenizerError

ADAPTER_NAME = "coord_offset_adapter"

DTypeName = Literal["auto", "float32", "bfloat16", "float16"]


class CoordOffsetAdapter(nn.Module):
    """Trained offsets of the listed ids; zero at first, so that installing it changes nothing.

    Attributes:
        coord_ids: ``[K]`` int64 buffer, saved with the offsets: a checkpoint says what its rows mean.
        embed_offset: ``[K, D]`` added to embeddings, and to the head when ``tie_head``.
        head_offset: ``[K, D]`` added to the head; None when ``tie_head``.
        first_id: the first id if the ids are contiguous and ascending, else None.
    """

    coord_ids: Tensor

    def __init__(
        self,
        coord_ids: Sequence[int],
        *,
        hidden_size: int,
        tie_head: bool = True,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        """Allocate zero tables for ``coord_ids``."""
        super().__init__()
        first = coord_ids[0]
        contiguous = list(coord_ids) == list(range(first, first + len(coord_ids)))
        self.first_id: int | None = first if contiguous else None
        self.register_buffer("coord_ids", torch.tensor(list(coord_ids), dtype=torch.int64, device=device))
        shape = (len(coord_ids), hidden_size)
        self.embed_offset = nn.Parameter(torch.zeros(shape, dtype=dtype, device=device))
        self.head_offset = None if tie_head else nn.Parameter(torch.zeros(shape, dtype=dtype, device=device))
        self.register_load_state_dict_pre_hook(_refuse_other_ids)

    @property
    def tie_head(self) -> bool:
        """Whether one table serves embedding and head."""
        return self.head_offset is None

    @property
    def num_ids(self) -> int:
        """K."""
        return self.embed_offset.shape[0]

    def add_to_embeddings(self, embeddings_TD: Tensor, ids_T: Tensor) -> Tensor:
        """Return the embeddings with the offsets of listed ids added; the others bit-equal."""
        is_listed_T, rows_T = self._rows_of(ids_T)
        shifted_TD = (embeddings_TD + F.embedding(rows_T, self.embed_offset)).to(embeddings_TD.dtype)
        return torch.where(is_listed_T.unsqueeze(-1), shifted_TD, embeddings_TD)

    def add_to_logits(self, logits_TV: Tensor, hidden_TD: Tensor) -> Tensor:
        """Add ``hidden @ offset^T`` to the listed columns of ``logits_TV``, in place."""
        table_KD = head_offset_table(self)
        dtype = torch.promote_types(hidden_TD.dtype, table_KD.dtype)
        delta_TK = F.linear(hidden_TD.to(dtype), table_KD.to(dtype))
        columns = self.coord_ids if self.first_id is None else slice(self.first_id, self.first_id + self.num_ids)
        return _AddToColumns.apply(logits_TV, delta_TK, columns)

    def extra_repr(self) -> str:
        """Describe the tables for ``print(model)``."""
        return f"num_ids={self.num_ids}, hidden_size={self.embed_offset.shape[1]}, tie_head={self.tie_head}"

    def _rows_of(self, ids_T: Tensor) -> tuple[Tensor, Tensor]:
        """Return which ids are listed, and the table row of each (some valid row for the others)."""
        if self.first_id is not None:
            rows_T = ids_T - self.first_id
            return (rows_T >= 0) & (rows_T < self.num_ids), rows_T.clamp(0, self.num_ids - 1)
        sorted_K, order_K = self.coord_ids.sort()
        place_T = torch.searchsorted(sorted_K, ids_T).clamp(max=self.num_ids - 1)
        return sorted_K[place_T] == ids_T, order_K[place_T]


def install_coord_offset_adapter(
    model: PreTrainedModel,
    *,
    coord_ids: CoordIds | None = None,
    tie_head: bool = True,
    dtype: DTypeName | torch.dtype = "auto",
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> CoordOffsetAdapter:
    """Add a zero offset adapter to a model and freeze its embedding and head tables.

    Call it before PEFT wraps the model, with ``modules_to_save=["coord_offset_adapter"]`` there.

    Args:
        model: a causal language model, tied or untied.
        coord_ids: ids to adapt: a range, ``{"start": a, "end": b}`` (both included) or a list;
            None for Qwen3-VL's 151670..152669.
        tie_head: one table for embedding and head (DESIGN 3.10), or two.
        dtype: of the tables; ``auto`` takes the embedding's.
        tokenizer: if given, the ids must be its coord tokens (and added structure tokens), no others.

    Returns:
        The adapter, which is now ``model.coord_offset_adapter``.

    Raises:
        TokenizerError: if an id lies outside the table, or is no coordinate token of ``tokenizer``.
        ValueError: if the model already has an adapter, or has no head.
    """
    if ADAPTER_NAME in dict(model.named_children()):
        raise ValueError("the model already has a coord_offset_adapter; install it once, before PEFT wraps the model")
    embedding, head = (module.get_parameter("weight") for module in _embedding_and_head(model))
    ids = checked_ids(DEFAULT_COORD_IDS if coord_ids is None else coord_ids, num_rows=embedding.shape[0])
    if tokenizer is not None:
        check_tokens(ids, tokenizer)
    adapter = CoordOffsetAdapter(
        ids,
        hidden_size=embedding.shape[1],
        tie_head=tie_head,
        dtype=_dtype(dtype, like=embedding),
        device=embedding.device,
    )
    embedding.requires_grad_(False)
    head.requires_grad_(False)
    model.add_module(ADAPTER_NAME, adapter)
    _attach_hooks(model)
    return adapter


def reattach_coord_offset_hooks(model: nn.Module) -> CoordOffsetAdapter | None:
    """Make sure that the present embedding and head carry the hooks, once each.

    Hooks find the adapter when they run, so PEFT's wrapping needs nothing; a replaced embedding
    module (``set_input_embeddings``) does. Safe to call at any time.

    Returns:
        The adapter that is active now, or None if the model has none.
    """
    owner = inner_model(model)
    if ADAPTER_NAME in dict(owner.named_children()):
        _attach_hooks(owner)
    return active_offset(owner)


def active_offset(model: nn.Module) -> CoordOffsetAdapter | None:
    """Return the adapter that acts, and trains, now: PEFT's active copy, seen through any wrapper.

    None without an adapter. Under ``disable_adapter()`` it is the one of the base model, at zero.
    """
    module = dict(inner_model(model).named_children()).get(ADAPTER_NAME)
    if isinstance(module, ModulesToSaveWrapper):
        active = list(module.active_adapters)
        trained = not module.disable_adapters and bool(active) and active[0] in module.modules_to_save
        module = module.modules_to_save[active[0]] if trained else module.original_module
    if module is None or isinstance(module, CoordOffsetAdapter):
        return module
    raise TypeError(f"{ADAPTER_NAME} is a {type(module).__name__}, expected a CoordOffsetAdapter")


def head_offset_table(adapter: CoordOffsetAdapter) -> Tensor:
    """Return the ``[K, D]`` table that acts on the head: the shared one when tied."""
    return adapter.embed_offset if adapter.head_offset is None else adapter.head_offset


def inner_model(model: nn.Module) -> PreTrainedModel:
    """Return the Hugging Face model inside PEFT, DDP, DeepSpeed or ``torch.compile`` wrappers."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            return module
    raise TypeError(f"{type(model).__name__} holds no Hugging Face model")


@dataclass(eq=False)
class _EmbeddingHook:
    """Knows the model, not the adapter: PEFT copies the adapter, and the copy is what trains."""

    owner: PreTrainedModel

    def __call__(
        self, module: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor], output: Tensor
    ) -> Tensor:
        adapter = active_offset(self.owner)
        return output if adapter is None else adapter.add_to_embeddings(output, _input(args, kwargs))


@dataclass(eq=False)
class _HeadHook:
    """The same at the head."""

    owner: PreTrainedModel

    def __call__(
        self, module: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor], output: Tensor
    ) -> Tensor:
        hidden = _input(args, kwargs)
        if output is hidden:  # the head is bypassed (model.head_bypass): these are hidden states, not logits
            return output
        adapter = active_offset(self.owner)
        return output if adapter is None else adapter.add_to_logits(output, hidden)


class _AddToColumns(torch.autograd.Function):
    """In-place addition to some columns, whose backward neither clones nor fills ``[T, V]``."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, logits_TV: Tensor, delta_TK: Tensor, columns: slice | Tensor
    ) -> Tensor:
        if isinstance(columns, slice):
            logits_TV[..., columns].add_(delta_TK)
        else:
            logits_TV[..., columns] = (logits_TV[..., columns] + delta_TK).to(logits_TV.dtype)
        ctx.mark_dirty(logits_TV)
        ctx.columns, ctx.delta_dtype = columns, delta_TK.dtype  # pyright: ignore[reportAttributeAccessIssue]
        return logits_TV

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad_TV,) = grad_outputs
        grad_TK = grad_TV[..., ctx.columns]  # pyright: ignore[reportAttributeAccessIssue]
        return grad_TV, grad_TK.to(ctx.delta_dtype), None  # pyright: ignore[reportAttributeAccessIssue]


def _input(args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor]) -> Tensor:
    return args[0] if args else kwargs["input"]


def _attach_hooks(owner: PreTrainedModel) -> None:
    embedding, head = _embedding_and_head(owner)
    for module, hook in ((embedding, _EmbeddingHook(owner)), (head, _HeadHook(owner))):
        present = module._forward_hooks.values()  # pyright: ignore[reportPrivateUsage] - torch has no public list
        if not any(type(other) is type(hook) for other in present):
            module.register_forward_hook(hook, with_kwargs=True)


def _embedding_and_head(model: PreTrainedModel) -> tuple[nn.Module, nn.Module]:
    head = model.get_output_embeddings()
    if head is None:
        raise ValueError(f"{type(model).__name__} has no output embeddings; expected a causal language model")
    return model.get_input_embeddings(), head


def _dtype(name: DTypeName | torch.dtype, *, like: Tensor) -> torch.dtype:
    if isinstance(name, torch.dtype):
        return name
    return {"auto": like.dtype, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def _refuse_other_ids(module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str, *_unused: object) -> None:
    saved = state_dict.get(f"{prefix}coord_ids")
    here = dict(module.named_buffers())["coord_ids"]
    if saved is not None and saved.tolist() != here.tolist():
        raise TokenizerError(
            f"the saved coord offsets are for {_span(saved)}, the installed adapter has {_span(here)}; "
            "load them on the vocabulary they were trained on"
        )


def _span(ids: Tensor) -> str:
    return f"{ids.numel()} ids {int(ids.min())}..{int(ids.max())}"

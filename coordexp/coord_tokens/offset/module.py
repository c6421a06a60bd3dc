"""The trained tables of the coord-offset adapter, and what they add to embeddings and logits.

Shapes: K listed ids, D hidden, V vocabulary, T tokens (any leading shape).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from coordexp.errors import CheckpointError, TokenizerError


class CoordOffsetAdapter(nn.Module):
    """Trained offsets of the listed ids. They start at zero, so that installing the adapter changes nothing.

    Attributes:
        coord_ids: ``[K]`` int64 buffer. It is saved with the offsets, so that a checkpoint says what its rows mean.
        embed_offset: ``[K, D]`` added to embeddings, and to the head if ``tie_head``.
        head_offset: ``[K, D]`` added to the head; None if ``tie_head``.
        listed_ids: the same ids as ``coord_ids`` on the host: to read them, nobody waits for the device.
        first_id: the first id if the ids are contiguous and ascending, otherwise None.
        adopts_dtype: whether loaded tables keep the dtype they were saved in.
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
        adopts_dtype: bool = False,
    ) -> None:
        """Make zero tables.

        Args:
            coord_ids: the K ids to adapt, in the order of the rows.
            hidden_size: D.
            tie_head: whether embedding and head share one table.
            dtype: dtype of the tables.
            device: where the tables are made.
            adopts_dtype: whether loaded tables keep the dtype they were saved in.
        """
        super().__init__()
        self.listed_ids = tuple(coord_ids)
        self.adopts_dtype = adopts_dtype
        are_contiguous = self.listed_ids == tuple(range(coord_ids[0], coord_ids[0] + len(coord_ids)))
        self.first_id: int | None = coord_ids[0] if are_contiguous else None
        self.register_buffer("coord_ids", torch.tensor(self.listed_ids, dtype=torch.int64, device=device))
        self._seen_ids = self.coord_ids
        shape = (len(coord_ids), hidden_size)
        self.embed_offset = nn.Parameter(torch.zeros(shape, dtype=dtype, device=device))
        self.head_offset = None if tie_head else nn.Parameter(torch.zeros(shape, dtype=dtype, device=device))
        self.register_load_state_dict_pre_hook(_prepare_to_load)

    @property
    def tie_head(self) -> bool:
        return self.head_offset is None

    @property
    def num_ids(self) -> int:
        return self.embed_offset.shape[0]

    def add_to_embeddings(self, embeddings_TD: Tensor, ids_T: Tensor) -> Tensor:
        """Return the embeddings with the offsets of listed ids added; rows of other ids stay equal bit for bit.

        Every token looks up the table, listed or not. So the table is in the graph of every rank and microbatch, even
        of one without coordinates: DDP without ``find_unused_parameters`` would otherwise wait for its gradient
        forever.

        Args:
            embeddings_TD: ``[..., D]`` rows of the frozen table.
            ids_T: ``[...]`` the ids they were looked up for.
        """
        self._check_replaced_ids()
        is_listed_T, rows_T = self._rows_of(ids_T)
        shifted_TD = (embeddings_TD + F.embedding(rows_T, self.embed_offset)).to(embeddings_TD.dtype)
        return torch.where(is_listed_T.unsqueeze(-1), shifted_TD, embeddings_TD)

    def add_to_logits(self, logits_TV: Tensor, hidden_TD: Tensor) -> Tensor:
        """Add ``hidden @ offset^T`` to the listed columns of ``logits_TV``, in place, and return it.

        The product has the widest dtype of the three. Evaluation takes float32 logits from a bfloat16 head
        (``model.head_bypass``); a bfloat16 product would then round the coord columns and no others.

        Args:
            logits_TV: ``[..., V]`` logits of the frozen head.
            hidden_TD: ``[..., D]`` hidden states they were computed from.
        """
        self._check_replaced_ids()
        table_KD = head_offset_table(self)
        dtype = torch.promote_types(torch.promote_types(hidden_TD.dtype, table_KD.dtype), logits_TV.dtype)
        delta_TK = F.linear(hidden_TD.to(dtype), table_KD.to(dtype))
        columns: slice | Tensor = self.coord_ids
        if self.first_id is not None:  # a slice is added in place, without a copy of the columns
            columns = slice(self.first_id, self.first_id + self.num_ids)
        return _AddToColumns.apply(logits_TV, delta_TK, columns)

    def check_ids(self, ids_K: Tensor) -> None:
        """Raise a TokenizerError if saved offsets were trained for other ids than those of this adapter."""
        if tuple(ids_K.tolist()) != self.listed_ids:
            raise TokenizerError(
                f"the saved coord offsets are for {_span(ids_K.tolist())}, the installed adapter has "
                f"{_span(self.listed_ids)}; load them on the vocabulary they were trained on"
            )

    def _check_replaced_ids(self) -> None:
        """Check ids once that were put here without ``load_state_dict``.

        The loader of transformers assigns buffers directly, so that no load hook sees them. A buffer that is another
        object than last time was loaded.
        """
        if self.coord_ids is not self._seen_ids:
            self.check_ids(self.coord_ids)
            self._seen_ids = self.coord_ids

    def extra_repr(self) -> str:
        """Describe the tables for ``print(model)``."""
        return f"num_ids={self.num_ids}, hidden_size={self.embed_offset.shape[1]}, tie_head={self.tie_head}"

    def _rows_of(self, ids_T: Tensor) -> tuple[Tensor, Tensor]:
        """Return for each id whether it is listed, and its row of the table (any valid row if it is not)."""
        if self.first_id is not None:
            rows_T = ids_T - self.first_id
            return (rows_T >= 0) & (rows_T < self.num_ids), rows_T.clamp(0, self.num_ids - 1)
        sorted_K, order_K = self.coord_ids.sort()
        place_T = torch.searchsorted(sorted_K, ids_T).clamp(max=self.num_ids - 1)
        return sorted_K[place_T] == ids_T, order_K[place_T]


def head_offset_table(adapter: CoordOffsetAdapter) -> Tensor:
    """Return the ``[K, D]`` table that acts on the head: the shared one when tied."""
    return adapter.embed_offset if adapter.head_offset is None else adapter.head_offset


def head_offset_block(adapter: CoordOffsetAdapter, *, first_id: int, num_ids: int) -> Tensor:
    """Return what the adapter adds to the rows of the head from ``first_id`` on, for :mod:`coordexp.losses.head`.

    Args:
        adapter: none of its ids is below ``first_id``.
        first_id: id of the first row.
        num_ids: least number of rows.

    Returns:
        ``[K, D]``, zeros for ids that are not listed. K is ``num_ids``, or more if ids behind these are listed.
    """
    table_KD = head_offset_table(adapter)
    if adapter.first_id == first_id and adapter.num_ids >= num_ids:
        return table_KD
    num_rows = max(num_ids, max(adapter.listed_ids) + 1 - first_id)
    block_KD = table_KD.new_zeros(num_rows, table_KD.shape[1])
    return block_KD.index_copy(0, adapter.coord_ids - first_id, table_KD)


def check_tables(adapter: nn.Module, state_dict: Mapping[str, Tensor], *, prefix: str) -> None:
    """Raise a CheckpointError if loading would put one table into two, or two tables into one."""
    if f"{prefix}embed_offset" not in state_dict and f"{prefix}head_offset" not in state_dict:
        return
    saved_tied = f"{prefix}head_offset" not in state_dict
    tied = len(list(adapter.parameters())) == 1
    if saved_tied != tied:
        raise CheckpointError(
            f"the saved coord offsets have tie_head: {str(saved_tied).lower()}, the installed adapter has "
            f"{str(tied).lower()}; install it as they were trained"
        )


class _AddToColumns(torch.autograd.Function):
    """In-place addition to some columns.

    Autograd's own backward of a sliced in-place addition clones the ``[T, V]`` gradient; this one reads it.
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, logits_TV: Tensor, delta_TK: Tensor, columns: slice | Tensor
    ) -> Tensor:
        """Add ``delta_TK`` to the columns of ``logits_TV``, which is changed and returned."""
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


def _prepare_to_load(module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str, *_unused: object) -> None:
    """Refuse offsets that were trained for other ids, and take over the saved dtype if none was asked for."""
    assert isinstance(module, CoordOffsetAdapter)
    check_tables(module, state_dict, prefix=prefix)
    saved_ids = state_dict.get(f"{prefix}coord_ids")
    if saved_ids is not None:
        module.check_ids(saved_ids)
    for name, table in module.named_parameters():
        saved = state_dict.get(f"{prefix}{name}")
        # With dtype "auto", a saved float32 table of a bfloat16 model would otherwise be rounded silently.
        if module.adopts_dtype and saved is not None:
            table.data = table.data.to(saved.dtype)


def _span(ids: Sequence[int]) -> str:
    return f"{len(ids)} ids {min(ids)}..{max(ids)}"

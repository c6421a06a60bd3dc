"""The rows in which answers are written, a token of each at a step; a row takes the next image when its answer ends.

Every row has its own length: a batch that waits for its longest answer computes mostly padding. Nothing here waits for
the device but :meth:`AnswerRows.ended` and :meth:`AnswerRows.take`.

Shapes: B rows, N of them, H heads of keys, Q of queries, D their size, L columns of keys and values, T tokens of an
answer, V vocabulary, K bins, S statistics.
"""

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import Cache, DynamicLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from coordexp.coord_tokens.grammar.constrain import ObjectGrammar, State
from coordexp.data.patches import upload
from coordexp.evaluate.generate.answer import Answer, finish_answer, read_raw_logits
from coordexp.evaluate.generate.model import AnsweringModel

_STRIDE = 64  # columns by which buffers grow
_ATTENTION = "coordexp_rows"


class _RowLayer(DynamicLayer):
    """Keys and values of one layer: a step writes a column of each row, and reads those that are in use."""

    def __init__(self, rows: "AnswerRows") -> None:
        super().__init__()
        self._rows = rows

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Write ``[B, H, 1, D]``, and return ``[B, H, width, D]``."""
        row_B, column_B, width = self._rows.row_B, self._rows.column_B, self._rows.width
        keys, values = self.tables
        # Under autocast keys are float32, made so by the rotary embedding, and so is a cache that began with them.
        keys[row_B, :, column_B] = key_states[:, :, 0].to(keys.dtype)
        values[row_B, :, column_B] = value_states[:, :, 0].to(values.dtype)
        return keys[:, :, :width], values[:, :, :width]

    @property
    def tables(self) -> tuple[Tensor, Tensor]:
        """Keys and values, ``[B, H, L, D]``."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def put(self, row_N: Tensor, prompt: DynamicLayer, *, num_rows: int) -> None:
        """Take over the ``[N, H, L, D]`` of prompts, from the first column on."""
        assert prompt.keys is not None
        assert prompt.values is not None
        if self.keys is None:
            self.keys, self.values = (new.new_zeros(num_rows, *new.shape[1:]) for new in (prompt.keys, prompt.values))
            self.is_initialized = True
        columns = prompt.keys.shape[2]
        self.widen(columns)
        keys, values = self.tables
        keys[row_N, :, :columns] = prompt.keys
        values[row_N, :, :columns] = prompt.values

    def widen(self, columns: int) -> None:
        """Make room for this many columns; new ones are zero, since masked values must still be finite."""
        self.keys, self.values = (_widened(table, 2, columns) for table in self.tables)

    def keep(self, row_N: Tensor) -> None:
        self.keys, self.values = (table[row_N] for table in self.tables)


@dataclass
class _InRow:
    """What the host knows of the answer in a row."""

    image_id: int
    prompt: int  # its tokens
    began: int  # the step before its first one
    keeps_probs: bool
    probs: list[Tensor] = field(default_factory=list[Tensor])  # [K] a step


class AnswerRows:
    """Rows that answers are written in.

    Used in turns: :meth:`begin` with prompts that the model has read and :meth:`choose` their first tokens; then
    :meth:`next_inputs` and :meth:`choose` for all rows, again and again; :meth:`take` what :meth:`ended`.

    Attributes:
        row_B: ``[B]`` 0 to B - 1.
        column_B: ``[B]`` the column of each row where its next keys and values go, the same in every layer.
        width: columns that any row uses.
        limit: most tokens of an answer, the end token included.
    """

    def __init__(
        self, num_rows: int, answering: AnsweringModel, *, grammar: ObjectGrammar | None, max_new_tokens: int
    ) -> None:
        """Begin with empty rows; the tables of the grammar are where the logits are."""
        self._grammar, self.limit, self._number_ids = grammar, max_new_tokens, answering.answers.number_ids
        self._end_id, self._pad_id = answering.answers.end_id, answering.pad_id
        self._in_row: list[_InRow | None] = [None] * num_rows
        self._num_steps = 0
        none_B = torch.zeros(num_rows, dtype=torch.int64, device=answering.device)
        self.row_B, self.column_B, self.width = torch.arange(num_rows, device=answering.device), none_B, 0
        self._layers: list[_RowLayer] = []
        self._prompt_B, self._position_B = none_B, none_B.clone()
        self._num_written_B, self._state_B = none_B.clone(), none_B.clone()
        self._is_open_B, self._is_unforced_B = none_B.bool(), none_B.bool()
        self._ids_BT = none_B.unsqueeze(1)[:, :0]
        self._values_BTS: Tensor | None = None

    @property
    def free(self) -> list[int]:
        return [row for row, one in enumerate(self._in_row) if one is None]

    @property
    def used(self) -> list[int]:
        """Rows whose answers have not been taken."""
        return [row for row, one in enumerate(self._in_row) if one is not None]

    def __len__(self) -> int:
        return len(self._in_row)

    def begin(
        self,
        image_ids: Sequence[int],
        prompt: Cache | None,
        *,
        lengths: Sequence[int],
        positions: Sequence[int],
        keep_probs: Sequence[bool],
    ) -> list[int]:
        """Put prompts into the first free rows, and return these.

        ``prompt``: their keys and values, padded on the right; None where the caller keeps them. ``lengths``: tokens of
        each. ``positions``: the rotary position of the first token of each answer.
        """
        rows = self.free[: len(image_ids)]
        row_N = self._on_device(rows)
        read = [] if prompt is None else prompt.layers
        self._layers = self._layers or [_RowLayer(self) for _ in read]
        for layer, new in zip(self._layers, read, strict=True):
            assert isinstance(new, DynamicLayer)
            layer.put(row_N, new, num_rows=len(self))
        self._prompt_B[row_N] = self._on_device(lengths)
        self._position_B[row_N] = self._on_device(positions)
        # A number put by tensors of indices would be copied to the device while the host waits.
        self._num_written_B.index_fill_(0, row_N, 0)
        self._state_B.index_fill_(0, row_N, int(State.START))
        self._is_open_B.index_fill_(0, row_N, True)
        self._is_unforced_B.index_fill_(0, row_N, self._grammar is not None)
        for row, image_id, length, keeps in zip(rows, image_ids, lengths, keep_probs, strict=True):
            self._in_row[row] = _InRow(image_id, length, self._num_steps, keeps)
        return rows

    def choose(self, logits_NV: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        """Choose the next token of each row by raw logits, record what they say of it, and return its id ``[N]``.

        ``rows``: those that have begun since the last step; None for all rows.
        """
        row_N = self.row_B if rows is None else self._on_device(rows)
        logits_NV = logits_NV.float()
        state_N, at_N, is_open_N = self._state_B[row_N], self._num_written_B[row_N], self._is_open_B[row_N]
        allowed_NV = logits_NV
        if self._grammar is not None:
            allowed_NV = logits_NV.where(self._grammar.allowed_SV[state_N], -torch.inf)
        id_N = allowed_NV.argmax(dim=1).where(is_open_N, self._pad_id)
        values_SN, p_NK = read_raw_logits(logits_NV, id_N, self._number_ids)
        if self._values_BTS is None:
            self._values_BTS = values_SN.new_zeros(len(self), 0, len(values_SN))
        columns = 1 + max(self._num_chosen(one) for one in self._in_row if one is not None)
        self._ids_BT, self._values_BTS = (_widened(table, 1, columns) for table in (self._ids_BT, self._values_BTS))
        # A row that has ended stays where it is, and writes padding behind its end again and again.
        self._ids_BT[row_N, at_N], self._values_BTS[row_N, at_N] = id_N, values_SN.T
        if p_NK is not None:
            for at, row in enumerate(range(len(self)) if rows is None else rows):
                one = self._in_row[row]
                if one is not None and one.keeps_probs:
                    one.probs.append(p_NK[at].clone())
        if self._grammar is not None:
            self._state_B[row_N] = self._grammar.advance(state_N, id_N)
            is_own_N = (id_N == logits_NV.argmax(dim=1)) | ~is_open_N
            self._is_unforced_B[row_N] = self._is_unforced_B[row_N] & is_own_N
        self._num_written_B[row_N] = at_N + is_open_N
        goes_on_N = (id_N != self._end_id) & (id_N != self._pad_id) & (at_N + 1 < self.limit)
        self._is_open_B[row_N] = is_open_N & goes_on_N
        return id_N

    def end_step(self) -> None:
        self._num_steps += 1

    def next_inputs(self) -> dict[str, object]:
        """Return what the model is given to predict the next token of every row, under :func:`row_attention`."""
        self.end_step()
        last_B = (self._num_written_B - 1).clamp(min=0)
        self.width = max(one.prompt + self._num_chosen(one) - 1 for one in self._in_row if one is not None)
        self.column_B = (self._prompt_B + last_B).clamp(max=self.width - 1)  # unused rows may be longer
        sees_BL = torch.arange(self.width, device=last_B.device) <= self.column_B.unsqueeze(1)
        for layer in self._layers:
            layer.widen(self.width)
        return {
            "input_ids": self._ids_BT.gather(1, last_B.unsqueeze(1)),
            "position_ids": (self._position_B + last_B).view(1, -1, 1).expand(3, -1, -1),
            "attention_mask": sees_BL[:, None, None],
            "past_key_values": Cache(layers=list(self._layers)),
            "use_cache": True,
        }

    def ended(self) -> list[int]:
        """Return the rows whose answers have ended; waits for the device."""
        is_open = self._is_open_B.tolist()
        return [row for row in self.used if not is_open[row]]

    def take(self, rows: Sequence[int]) -> list[Answer]:
        """Return the answers of some rows, and free them; waits for the device."""
        row_N = self._on_device(rows)
        assert self._values_BTS is not None
        lengths, unforced = torch.stack((self._num_written_B[row_N], self._is_unforced_B[row_N])).tolist()
        columns = max(lengths, default=0)
        ids_NT = self._ids_BT[row_N, :columns].tolist()
        values_NTS = self._values_BTS[row_N, :columns].cpu()
        found: list[Answer] = []
        for at, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            one, self._in_row[row] = self._in_row[row], None
            assert one is not None
            found.append(
                finish_answer(
                    one.image_id,
                    ids_NT[at][:length],
                    values_NTS[at, :length].T,
                    stop_ids=(self._end_id, self._pad_id),
                    probs_TK=torch.stack(one.probs[:length]).cpu() if one.probs else None,
                    unforced=bool(unforced[at]),
                )
            )
        return found

    def keep_used(self) -> None:
        """Drop unused rows."""
        rows = self.used
        row_N = self._on_device(rows)
        for layer in self._layers:
            layer.keep(row_N)
        self._in_row = [self._in_row[row] for row in rows]
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value[row_N])
        self.row_B = torch.arange(len(rows), device=row_N.device)

    def _num_chosen(self, one: _InRow) -> int:
        """Return how many tokens a row has once the present step is done, those behind an unseen end included."""
        return min(self._num_steps - one.began + 1, self.limit)

    def _on_device(self, numbers: Sequence[int]) -> Tensor:
        return upload(torch.tensor(numbers, dtype=torch.int64), self.row_B.device)


@contextlib.contextmanager
def row_attention(language_model: nn.Module) -> Generator[None]:
    """Have a model attend from the one new token of each row, whatever its own attention is.

    Query heads that share keys become the queries of one head, so that no key is copied for each of them, as the
    attention of transformers 5.17 does; and a mask by row goes with any implementation.
    """
    config = language_model.config
    kept = config._attn_implementation  # pyright: ignore
    config._attn_implementation = _ATTENTION  # pyright: ignore
    try:
        yield
    finally:
        config._attn_implementation = kept  # pyright: ignore


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    scaling: float,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Return ``[B, 1, Q, D]`` of queries ``[B, Q, 1, D]`` and keys ``[B, H, L, D]``; ``[B, 1, 1, L]`` says which."""
    num_rows, num_queries, _, size = query.shape
    grouped = query.view(num_rows, key.shape[1], num_queries // key.shape[1], size)
    attended = F.scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
    return attended.reshape(num_rows, 1, num_queries, size), None


ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attend)


def _widened(table: Tensor, dim: int, size: int) -> Tensor:
    """Return a table with room for ``size`` along ``dim``, zero where it is new; itself where it has that."""
    missing = size - table.shape[dim]
    if missing <= 0:
        return table
    missing += -size % _STRIDE
    padding = [0, 0] * (table.ndim - 1 - dim) + [0, missing]
    return F.pad(table, padding)

"""The rows in which answers are written. Each step writes a token in every row.

When an answer ends, its row takes the next image. So rows have different lengths; a batch that waited for its longest
answer would compute mostly padding. One row's life::

              begin(prompt)            choose(logits)              choose, end token or limit
      free  ------------------>  begun  ------------->  writing  -------------------------->  ended
        ^                                               |    ^                                  |
        |                                               +----+ next_inputs, choose              |
        +------------------------------------- take ------------------------------------------- +

The host steers by a number that it knows without asking the device: how many steps each row has had. What only the
device knows (tokens, which answers have ended) stays there, in a :class:`~.row_state.RowState`. Only
:meth:`AnswerRows.ended` and :meth:`AnswerRows.take` wait for the device, and the caller uses them every few steps. In
between, a row whose answer has ended is fed padding, which costs less than asking.

Shapes: B rows, N of them, L columns of keys and values, T tokens of an answer, V vocabulary, K bins, S statistics.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import Cache, DynamicLayer

from coordexp.coord_tokens.grammar.constrain import ObjectGrammar
from coordexp.data.images.patches import upload
from coordexp.evaluate.generate.answer import Answer, finish_answer, read_raw_logits
from coordexp.evaluate.generate.model import AnsweringModel
from coordexp.evaluate.generate.row_cache import NextColumns, RowLayer, cache_argument
from coordexp.evaluate.generate.row_state import RowState


@dataclass
class _HeldAnswer:
    """What the host knows of the answer in a row."""

    image_id: int
    prompt_length: int
    step_before: int  # the number of the step before its first token
    keeps_probs: bool
    probs: list[Tensor] = field(default_factory=list[Tensor])  # a distribution [K] for each step


class AnswerRows:
    """Rows in which answers are written.

    A caller takes turns: it calls :meth:`begin` with prompts that the model has read, and :meth:`choose` for their
    first tokens; then :meth:`next_inputs` and :meth:`choose` for all rows, again and again; and :meth:`take` for the
    rows of :meth:`ended`.

    Attributes:
        state: the state of the answers, on the device.
        limit: most tokens of an answer, the end token included.
    """

    def __init__(
        self, num_rows: int, answering: AnsweringModel, *, grammar: ObjectGrammar | None, max_new_tokens: int
    ) -> None:
        """Begin with empty rows.

        Args:
            num_rows: rows.
            answering: the model.
            grammar: constrains the answers, on the model's device; None for free decoding.
            max_new_tokens: length limit of an answer, the end token included.
        """
        self.state = RowState.empty(num_rows, answering.device)
        self.limit = max_new_tokens
        self._grammar = grammar
        self._number_ids = answering.answers.number_ids
        self._end_id = answering.answers.end_id
        self._pad_id = answering.pad_id
        self._held: list[_HeldAnswer | None] = [None] * num_rows
        self._num_steps = 0
        row_B = torch.arange(num_rows, device=answering.device)
        self._next = NextColumns(row_B, torch.zeros_like(row_B))
        self._layers: list[RowLayer] = []

    @property
    def free(self) -> list[int]:
        """Rows that can take an image."""
        return [row for row, answer in enumerate(self._held) if answer is None]

    @property
    def used(self) -> list[int]:
        """Rows whose answers have not been taken."""
        return [row for row, answer in enumerate(self._held) if answer is not None]

    def __len__(self) -> int:
        return len(self._held)

    def begin(
        self,
        image_ids: Sequence[int],
        prompt: Cache | None,
        *,
        lengths: Sequence[int],
        positions: Sequence[int],
        keep_probs: Sequence[bool],
    ) -> list[int]:
        """Put prompts into the first free rows.

        Args:
            image_ids: one for each prompt.
            prompt: keys and values of the prompts, padded on the right; None if the caller keeps them.
            lengths: tokens of each prompt.
            positions: the rotary position of the first token of each answer.
            keep_probs: whether to keep the bin distributions, for each answer.

        Returns:
            The rows, in the order of the prompts.
        """
        rows = self.free[: len(image_ids)]
        row_N = self._on_device(rows)
        if prompt is not None:
            self._take_over(row_N, prompt)
        self.state.begin(
            row_N,
            lengths_N=self._on_device(lengths),
            positions_N=self._on_device(positions),
            has_grammar=self._grammar is not None,
        )
        for row, image_id, length, keeps in zip(rows, image_ids, lengths, keep_probs, strict=True):
            self._held[row] = _HeldAnswer(image_id, length, self._num_steps, keeps)
        return rows

    def _take_over(self, row_N: Tensor, prompt: Cache) -> None:
        """Copy the keys and values of prompts into their rows, layer by layer."""
        if not self._layers:
            self._layers = [RowLayer(self._next) for _ in prompt.layers]
        for layer, read_layer in zip(self._layers, prompt.layers, strict=True):
            assert isinstance(read_layer, DynamicLayer)
            layer.put(row_N, read_layer, num_rows=len(self))

    def choose(self, logits_NV: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        """Choose the next token of each row, and record the statistics of its logits.

        Args:
            logits_NV: ``[N, V]`` raw logits.
            rows: the rows that have begun since the last step; None for all rows.

        Returns:
            ``[N]`` ids. A row whose answer has ended gets padding.
        """
        row_N = self._next.row_B if rows is None else self._on_device(rows)
        logits_NV = logits_NV.float()
        id_N = self._allowed(logits_NV, row_N).argmax(dim=1).where(self.state.is_open_B[row_N], self._pad_id)

        statistics_SN, probs_NK = read_raw_logits(logits_NV, id_N, self._number_ids)
        if probs_NK is not None:
            self._keep_probs(probs_NK, range(len(self)) if rows is None else rows)
        if self._grammar is not None:
            self._follow_grammar(self._grammar, row_N, id_N, preferred_N=logits_NV.argmax(dim=1))

        # Room for the longest answer so far, which the host counts in steps, and for the padding behind its end.
        num_tokens = 1 + max(self._num_chosen(answer) for answer in self._held if answer is not None)
        self.state.make_room(num_tokens, num_statistics=len(statistics_SN), like=statistics_SN)
        is_last_N = self.state.num_written_B[row_N] + 1 >= self.limit
        ends_N = (id_N == self._end_id) | (id_N == self._pad_id) | is_last_N
        self.state.write(row_N, id_N, statistics_SN, ends_N=ends_N)
        return id_N

    def _allowed(self, logits_NV: Tensor, row_N: Tensor) -> Tensor:
        """Return the logits, at minus infinity for tokens that the grammar forbids."""
        if self._grammar is None:
            return logits_NV
        return logits_NV.where(self._grammar.allowed_SV[self.state.grammar_state_B[row_N]], -torch.inf)

    def _follow_grammar(self, grammar: ObjectGrammar, row_N: Tensor, id_N: Tensor, *, preferred_N: Tensor) -> None:
        """Advance each row's grammar, and note the rows in which it forbade the token that the model preferred."""
        state = self.state
        state.grammar_state_B[row_N] = grammar.advance(state.grammar_state_B[row_N], id_N)
        # A row whose answer has ended gets padding, which is not the grammar's doing.
        is_preferred_N = (id_N == preferred_N) | ~state.is_open_B[row_N]
        state.is_unforced_B[row_N] = state.is_unforced_B[row_N] & is_preferred_N

    def _keep_probs(self, probs_NK: Tensor, rows: Sequence[int]) -> None:
        for index, row in enumerate(rows):
            answer = self._held[row]
            if answer is not None and answer.keeps_probs:
                answer.probs.append(probs_NK[index].clone())

    def end_step(self) -> None:
        """Count a step. :meth:`next_inputs` calls it; a caller that feeds the model in another way must call it too."""
        self._num_steps += 1

    def next_inputs(self) -> dict[str, object]:
        """Return the inputs with which the model predicts the next token of every row, under ``row_attention``.

        They are the last token of each row, its position, and a mask that hides the columns behind the row's own.
        """
        self.end_step()
        state = self.state
        columns = self._next
        last_B = (state.num_written_B - 1).clamp(min=0)
        columns.width = max(
            answer.prompt_length + self._num_chosen(answer) - 1 for answer in self._held if answer is not None
        )
        # An unused row may be longer than every used one. What it writes is never read, so it may write anywhere.
        columns.column_B = (state.prompt_length_B + last_B).clamp(max=columns.width - 1)
        sees_BL = torch.arange(columns.width, device=last_B.device) <= columns.column_B.unsqueeze(1)
        for layer in self._layers:
            layer.widen(columns.width)
        return {
            "input_ids": state.ids_BT.gather(1, last_B.unsqueeze(1)),
            "position_ids": (state.first_position_B + last_B).view(1, -1, 1).expand(3, -1, -1),
            "attention_mask": sees_BL[:, None, None],
            "use_cache": True,
            **cache_argument(self._layers),
        }

    def ended(self) -> list[int]:
        """Return the rows whose answers have ended; waits for the device."""
        is_open = self.state.is_open_B.tolist()
        return [row for row in self.used if not is_open[row]]

    def take(self, rows: Sequence[int]) -> list[Answer]:
        """Return the answers of some rows, and free them; waits for the device."""
        state = self.state
        row_N = self._on_device(rows)
        assert state.statistics_BTS is not None, "a token was chosen"
        # One copy from the device for both columns.
        lengths, unforced = torch.stack((state.num_written_B[row_N], state.is_unforced_B[row_N])).tolist()
        longest = max(lengths, default=0)
        ids_NT = state.ids_BT[row_N, :longest].tolist()
        statistics_NTS = state.statistics_BTS[row_N, :longest].cpu()

        answers: list[Answer] = []
        for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            held = self._held[row]
            assert held is not None
            self._held[row] = None
            answer = finish_answer(
                held.image_id,
                ids_NT[index][:length],
                statistics_NTS[index, :length].T,
                stop_ids=(self._end_id, self._pad_id),
                probs_TK=torch.stack(held.probs[:length]).cpu() if held.probs else None,
                unforced=bool(unforced[index]),
            )
            answers.append(answer)
        return answers

    def keep_used(self) -> None:
        """Drop unused rows: near the end of a queue, when no image waits for them, they would only cost time."""
        rows = self.used
        row_N = self._on_device(rows)
        for layer in self._layers:
            layer.keep(row_N)
        self._held = [self._held[row] for row in rows]
        self.state = self.state.kept(row_N)
        self._next.column_B = self._next.column_B[row_N]
        self._next.row_B = torch.arange(len(rows), device=row_N.device)

    def _num_chosen(self, answer: _HeldAnswer) -> int:
        """Return how many tokens a row has after the present step, padding behind an end not yet seen included."""
        return min(self._num_steps - answer.step_before + 1, self.limit)

    def _on_device(self, numbers: Sequence[int]) -> Tensor:
        return upload(torch.tensor(numbers, dtype=torch.int64), self._next.row_B.device)

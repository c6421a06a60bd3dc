"""What the device knows of the answers in rows: tensors with an entry for each row, and the few ways to change them.

The host never reads these tensors while answers are written: each read would wait for the device.

Shapes: B rows, N of them, T tokens of an answer, S statistics.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from coordexp.coord_tokens.grammar.constrain import State
from coordexp.evaluate.generate.row_cache import widened


@dataclass
class RowState:
    """The answers in all rows.

    Attributes:
        prompt_length_B: ``[B]`` tokens of the prompt.
        first_position_B: ``[B]`` the rotary position of the first token of the answer.
        num_written_B: ``[B]`` tokens of the answer so far; constant once the answer has ended.
        grammar_state_B: ``[B]`` the state of the grammar after the tokens so far.
        is_open_B: ``[B]`` bool, the answer has not ended.
        is_unforced_B: ``[B]`` bool, there is a grammar and it never forbade what the model preferred.
        ids_BT: ``[B, T]`` tokens, followed by padding.
        statistics_BTS: ``[B, T, S]`` statistics of the raw logits at each token; None before the first token.
    """

    prompt_length_B: Tensor
    first_position_B: Tensor
    num_written_B: Tensor
    grammar_state_B: Tensor
    is_open_B: Tensor
    is_unforced_B: Tensor
    ids_BT: Tensor
    statistics_BTS: Tensor | None = None

    @classmethod
    def empty(cls, num_rows: int, device: torch.device) -> "RowState":
        """Return rows in which no answer has begun."""

        def zeros() -> Tensor:
            return torch.zeros(num_rows, dtype=torch.int64, device=device)

        return cls(
            prompt_length_B=zeros(),
            first_position_B=zeros(),
            num_written_B=zeros(),
            grammar_state_B=zeros(),
            is_open_B=zeros().bool(),
            is_unforced_B=zeros().bool(),
            ids_BT=torch.zeros(num_rows, 0, dtype=torch.int64, device=device),
        )

    def begin(self, row_N: Tensor, *, lengths_N: Tensor, positions_N: Tensor, has_grammar: bool) -> None:
        """Begin an answer in some rows.

        Args:
            row_N: ``[N]`` the rows.
            lengths_N: ``[N]`` tokens of each prompt.
            positions_N: ``[N]`` the rotary position of the first token of each answer.
            has_grammar: whether a grammar constrains the answers.
        """
        self.prompt_length_B[row_N] = lengths_N
        self.first_position_B[row_N] = positions_N
        # index_fill_ takes a number from the host. An indexed assignment would turn it into a tensor on the host first,
        # and wait until that is copied to the device.
        self.num_written_B.index_fill_(0, row_N, 0)
        self.grammar_state_B.index_fill_(0, row_N, int(State.START))
        self.is_open_B.index_fill_(0, row_N, True)
        self.is_unforced_B.index_fill_(0, row_N, has_grammar)

    def make_room(self, num_tokens: int, *, num_statistics: int, like: Tensor) -> None:
        """Make room for answers of this many tokens; statistics get the dtype and device of ``like``."""
        if self.statistics_BTS is None:
            self.statistics_BTS = like.new_zeros(len(self.is_open_B), 0, num_statistics)
        self.ids_BT = widened(self.ids_BT, dim=1, size=num_tokens)
        self.statistics_BTS = widened(self.statistics_BTS, dim=1, size=num_tokens)

    def write(self, row_N: Tensor, id_N: Tensor, statistics_SN: Tensor, *, ends_N: Tensor) -> None:
        """Write the next token of some rows.

        A row whose answer has ended stays where it is, and its padding is overwritten again and again. To leave the row
        out, the host would have to know about it, and would wait for the device.

        Args:
            row_N: ``[N]`` the rows.
            id_N: ``[N]`` their tokens.
            statistics_SN: ``[S, N]`` statistics of the logits.
            ends_N: ``[N]`` bool, the token ends the answer.
        """
        assert self.statistics_BTS is not None, "make_room was called"
        position_N = self.num_written_B[row_N]
        is_open_N = self.is_open_B[row_N]
        self.ids_BT[row_N, position_N] = id_N
        self.statistics_BTS[row_N, position_N] = statistics_SN.T
        self.num_written_B[row_N] = position_N + is_open_N
        self.is_open_B[row_N] = is_open_N & ~ends_N

    def kept(self, row_N: Tensor) -> "RowState":
        """Return the state of some rows ``[N]``, in this order."""
        return RowState(
            prompt_length_B=self.prompt_length_B[row_N],
            first_position_B=self.first_position_B[row_N],
            num_written_B=self.num_written_B[row_N],
            grammar_state_B=self.grammar_state_B[row_N],
            is_open_B=self.is_open_B[row_N],
            is_unforced_B=self.is_unforced_B[row_N],
            ids_BT=self.ids_BT[row_N],
            statistics_BTS=None if self.statistics_BTS is None else self.statistics_BTS[row_N],
        )

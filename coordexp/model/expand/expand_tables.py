"""The tables of the vocabulary with the rows of new tokens, made from what is stored, piece by piece.

Shapes: V vocabulary, D hidden, N added rows.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from coordexp.coord_tokens.vocab import CoordVocab, InitMethod, digit_ids, numeric_rows
from coordexp.model.checkpoint.weight_files import StoredWeights, rows_per_piece

_MEAN_COLUMNS = 256  # of a table averaged at a time; a multiple of every vector width, so that no sum changes


class ExpandedTables:
    """The new rows of a table of the vocabulary, and the table with them.

    The rows are those of ``coordexp.coord_tokens.vocab.expand_vocab``, bit for bit.
    """

    def __init__(
        self,
        weights: StoredWeights,
        vocab: CoordVocab,
        tokenizer: PreTrainedTokenizerBase,
        *,
        num_before: int,
        init: InitMethod,
    ) -> None:
        """Describe the expansion; nothing is read yet.

        Args:
            weights: of the checkpoint that is expanded.
            vocab: its ids afterwards.
            tokenizer: with the new tokens.
            num_before: entries of the tokenizer before; rows beyond are padding, and used up first.
            init: how new rows start.
        """
        self._weights, self._vocab = weights, vocab
        self._num_before, self._num_after = num_before, len(tokenizer)
        self._digit_ids = digit_ids(tokenizer) if init == "numeric" and self._num_after > num_before else []

    def num_rows(self, num_stored: int) -> int:
        """Return how many rows a table has afterwards; padding that was there is used up first."""
        return max(num_stored, self._num_after)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the expanded table."""
        stored = self._weights.specs[name].shape
        return (self.num_rows(stored[0]), *stored[1:])

    def pieces(self, name: str, *, dtype: torch.dtype) -> Iterator[Tensor]:
        """Yield the expanded table in blocks of rows, rounded to ``dtype`` before anything is computed."""
        stored = self._weights.specs[name]
        step = rows_per_piece(stored)
        for start in range(0, self._num_before, step):
            yield self._weights.rows(name, start, min(start + step, self._num_before)).to(dtype)
        if self._num_after > self._num_before:
            yield self._new_rows(name, dtype)
        for start in range(self._num_after, stored.shape[0], step):
            yield self._weights.rows(name, start, min(start + step, stored.shape[0])).to(dtype)

    def _new_rows(self, name: str, dtype: torch.dtype) -> Tensor:
        rows_ND = self._mean_row(name, dtype).repeat(self._num_after - self._num_before, 1)
        if self._digit_ids:
            coords = self._vocab.coord_ids
            # Coord rows that were there before (a native checkpoint expanded for spec) may be trained: they stay.
            old = max(0, self._num_before - coords.start)
            digits = self._weights.listed_rows(name, self._digit_ids).to(dtype)
            numeric = numeric_rows(digits)[old:].to(dtype)
            start = coords.start + old - self._num_before
            rows_ND[start : start + len(numeric)] = numeric
        return rows_ND

    def _mean_row(self, name: str, dtype: torch.dtype) -> Tensor:
        parts = [self._mean_columns(name, start, dtype) for start in range(0, self.shape(name)[1], _MEAN_COLUMNS)]
        return torch.cat(parts).to(dtype)

    def _mean_columns(self, name: str, start: int, dtype: torch.dtype) -> Tensor:
        columns = self._weights.columns(name, start, start + _MEAN_COLUMNS, num_rows=self._num_before)
        return columns.to(dtype).float().mean(dim=0)

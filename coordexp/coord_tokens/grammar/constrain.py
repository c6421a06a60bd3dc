"""The object grammar as tables on a device, so that a look-up of the allowed tokens needs no synchronisation.

The grammar accepts the sequences of :mod:`coordexp.coord_tokens.grammar.sequence`, with padding behind their end::

    START --OBJ_START--> OPENED --TEXT--> TEXT --BOX_START--> IN_BOX, IN_BOX + 1, ... --OBJ_END--> START
      |                              (TEXT: any number)       (one state for each token of the box)
      `--END--> ENDED (END or PAD, for ever)

Under ``structure: spec`` there is no BOX_START: the first coordinate leads from TEXT into the box.

Shapes: S states, C token classes, V vocabulary, B sequences.
"""

from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from coordexp.coord_tokens.vocab import CoordVocab


class TokenClass(IntEnum):
    """What a token is to the grammar. ``COORD`` is a coord token or, in the text arm, a digit."""

    OTHER = 0
    TEXT = 1
    OBJ_START = 2
    BOX_START = 3
    COORD = 4
    OBJ_END = 5
    END = 6
    PAD = 7
    SEPARATOR = 8


class State(IntEnum):
    """What has been written so far. Inside a box each token has a state of its own, from ``IN_BOX`` on."""

    START = 0
    OPENED = 1
    TEXT = 2
    ENDED = 3
    IN_BOX = 4


def _edges(vocab: CoordVocab) -> dict[tuple[int, TokenClass], int]:
    """Return for each state and allowed token class the state that it leads to."""
    edges: dict[tuple[int, TokenClass], int] = {
        (State.START, TokenClass.OBJ_START): State.OPENED,
        (State.START, TokenClass.END): State.ENDED,
        (State.ENDED, TokenClass.END): State.ENDED,
        (State.ENDED, TokenClass.PAD): State.ENDED,
    }
    desc_classes = [TokenClass.TEXT]
    if vocab.numbers.are_text:  # digits and the space are ordinary text in a description
        desc_classes += [TokenClass.COORD, TokenClass.SEPARATOR]
    for token_class in desc_classes:
        edges[State.OPENED, token_class] = State.TEXT
        edges[State.TEXT, token_class] = State.TEXT

    box_classes = [TokenClass.BOX_START for _ in vocab.before_box]
    for is_number in vocab.numbers.pattern:
        box_classes.append(TokenClass.COORD if is_number else TokenClass.SEPARATOR)
    state = int(State.TEXT)
    for place, token_class in enumerate(box_classes):
        edges[state, token_class] = State.IN_BOX + place
        state = State.IN_BOX + place
    edges[state, TokenClass.OBJ_END] = State.START
    return edges


class ObjectGrammar:
    """The grammar of a target sequence over one vocabulary.

    Attributes:
        classes_V: ``[V]`` int64, the :class:`TokenClass` of each id.
        next_SC: ``[S, C]`` int64, the state after a token of each class; a forbidden token leads to ``ENDED``.
        allowed_SV: ``[S, V]`` bool, which ids may come next.
    """

    def __init__(self, vocab: CoordVocab, *, vocab_size: int, text_ids: Sequence[int], pad_id: int) -> None:
        """Build the tables.

        Args:
            vocab: the ids of markers and numbers.
            vocab_size: columns of the model's logits; a model may have more than the tokenizer has entries.
            text_ids: the ids that a description may hold (:func:`plain_text_ids`).
            pad_id: the id that fills a sequence behind its end token.

        Raises:
            ValueError: if an id is not below ``vocab_size``.
        """
        numbers = vocab.numbers
        if max(*text_ids, numbers.ids.stop - 1, vocab.obj_end_id, vocab.obj_start_id, pad_id) >= vocab_size:
            raise ValueError(f"the grammar has ids beyond the model's {vocab_size} logits; resize the model first")
        # The order matters where one id has two roles: in the text arm digits are text ids too, and a tokenizer
        # without a pad token pads with the end token. The later line wins.
        self.classes_V = torch.full((vocab_size,), int(TokenClass.OTHER))
        self.classes_V[torch.tensor(text_ids, dtype=torch.int64)] = int(TokenClass.TEXT)
        self.classes_V[numbers.ids.start : numbers.ids.stop] = int(TokenClass.COORD)
        if numbers.separator_id is not None:
            self.classes_V[numbers.separator_id] = int(TokenClass.SEPARATOR)
        self.classes_V[pad_id] = int(TokenClass.PAD)
        self.classes_V[vocab.obj_start_id] = int(TokenClass.OBJ_START)
        self.classes_V[vocab.obj_end_id] = int(TokenClass.OBJ_END)
        self.classes_V[vocab.end_id] = int(TokenClass.END)
        self.classes_V[list(vocab.before_box)] = int(TokenClass.BOX_START)

        edges = _edges(vocab)
        shape = max(edges.values()) + 1, len(TokenClass)
        legal_SC = torch.zeros(shape, dtype=torch.bool)
        self.next_SC = torch.full(shape, int(State.ENDED))
        for (state, token_class), target in edges.items():
            legal_SC[state, token_class] = True
            self.next_SC[state, token_class] = target
        self.allowed_SV = legal_SC[:, self.classes_V]

    @classmethod
    def for_model(cls, vocab: CoordVocab, tokenizer: PreTrainedTokenizerBase, *, vocab_size: int) -> "ObjectGrammar":
        """Build the grammar of a model's tokenizer. If it has no pad token, the end token pads."""
        pad_id = tokenizer.pad_token_id if isinstance(tokenizer.pad_token_id, int) else vocab.end_id
        return cls(vocab, vocab_size=vocab_size, text_ids=plain_text_ids(tokenizer), pad_id=pad_id)

    def to(self, device: torch.device) -> "ObjectGrammar":
        """Move the tables to ``device``, in place."""
        self.classes_V = self.classes_V.to(device)
        self.next_SC = self.next_SC.to(device)
        self.allowed_SV = self.allowed_SV.to(device)
        return self

    def advance(self, state_B: Tensor, token_B: Tensor) -> Tensor:
        """Return the ``[B]`` states after one more token in each sequence."""
        return self.next_SC[state_B, self.classes_V[token_B]]


def plain_text_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of ordinary text: all entries except added and special tokens."""
    added = set(tokenizer.added_tokens_decoder) | set(tokenizer.all_special_ids)
    return sorted(set(tokenizer.get_vocab().values()) - added)

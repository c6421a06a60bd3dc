"""The vocabulary of an answer, in coord tokens or in digits: look it up, or expand a model to hold it.

A coordinate is one of 1000 bins. It is written as one token, ``<|coord_34|>``, or in the text arm as three digits,
``034``. The :class:`NumberTokens` of a vocabulary says which. Everything that writes, measures, reads or constrains a
box goes through it and never asks which of the two it has.

A TokenizerError refuses a tokenizer that lacks a token of an answer, or has such tokens with ids that do not fit. The
wildcard ``<|coord_*|>`` is never part of an answer: an expansion adds it, other trainers leave it out.

Shapes: M boxes, L tokens of a box, C tokens of a box that carry its numbers, P tokens (places) of one number, D hidden,
N new rows, K bins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.tokenization_utils_base import AddedToken

from coordexp.coord_tokens.bins import NUM_BINS, NUM_COORDS, int_to_token
from coordexp.errors import TokenizerError

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # a second and a half, for annotations alone

Structure = Literal["native", "spec"]
InitMethod = Literal["mean", "numeric"]

WILDCARD_TOKEN = "<|coord_*|>"
END_TOKEN = "<|im_end|>"
STRUCTURE_TOKENS: dict[Structure, tuple[str, str | None, str]] = {
    "native": ("<|object_ref_start|>", "<|box_start|>", "<|box_end|>"),
    "spec": ("<obj_start>", None, "<obj_end>"),
}

NUM_DIGITS = 3  # of a coordinate in the text arm: bins 000 to 999
NUM_TEXT_BOX_TOKENS = NUM_COORDS * NUM_DIGITS + NUM_COORDS - 1  # four numbers and the three spaces between them


@dataclass(frozen=True)
class NumberTokens:
    """How the four bins of a box are written.

    Attributes:
        ids: the ids that carry numbers, in the order of their values: 1000 bins, or ten digits. They are the coordinate
            block of the head.
        places: tokens of one coordinate, the most significant first.
        separator_id: the id between two coordinates; None if there is none.
    """

    ids: range
    places: int = 1
    separator_id: int | None = None

    @property
    def are_text(self) -> bool:
        """Whether these tokens are ordinary text in a description, as digits and the space are."""
        return self.separator_id is not None

    @property
    def pattern(self) -> tuple[bool, ...]:
        """For each of the ``L`` tokens of a box, whether it carries a number. The others are separators."""
        number = [True] * self.places
        separator = [] if self.separator_id is None else [False]
        box = list(number)
        for _ in range(NUM_COORDS - 1):
            box += separator + number
        return tuple(box)

    @property
    def num_box_tokens(self) -> int:
        """Tokens of a box, L."""
        return len(self.pattern)

    @property
    def number_positions(self) -> NDArray[np.int64]:
        """Positions within a box of the tokens that carry its numbers, ``[C]``."""
        return np.flatnonzero(self.pattern)

    def write(self, bins_M4: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids ``[M, L]`` of boxes in bins."""
        powers_P = len(self.ids) ** np.arange(self.places)[::-1]
        values_M4P = bins_M4[..., None] // powers_P % len(self.ids)  # the digits of a bin in base 1000 or 10
        separator_id = -1 if self.separator_id is None else self.separator_id  # without separators all are overwritten
        ids_ML = np.full((len(bins_M4), self.num_box_tokens), separator_id)
        ids_ML[:, self.number_positions] = values_M4P.reshape(-1, len(self.number_positions)) + self.ids.start
        return ids_ML

    def bins(self, ids_MC: Tensor) -> Tensor:
        """Return the bins ``[M, 4]`` of boxes from the ids ``[M, C]`` that carry their numbers."""
        powers_P = len(self.ids) ** torch.arange(self.places - 1, -1, -1, device=ids_MC.device)
        values_M4P = (ids_MC - self.ids.start).view(-1, NUM_COORDS, self.places)
        return (values_M4P * powers_P).sum(dim=2)

    def bin_of(self, tokens: Sequence[int]) -> int:
        """Return the number that the tokens of one coordinate write. There may be fewer tokens than ``places``."""
        value = 0
        for token in tokens:
            value = value * len(self.ids) + token - self.ids.start
        return value


@dataclass(frozen=True)
class CoordVocab:
    """Token ids of an answer: of its coordinates and of its object structure."""

    numbers: NumberTokens  # <|coord_0|> .. <|coord_999|>, or digits
    wildcard_id: int | None  # <|coord_*|>; None in the text arm, and if another trainer left it out
    obj_start_id: int
    box_start_id: int | None  # ends the description; None under structure: spec
    obj_end_id: int
    end_id: int  # ends the assistant's answer
    structure: Structure = "native"  # Qwen3-VL's own markers, or spec

    @property
    def coord_ids(self) -> range:
        """Ids of the tokens that carry coordinates, contiguous and in order."""
        return self.numbers.ids

    @property
    def before_box(self) -> tuple[int, ...]:
        """Ids between a description and its coordinates."""
        return () if self.box_start_id is None else (self.box_start_id,)

    @property
    def box_length(self) -> int:
        """Tokens between a description and the token that closes its object."""
        return len(self.before_box) + self.numbers.num_box_tokens

    @property
    def added_structure_ids(self) -> tuple[int, ...]:
        """Ids of markers that no pre-trained model knows, so that their rows must be trained."""
        return () if self.structure == "native" else (self.obj_start_id, self.obj_end_id)


def text_vocab(tokenizer: PreTrainedTokenizerBase) -> CoordVocab:
    """Look up the vocabulary of the text arm in any Qwen tokenizer, expanded or not.

    Raises:
        TokenizerError: if the digits are not contiguous ids in order, a space is not one token, or a marker is missing.
    """
    digits = digit_ids(tokenizer)
    if digits != list(range(digits[0], digits[0] + 10)):
        raise TokenizerError(f"the digits 0 to 9 have the ids {digits}; the text arm expects them contiguous, in order")
    space = tokenizer.encode(" ", add_special_tokens=False)
    if len(space) != 1:
        raise TokenizerError(f"a space is {len(space)} tokens here; the text arm needs one between two numbers")
    numbers = NumberTokens(range(digits[0], digits[0] + 10), places=NUM_DIGITS, separator_id=space[0])
    return _with_markers(tokenizer.get_vocab(), numbers)


def end_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id of the token that ends an answer."""
    return _id_of(tokenizer.get_vocab(), END_TOKEN)


def coord_vocab(tokenizer: PreTrainedTokenizerBase, *, structure: Structure = "native") -> CoordVocab:
    """Look up the coordinate vocabulary of an expanded tokenizer.

    Raises:
        TokenizerError: if a coord token or marker is missing, or the coord ids are not contiguous and in order.
    """
    ids = tokenizer.get_vocab()
    first_id = _id_of(ids, int_to_token(0))
    for k in range(NUM_BINS):
        coord_id = _id_of(ids, int_to_token(k))
        if coord_id != first_id + k:
            raise TokenizerError(
                f"{int_to_token(k)} has id {coord_id}, expected {first_id + k}: coord ids must be contiguous"
            )
    numbers = NumberTokens(range(first_id, first_id + NUM_BINS))
    return _with_markers(ids, numbers, structure=structure, wildcard_id=ids.get(WILDCARD_TOKEN))


def expand_vocab(
    model: "PreTrainedModel",
    tokenizer: PreTrainedTokenizerBase,
    *,
    init: InitMethod = "mean",
    structure: Structure = "native",
) -> CoordVocab:
    """Add the coordinate tokens to tokenizer and model, in place; a second call changes nothing.

    The order is ``<|coord_*|>``, ``<|coord_0|>`` .. ``<|coord_999|>`` and, under ``spec``, ``<obj_start>`` and
    ``<obj_end>``. On a Qwen3-VL tokenizer (151,669 entries) the coord ids are 151670..152669.

    Args:
        model: any causal language model with input embeddings; an untied head is expanded too.
        tokenizer: its tokenizer.
        init: how new rows start. ``mean``: as the mean of all rows that existed. ``numeric``: row ``k`` is interpolated
            between the rows of the digits, with digit ``d`` at bin ``100 d + 50``, so that neighbouring bins start
            alike; other new rows get the mean.
        structure: which object markers are used, see :class:`CoordVocab`.

    Returns:
        The vocabulary.

    Raises:
        TokenizerError: if tokens exist with ids that do not fit, a needed token is missing, or the model has fewer rows
            than the tokenizer has entries.
    """
    num_before = len(tokenizer)
    vocab = expand_tokenizer(tokenizer, structure=structure)
    num_after = len(tokenizer)
    num_rows = len(model.get_input_embeddings().get_parameter("weight"))
    check_rows(num_before, num_rows)
    if num_after == num_before:
        return vocab
    if num_rows < num_after:
        model.resize_token_embeddings(num_after, mean_resizing=False)

    # Asked for after the resize, which replaces both modules.
    tables = [model.get_input_embeddings().get_parameter("weight")]
    head = model.get_output_embeddings()
    if head is not None and head.weight is not tables[0]:
        tables.append(head.get_parameter("weight"))
    with torch.no_grad():
        for table in tables:
            mean_D = table[:num_before].float().mean(dim=0).to(table.dtype)
            digits_10D = table[digit_ids(tokenizer)] if init == "numeric" else None
            rows_ND = added_rows(mean_D, digits_10D, vocab=vocab, num_before=num_before, num_after=num_after)
            table[num_before:num_after] = rows_ND
    return vocab


def expand_tokenizer(tokenizer: PreTrainedTokenizerBase, *, structure: Structure = "native") -> CoordVocab:
    """Add the coord tokens, and under ``spec`` the object markers, that a tokenizer lacks, in place.

    The 1,000 coord tokens are added together or not at all, because their ids must be contiguous. The same holds for
    the two markers. If a tokenizer has the coord tokens but not the wildcard, the wildcard gets the next free id.

    Raises:
        TokenizerError: if the tokenizer has a part of the coord tokens or markers, or new ids could not follow the old
            ones.
    """
    ids = tokenizer.get_vocab()
    coords = [int_to_token(k) for k in range(NUM_BINS)]
    markers = added_tokens(structure)[NUM_BINS + 1 :]
    for tokens, kind in ((coords, "coordinate tokens"), (markers, "object markers")):
        missing = [token for token in tokens if token not in ids]
        if missing and len(missing) < len(tokens):
            raise TokenizerError(
                f"the tokenizer has {len(tokens) - len(missing)} of the {len(tokens)} {kind} but not {missing[0]}; "
                "expected all of them or none: take the tokenizer from before they were added, or add the rest to it"
            )
    new_tokens = [token for token in added_tokens(structure) if token not in ids]
    if new_tokens and max(ids.values()) + 1 != len(tokenizer):
        raise TokenizerError(
            f"the tokenizer has {len(tokenizer)} entries but ids up to {max(ids.values())}; "
            "expected ids without gaps, so that new tokens follow the old ones"
        )
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in new_tokens])
    return coord_vocab(tokenizer, structure=structure)


def added_tokens(structure: Structure) -> list[str]:
    """Return the tokens that a structure needs beyond Qwen3-VL's own, in the order of their ids."""
    start, _, end = STRUCTURE_TOKENS["spec"]
    coords = [WILDCARD_TOKEN, *(int_to_token(k) for k in range(NUM_BINS))]
    return coords if structure == "native" else [*coords, start, end]


def digit_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of the texts "0" to "9", for ``init: numeric`` and the text arm."""
    ids_of_digits = [tokenizer.encode(str(digit), add_special_tokens=False) for digit in range(10)]
    for digit, ids in enumerate(ids_of_digits):
        if len(ids) != 1:
            raise TokenizerError(
                f"digit {digit} is {len(ids)} tokens here; init: numeric and the text arm need one, init: mean does not"
            )
    return [ids[0] for ids in ids_of_digits]


def added_rows(
    mean_D: Tensor, digit_rows_10D: Tensor | None, *, vocab: CoordVocab, num_before: int, num_after: int
) -> Tensor:
    """Return the rows that an expansion adds to a table.

    Args:
        mean_D: ``[D]`` mean of the rows that existed.
        digit_rows_10D: ``[10, D]`` rows of the digits, for ``init: numeric``; None for ``init: mean``.
        vocab: the vocabulary after the expansion.
        num_before: entries of the tokenizer before the expansion.
        num_after: entries of the tokenizer after it.

    Returns:
        ``[N, D]`` in the dtype of ``mean_D``, with N = ``num_after - num_before``.
    """
    rows_ND = mean_D.repeat(num_after - num_before, 1)
    # Coord rows that existed before may be trained, so they stay. They exist if a native checkpoint is expanded for
    # spec, or if another trainer added the coord tokens without the wildcard.
    has_new_coord_rows = vocab.coord_ids.start >= num_before
    if digit_rows_10D is None or not has_new_coord_rows:
        return rows_ND
    position_K = (torch.arange(NUM_BINS, dtype=torch.float32) / 100 - 0.5).clamp(0, 9)  # digit d is at bin 100 d + 50
    low_digit_K = position_K.floor().long().clamp(max=8)
    digits_10D = digit_rows_10D.float().cpu()
    share_K1 = (position_K - low_digit_K).unsqueeze(1)
    numeric_KD = torch.lerp(digits_10D[low_digit_K], digits_10D[low_digit_K + 1], share_K1)
    start = vocab.coord_ids.start - num_before
    rows_ND[start : start + NUM_BINS] = numeric_KD.to(mean_D)
    return rows_ND


def check_rows(num_entries: int, num_rows: int, *, where: str = "") -> None:
    """Raise a TokenizerError if a table has fewer rows than the tokenizer has entries; ``where`` begins the message."""
    if num_rows < num_entries:
        raise TokenizerError(
            f"{where}the tokenizer has {num_entries} entries but the model only {num_rows} rows: "
            "they do not belong together; take both from one checkpoint, or give the model a row for each"
        )


def _with_markers(
    ids: dict[str, int], numbers: NumberTokens, *, structure: Structure = "native", wildcard_id: int | None = None
) -> CoordVocab:
    """Join the tokens of numbers and the markers of a structure to a vocabulary."""
    start, box, end = STRUCTURE_TOKENS[structure]
    missing = [token for token in STRUCTURE_TOKENS["native"] if token not in ids]
    if structure == "native" and missing:
        raise TokenizerError(
            f"the tokenizer has no token {missing[0]!r}, a marker of data.structure: native, which no expansion adds; "
            "take the tokenizer of the released model, or set data.structure: spec, whose markers are added"
        )
    return CoordVocab(
        numbers,
        wildcard_id,
        obj_start_id=_id_of(ids, start),
        box_start_id=None if box is None else _id_of(ids, box),
        obj_end_id=_id_of(ids, end),
        end_id=_id_of(ids, END_TOKEN),
        structure=structure,
    )


def _id_of(ids: dict[str, int], token: str) -> int:
    token_id = ids.get(token)
    if token_id is None:
        raise TokenizerError(f"the tokenizer has no token {token!r}; expand the vocabulary first")
    return token_id

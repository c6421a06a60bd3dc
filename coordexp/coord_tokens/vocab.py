"""The vocabulary of an answer, in coord tokens or in digits: look it up, or expand a model to hold it.

A coordinate is one of 1000 bins. A :class:`CoordVocab` writes it as the one token ``<|coord_34|>``, a
:class:`TextVocab`, of the text arm, as three digits, ``034``. What either writes between the markers of a box is
described by its :class:`NumberTokens`, and nothing else that writes, measures, reads or constrains a box asks which
of the two it has.

Shapes: M boxes, L tokens of a box, C tokens of a box that carry its numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
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
NUM_TEXT_BOX_TOKENS = NUM_COORDS * NUM_DIGITS + NUM_COORDS - 1  # four numbers, and a space between each two


@dataclass(frozen=True)
class NumberTokens:
    """How the four bins of a box are written: each in ``places`` tokens, the most significant first.

    Attributes:
        ids: the tokens that carry numbers, in the order of their values: 1000 bins, or ten digits. They are the
            coordinate block of the head.
        places: tokens of one coordinate.
        separator_id: stands between two coordinates; None for nothing.
    """

    ids: range
    places: int = 1
    separator_id: int | None = None

    @property
    def are_text(self) -> bool:
        """Whether the same tokens are ordinary text in a description: digits and the space are."""
        return self.separator_id is not None

    @property
    def pattern(self) -> tuple[bool, ...]:
        """For each of the ``L`` tokens of a box, whether it carries a number; the others are separators."""
        number = (True,) * self.places
        between = () if self.separator_id is None else (False,)
        return (*number, *(between + number) * (NUM_COORDS - 1))

    @property
    def num_box_tokens(self) -> int:
        """Tokens of a box, L."""
        return len(self.pattern)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where in a box the tokens that carry its numbers are, ``[C]``."""
        return np.flatnonzero(self.pattern)

    def write(self, bins_M4: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids ``[M, L]`` of boxes in bins."""
        powers = len(self.ids) ** np.arange(self.places)[::-1]
        values_M4P = bins_M4[..., None] // powers % len(self.ids)
        ids_ML = np.full((len(bins_M4), self.num_box_tokens), -1 if self.separator_id is None else self.separator_id)
        ids_ML[:, self.offsets] = values_M4P.reshape(-1, len(self.offsets)) + self.ids.start
        return ids_ML

    def bins(self, ids_MC: Tensor) -> Tensor:
        """Return the bins ``[M, 4]`` of boxes, from the ids of the tokens that carry their numbers."""
        powers_P = len(self.ids) ** torch.arange(self.places - 1, -1, -1, device=ids_MC.device)
        return ((ids_MC - self.ids.start).view(-1, NUM_COORDS, self.places) * powers_P).sum(dim=2)

    def bin_of(self, tokens: Sequence[int]) -> int:
        """Return the number that the tokens of one coordinate write; digits may be fewer than ``places``."""
        value = 0
        for token in tokens:
            value = value * len(self.ids) + token - self.ids.start
        return value


@dataclass(frozen=True)
class CoordVocab:
    """Token ids of coordinates and object structure.

    Attributes:
        coord_ids: ids of ``<|coord_0|>`` .. ``<|coord_999|>``, contiguous and in order.
        wildcard_id: id of ``<|coord_*|>``.
        obj_start_id: opens an object.
        box_start_id: ends the description; None under ``structure: spec``.
        obj_end_id: closes an object.
        end_id: ends the assistant's answer.
        structure: ``native`` or ``spec``.
    """

    coord_ids: range
    wildcard_id: int
    obj_start_id: int
    box_start_id: int | None
    obj_end_id: int
    end_id: int
    structure: Structure = "native"

    @property
    def numbers(self) -> NumberTokens:
        """A coordinate is one coord token, and nothing stands between two of them."""
        return NumberTokens(self.coord_ids)

    @property
    def before_box(self) -> tuple[int, ...]:
        """Ids between a description and its coordinates."""
        return () if self.box_start_id is None else (self.box_start_id,)

    @property
    def box_length(self) -> int:
        """Tokens between a description and the token that closes its object."""
        return len(self.before_box) + self.numbers.num_box_tokens

    @property
    def no_text_ids(self) -> frozenset[int]:
        """Ids that are never part of a description: markers and wildcard."""
        return frozenset((self.obj_start_id, *self.before_box, self.obj_end_id, self.end_id, self.wildcard_id))

    @property
    def added_structure_ids(self) -> tuple[int, ...]:
        """Structure ids that no pre-trained model knows; they need trained rows."""
        return () if self.structure == "native" else (self.obj_start_id, self.obj_end_id)


@dataclass(frozen=True)
class TextVocab:
    """Token ids of an answer in plain text, between Qwen3-VL's own markers: nothing is added to the tokenizer.

    Attributes:
        digit_ids: ids of "0" to "9", contiguous and in order.
        space_id: stands between two numbers.
        obj_start_id: opens an object.
        box_start_id: ends the description.
        obj_end_id: closes an object.
        end_id: ends the assistant's answer.
    """

    digit_ids: range
    space_id: int
    obj_start_id: int
    box_start_id: int
    obj_end_id: int
    end_id: int

    @property
    def structure(self) -> Structure:
        """The markers are Qwen3-VL's own."""
        return "native"

    @property
    def numbers(self) -> NumberTokens:
        """A coordinate is three digits, and a space stands between two of them."""
        return NumberTokens(self.digit_ids, NUM_DIGITS, self.space_id)

    @property
    def before_box(self) -> tuple[int, ...]:
        """Ids between a description and its coordinates."""
        return (self.box_start_id,)

    @property
    def box_length(self) -> int:
        """Tokens between a description and the token that closes its object."""
        return len(self.before_box) + self.numbers.num_box_tokens

    @property
    def no_text_ids(self) -> frozenset[int]:
        """Ids that are never part of a description: the markers."""
        return frozenset((self.obj_start_id, self.box_start_id, self.obj_end_id, self.end_id))

    @property
    def added_structure_ids(self) -> tuple[int, ...]:
        """Nothing is added."""
        return ()


AnswerVocab = CoordVocab | TextVocab


def text_vocab(tokenizer: PreTrainedTokenizerBase) -> TextVocab:
    """Look up the vocabulary of the text arm in any Qwen tokenizer, expanded or not.

    Raises:
        TokenizerError: if a marker is missing, a digit or the space is not one token, or the ids of the digits are
            not contiguous and in order.
    """
    digits = digit_ids(tokenizer)
    if digits != list(range(digits[0], digits[0] + 10)):
        raise TokenizerError(f"the digits 0 to 9 have the ids {digits}; the text arm expects them contiguous, in order")
    space = tokenizer.encode(" ", add_special_tokens=False)
    if len(space) != 1:
        raise TokenizerError(f"a space is {len(space)} tokens here; the text arm needs one between two numbers")
    ids = tokenizer.get_vocab()
    start, box, end = STRUCTURE_TOKENS["native"]
    assert box is not None
    return TextVocab(
        digit_ids=range(digits[0], digits[0] + 10),
        space_id=space[0],
        obj_start_id=_id_of(ids, start),
        box_start_id=_id_of(ids, box),
        obj_end_id=_id_of(ids, end),
        end_id=_id_of(ids, END_TOKEN),
    )


def end_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id of the token that ends an answer.

    Raises:
        TokenizerError: if there is none.
    """
    return _id_of(tokenizer.get_vocab(), END_TOKEN)


def coord_vocab(tokenizer: PreTrainedTokenizerBase, *, structure: Structure = "native") -> CoordVocab:
    """Look up the coordinate vocabulary of an expanded tokenizer.

    Raises:
        TokenizerError: if a token is missing, or the coord ids are not contiguous and in order.
    """
    ids = tokenizer.get_vocab()
    first = _id_of(ids, int_to_token(0))
    for k in range(NUM_BINS):
        found = _id_of(ids, int_to_token(k))
        if found != first + k:
            raise TokenizerError(
                f"{int_to_token(k)} has id {found}, expected {first + k}: coord ids must be contiguous"
            )
    start, box, end = STRUCTURE_TOKENS[structure]
    return CoordVocab(
        coord_ids=range(first, first + NUM_BINS),
        wildcard_id=_id_of(ids, WILDCARD_TOKEN),
        obj_start_id=_id_of(ids, start),
        box_start_id=None if box is None else _id_of(ids, box),
        obj_end_id=_id_of(ids, end),
        end_id=_id_of(ids, END_TOKEN),
        structure=structure,
    )


def expand_vocab(
    model: "PreTrainedModel",
    tokenizer: PreTrainedTokenizerBase,
    *,
    init: InitMethod = "mean",
    structure: Structure = "native",
) -> CoordVocab:
    """Add the coordinate tokens to tokenizer and model, in place; a second call changes nothing.

    ``<|coord_*|>`` comes first, then ``<|coord_0|>`` .. ``<|coord_999|>``; under ``spec`` also
    ``<obj_start>`` and ``<obj_end>``. On a Qwen3-VL tokenizer (151,669 entries) the coord ids
    are 151670..152669.

    Args:
        model: any causal language model with input embeddings; an untied head is expanded too.
        tokenizer: its tokenizer.
        init: how new rows start. ``mean``: the mean of the rows that existed. ``numeric``: row
            ``k`` lies between the rows of the leading digits ``d`` (placed at bin ``100 d + 50``),
            so that neighbouring bins start alike; other new rows get the mean.
        structure: which object markers are used, see :class:`CoordVocab`.

    Returns:
        The ids.

    Raises:
        TokenizerError: if tokens exist with ids that do not fit, or a needed token is missing.
    """
    num_before = len(tokenizer)
    vocab = expand_tokenizer(tokenizer, structure=structure)
    num_after, num_rows = len(tokenizer), len(_weight(model.get_input_embeddings()))
    check_rows(num_before, num_rows)
    if num_after > num_before:
        if num_rows < num_after:
            model.resize_token_embeddings(num_after, mean_resizing=False)
        with torch.no_grad():
            for table in _tables(model):
                mean_D = table[:num_before].float().mean(dim=0).to(table.dtype)
                digits_10D = table[digit_ids(tokenizer)] if init == "numeric" else None
                rows_ND = added_rows(mean_D, digits_10D, vocab=vocab, num_before=num_before, num_after=num_after)
                table[num_before:num_after] = rows_ND
    return vocab


def expand_tokenizer(tokenizer: PreTrainedTokenizerBase, *, structure: Structure = "native") -> CoordVocab:
    """Add the tokens of coordinates, and of objects under ``spec``, that a tokenizer lacks, in place.

    Raises:
        TokenizerError: if some of the tokens exist and some not, if they exist with ids that do not fit, or a
            needed token is missing.
    """
    _refuse_parts(tokenizer, structure)
    tokens = [AddedToken(token, special=True, normalized=False) for token in added_tokens(structure)]
    tokenizer.add_tokens(tokens)
    return coord_vocab(tokenizer, structure=structure)


def added_tokens(structure: Structure) -> list[str]:
    """Return the tokens that a structure needs beyond Qwen3-VL's own, in the order of their ids."""
    start, _, end = STRUCTURE_TOKENS["spec"]
    coords = [WILDCARD_TOKEN, *(int_to_token(k) for k in range(NUM_BINS))]
    return coords if structure == "native" else [*coords, start, end]


def digit_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of the texts "0" to "9".

    New rows start between theirs under ``init: numeric``, and the text arm writes coordinates with them.

    Raises:
        TokenizerError: if a digit is not one token.
    """
    found = [tokenizer.encode(str(digit), add_special_tokens=False) for digit in range(10)]
    for digit, ids in enumerate(found):
        if len(ids) != 1:
            raise TokenizerError(
                f"digit {digit} is {len(ids)} tokens here; init: numeric and the text arm need one, init: mean does not"
            )
    return [ids[0] for ids in found]


def added_rows(
    mean_D: Tensor, digit_rows_10D: Tensor | None, *, vocab: CoordVocab, num_before: int, num_after: int
) -> Tensor:
    """Return the rows that an expansion adds to a table, ``[N, D]`` in the dtype of ``mean_D``.

    Args:
        mean_D: ``[D]`` mean of the rows that existed.
        digit_rows_10D: ``[10, D]`` rows of the digits, for ``init: numeric``; None for ``init: mean``.
        vocab: ids after the expansion.
        num_before: entries of the tokenizer before.
        num_after: and after.
    """
    rows_ND = mean_D.repeat(num_after - num_before, 1)
    if digit_rows_10D is not None:
        coords = vocab.coord_ids
        # Coord rows that were there before (a native checkpoint expanded for spec) may be trained: they stay.
        old = max(0, num_before - coords.start)
        numeric_KD = numeric_rows(digit_rows_10D)[old:].to(mean_D)
        start = coords.start + old - num_before
        rows_ND[start : start + len(numeric_KD)] = numeric_KD
    return rows_ND


def check_rows(num_entries: int, num_rows: int, *, where: str = "") -> None:
    """Check that a table has a row for every entry of the tokenizer.

    Raises:
        TokenizerError: if it has not.
    """
    if num_rows < num_entries:
        raise TokenizerError(
            f"{where}the tokenizer has {num_entries} entries but the model only {num_rows} rows: "
            "they do not belong together; take both from one checkpoint, or give the model a row for each"
        )


def numeric_rows(digit_rows_10D: Tensor) -> Tensor:
    """Interpolate ``[K, D]`` coord rows between ten ``[10, D]`` leading-digit rows, in float32."""
    position_K = (torch.arange(NUM_BINS, dtype=torch.float32) / 100 - 0.5).clamp(0, 9)
    low_K = position_K.floor().long().clamp(max=8)
    fraction_K1 = (position_K - low_K).unsqueeze(1)
    rows = digit_rows_10D.float().cpu()
    return torch.lerp(rows[low_K], rows[low_K + 1], fraction_K1)


def _refuse_parts(tokenizer: PreTrainedTokenizerBase, structure: Structure) -> None:
    """Refuse a tokenizer that has only some of the tokens, or gaps among its ids."""
    known = tokenizer.get_vocab()
    coords, markers = added_tokens("native"), added_tokens(structure)[NUM_BINS + 1 :]
    for tokens, what in ((coords, "coordinate tokens"), (markers, "object markers")):
        missing = [token for token in tokens if token not in known]
        if missing and len(missing) < len(tokens):
            raise TokenizerError(
                f"the tokenizer has {len(tokens) - len(missing)} of the {len(tokens)} {what} but not {missing[0]}; "
                "expected all of them or none"
            )
    if max(known.values()) + 1 != len(tokenizer) and any(token not in known for token in (*coords, *markers)):
        raise TokenizerError(
            f"the tokenizer has {len(tokenizer)} entries but ids up to {max(known.values())}; "
            "expected ids without gaps, so that new tokens follow the old ones"
        )


def _id_of(ids: dict[str, int], token: str) -> int:
    found = ids.get(token)
    if found is None:
        raise TokenizerError(f"the tokenizer has no token {token!r}; expand the vocabulary first")
    return found


def _tables(model: "PreTrainedModel") -> list[Tensor]:
    embedding = _weight(model.get_input_embeddings())
    head = model.get_output_embeddings()
    if head is None or head.weight is embedding:
        return [embedding]
    return [embedding, _weight(head)]


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight

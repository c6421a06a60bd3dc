"""The vocabulary of coordinates and object structure: look it up, or expand a model to hold it."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.tokenization_utils_base import AddedToken

from coordexp.coord_tokens.bins import NUM_BINS, NUM_COORDS, int_to_token
from coordexp.errors import TokenizerError

Structure = Literal["native", "spec"]
InitMethod = Literal["mean", "numeric"]

WILDCARD_TOKEN = "<|coord_*|>"
END_TOKEN = "<|im_end|>"
STRUCTURE_TOKENS: dict[Structure, tuple[str, str | None, str]] = {
    "native": ("<|object_ref_start|>", "<|box_start|>", "<|box_end|>"),
    "spec": ("<obj_start>", None, "<obj_end>"),
}


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
    def before_box(self) -> tuple[int, ...]:
        """Ids between a description and its coordinates."""
        return () if self.box_start_id is None else (self.box_start_id,)

    @property
    def box_length(self) -> int:
        """Tokens between a description and the token that closes its object."""
        return len(self.before_box) + NUM_COORDS

    @property
    def added_structure_ids(self) -> tuple[int, ...]:
        """Structure ids that no pre-trained model knows; they need trained rows."""
        return () if self.structure == "native" else (self.obj_start_id, self.obj_end_id)


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
    model: PreTrainedModel,
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
    """Return the ids of the texts "0" to "9", between whose rows new ones start under ``numeric``.

    Raises:
        TokenizerError: if a digit is not one token.
    """
    found = [tokenizer.encode(str(digit), add_special_tokens=False) for digit in range(10)]
    for digit, ids in enumerate(found):
        if len(ids) != 1:
            raise TokenizerError(f"digit {digit} is {len(ids)} tokens here; init: numeric needs one, use init: mean")
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
            "they do not belong together"
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


def _tables(model: PreTrainedModel) -> list[Tensor]:
    embedding = _weight(model.get_input_embeddings())
    head = model.get_output_embeddings()
    if head is None or head.weight is embedding:
        return [embedding]
    return [embedding, _weight(head)]


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight

"""Which ids a coord-offset adapter may list."""

from collections.abc import Mapping, Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from coordexp.coord_tokens.codec import CoordIds, as_id_list
from coordexp.coord_tokens.vocab import STRUCTURE_TOKENS, coord_vocab
from coordexp.errors import TokenizerError

DEFAULT_COORD_IDS = range(151_670, 152_670)  # of Qwen3-VL; 151669 is the wildcard <|coord_*|>


def checked_ids(coord_ids: CoordIds, *, num_rows: int, vocab_size: int) -> list[int]:
    """Expand the ids and check that the tables hold them.

    Args:
        coord_ids: a range, ``{"start": a, "end": b}`` (both included) or a list.
        num_rows: rows of embedding and head; of the shorter one.
        vocab_size: what the model's configuration says.

    Raises:
        TokenizerError: if the ids are malformed or reach beyond either number.
    """
    _check_form(coord_ids)
    try:
        ids = as_id_list(coord_ids)
    except ValueError as error:
        raise TokenizerError(f"coord_offset.ids: {error}") from None
    if max(ids) >= num_rows:
        raise TokenizerError(
            f"coord_offset.ids reach {max(ids)} but the model has {num_rows} rows (ids 0..{num_rows - 1}); "
            "expand the vocabulary first, or give this tokenizer's ids"
        )
    if max(ids) >= vocab_size:
        raise TokenizerError(
            f"coord_offset.ids reach {max(ids)} but config.vocab_size is {vocab_size}; resize the model by "
            "resize_token_embeddings, which sets both"
        )
    return ids


def check_tokens(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that the ids are all coord tokens of a tokenizer, and beside them only added structure tokens.

    Raises:
        TokenizerError: if a coord token is missing, or another token is listed (the wildcard, say).
    """
    coords = set(coord_vocab(tokenizer).coord_ids)
    if missing := sorted(coords - set(ids)):
        raise TokenizerError(
            f"coord_offset.ids lack {len(missing)} coord tokens of the tokenizer, first id {missing[0]}"
        )
    start, _, end = STRUCTURE_TOKENS["spec"]
    for extra in sorted(set(ids) - coords):
        token = tokenizer.convert_ids_to_tokens(extra)
        if token not in (start, end):
            raise TokenizerError(f"coord_offset.ids hold {extra}, which is {token!r}; expected coord tokens only")


def _check_form(coord_ids: object) -> None:
    """Refuse what ``int()`` would take for an id: 5.7, True, "641"."""
    if isinstance(coord_ids, Mapping):
        if set(coord_ids) != {"start", "end"}:
            raise TokenizerError(f"coord_offset.ids: got the keys {list(coord_ids)}, expected start and end")
        items = [coord_ids["start"], coord_ids["end"]]
    elif isinstance(coord_ids, Sequence) and not isinstance(coord_ids, str | bytes):
        items = [] if isinstance(coord_ids, range) else list(coord_ids)
    else:
        raise TokenizerError(
            f"coord_offset.ids: got {coord_ids!r}, expected a range, a list of ids, or a mapping of start and end"
        )
    for item in items:
        if isinstance(item, bool) or not isinstance(item, int | np.integer):
            raise TokenizerError(f"coord_offset.ids: got {item!r}, expected an integer")
    if isinstance(coord_ids, Mapping) and items[0] > items[1]:
        raise TokenizerError(f"coord_offset.ids: start {items[0]} is above end {items[1]}")

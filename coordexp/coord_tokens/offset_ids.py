"""Which ids a coord-offset adapter may list."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from coordexp.coord_tokens.codec import CoordIds, as_id_list
from coordexp.coord_tokens.vocab import STRUCTURE_TOKENS, coord_vocab
from coordexp.errors import TokenizerError

DEFAULT_COORD_IDS = range(151_670, 152_670)


def checked_ids(coord_ids: CoordIds, *, num_rows: int) -> list[int]:
    """Expand the ids and check that the embedding table holds them.

    Raises:
        TokenizerError: if the ids are malformed or reach beyond ``num_rows``.
    """
    try:
        ids = as_id_list(coord_ids)
    except ValueError as error:
        raise TokenizerError(f"coord_offset.ids: {error}") from None
    if max(ids) >= num_rows:
        raise TokenizerError(
            f"coord_offset.ids reach {max(ids)} but the model has {num_rows} rows (ids 0..{num_rows - 1}); "
            "expand the vocabulary first, or give this tokenizer's ids"
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

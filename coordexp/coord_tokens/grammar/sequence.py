"""The target sequence: what it is made of, how it is written, how long it is.

An object is ``opening description [box marker] x1 y1 x2 y2 closing``, a target its objects and the end token. Which
tokens these are, a :class:`coordexp.coord_tokens.vocab.CoordVocab` says. This file writes and measures targets;
``parse`` and ``layout`` find their parts again, ``constrain`` lets a model write nothing else. All of them follow
``vocab.before_box``, the ids between a description and its coordinates, and ``NUM_COORDS``, how many these are.

Shapes: M objects.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from coordexp.coord_tokens.bins import NUM_COORDS, quantise_boxes
from coordexp.coord_tokens.vocab import STRUCTURE_TOKENS, CoordVocab, Structure
from coordexp.errors import DataError

EncodeText = Callable[[str], tuple[int, ...]]


@dataclass(frozen=True)
class Target:
    """A target sequence, whole or cut.

    Attributes:
        ids: token ids, ending in the end token unless they are cut.
        coord_positions: ``[M, 4]`` int64, where in ``ids`` the coordinates of each complete object are.
    """

    ids: list[int]
    coord_positions: NDArray[np.int64]


def encode_target(
    descs: Sequence[str],
    boxes_norm_xyxy: NDArray[np.float64],
    vocab: CoordVocab,
    encode_text: EncodeText,
    *,
    room: int | None = None,
) -> Target:
    """Write objects as ids.

    A box thinner than a bin is written one bin wide: a box of no area could not be matched with its own truth.

    Args:
        descs: ``M`` descriptions.
        boxes_norm_xyxy: ``[M, 4]`` their boxes.
        vocab: ids of markers and coord tokens.
        encode_text: see :func:`text_encoder`.
        room: tokens at most; what does not fit is cut from the end. None for no limit.
    """
    bins = quantise_boxes(boxes_norm_xyxy) + vocab.coord_ids.start
    ids: list[int] = []
    first_coords: list[int] = []
    for desc, coords in zip(descs, bins.tolist(), strict=True):
        ids += (vocab.obj_start_id, *encode_text(desc), *vocab.before_box)
        first_coords.append(len(ids))
        ids += (*coords, vocab.obj_end_id)
    ids.append(vocab.end_id)
    positions = np.array(first_coords, np.int64)[:, None] + np.arange(NUM_COORDS)
    if room is not None:
        ids = ids[: max(0, room)]
        positions = positions[positions[:, -1] + 1 < len(ids)]
    return Target(ids, positions)


def target_length(desc_lengths: Iterable[int], structure: Structure) -> int:
    """Return the tokens of a target whose descriptions have these numbers of tokens."""
    num_markers = sum(token is not None for token in STRUCTURE_TOKENS[structure])
    return sum(length + num_markers + NUM_COORDS for length in desc_lengths) + 1


def text_encoder(tokenizer: PreTrainedTokenizerBase) -> EncodeText:
    """Return a cached text -> ids function that refuses text holding a special token.

    A description that spells ``<|box_end|>`` would otherwise close its own object.
    """
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)

    @lru_cache(maxsize=65_536)
    def encode_text(text: str) -> tuple[int, ...]:
        ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        if not ids:
            raise DataError(f"description {text!r} has no tokens; expected some text")
        clash = special.intersection(ids)
        if clash:
            token = tokenizer.convert_ids_to_tokens(min(clash))
            raise DataError(f"description {text!r} contains the special token {token}; expected plain text")
        return ids

    return encode_text

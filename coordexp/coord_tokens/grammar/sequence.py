"""The target sequence: what it is made of, how it is written, how long it is.

An object is ``opening description [box marker] x1 y1 x2 y2 closing``, a target its objects and the end token. Which
tokens these are, a vocabulary of :mod:`coordexp.coord_tokens.vocab` says. This file writes and measures targets;
``parse`` and ``layout`` find their parts again, ``constrain`` lets a model write nothing else. All of them follow
``vocab.before_box``, the ids between a description and its coordinates, and ``vocab.numbers``, how these are written.

Shapes: M objects, C tokens of a box that carry its coordinates (4 coord tokens, or 12 digits).
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
    """A target sequence, whole or cut."""

    ids: list[int]  # ending in the end token unless they are cut
    coord_positions: NDArray[np.int64]  # [M, C], where in ids the coordinates of each complete object are
    cut_positions: NDArray[np.int64]  # [R], the same of an object that is cut within or behind its box


def encode_target(
    descs: Sequence[str],
    boxes_norm_xyxy: NDArray[np.float64],
    vocab: CoordVocab,
    encode_text: EncodeText,
    *,
    room: int | None = None,
) -> Target:
    """Write objects, ``M`` descriptions and ``[M, 4]`` boxes, as ids; what is beyond ``room`` tokens is cut.

    A box thinner than a bin is written one bin wide: a box of no area could not be matched with its own truth.
    """
    numbers = vocab.numbers
    boxes_ML = numbers.write(quantise_boxes(boxes_norm_xyxy))
    ids: list[int] = []
    box_starts: list[int] = []
    for desc, box in zip(descs, boxes_ML.tolist(), strict=True):
        ids += (vocab.obj_start_id, *encode_text(desc), *vocab.before_box)
        box_starts.append(len(ids))
        ids += (*box, vocab.obj_end_id)
    ids.append(vocab.end_id)
    positions = np.array(box_starts, np.int64)[:, None] + numbers.offsets
    cut = np.zeros(0, np.int64)
    if room is not None:
        ids = ids[: max(0, room)]
        complete = positions[:, -1] + 1 < len(ids)
        cut = positions[~complete]
        positions, cut = positions[complete], cut[cut < len(ids)]
    return Target(ids, positions, cut)


def target_length(desc_lengths: Iterable[int], structure: Structure, *, num_box_tokens: int = NUM_COORDS) -> int:
    """Return the tokens of a target whose descriptions have these numbers of tokens, and whose boxes have so many."""
    num_more = _num_beside_desc(structure, num_box_tokens)
    return sum(length + num_more for length in desc_lengths) + 1


def num_whole_objects(
    desc_lengths: Sequence[int], structure: Structure, *, num_box_tokens: int = NUM_COORDS, room: int
) -> int:
    """Return how many objects of a target, from its first one on, are whole within ``room`` tokens."""
    ends = np.cumsum(np.asarray(desc_lengths, np.int64) + _num_beside_desc(structure, num_box_tokens))
    return int(np.searchsorted(ends, room, side="right"))


def _num_beside_desc(structure: Structure, num_box_tokens: int) -> int:
    """Return the tokens of an object beside its description: the markers and the box."""
    return num_box_tokens + sum(token is not None for token in STRUCTURE_TOKENS[structure])


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

"""The target sequence: what it is made of, how it is written, how long it is.

An object is ``opening description [box marker] x1 y1 x2 y2 closing``. A target is a row of objects and the end token. A
:class:`~coordexp.coord_tokens.vocab.CoordVocab` says which tokens these are: ``vocab.before_box`` are the ids between a
description and its coordinates, ``vocab.numbers`` says how coordinates are written.

This file writes and measures targets. :mod:`~coordexp.coord_tokens.layout` finds the parts of a written target,
``parse`` those of a generated answer, and ``constrain`` lets a model write nothing else.

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

    ids: list[int]  # they end in the end token unless the target is cut
    coord_positions: NDArray[np.int64]  # [M, C], positions in ids of the coordinates of each complete object
    cut_positions: NDArray[np.int64]  # [R], positions of coordinates whose object was cut within or behind its box


def encode_target(
    descs: Sequence[str],
    boxes_norm_xyxy: NDArray[np.float64],
    vocab: CoordVocab,
    encode_text: EncodeText,
    *,
    room: int | None = None,
) -> Target:
    """Write objects as ids.

    A box thinner than a bin is written one bin wide: a box without area could not be matched with its own truth.

    Args:
        descs: M descriptions.
        boxes_norm_xyxy: ``[M, 4]`` boxes as fractions of the image.
        vocab: the tokens to write.
        encode_text: from :func:`text_encoder`.
        room: tokens beyond these are cut off; None for no limit.
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

    positions_MC = np.array(box_starts, np.int64)[:, None] + numbers.number_positions
    if room is None:
        return Target(ids, positions_MC, cut_positions=np.zeros(0, np.int64))
    ids = ids[: max(0, room)]
    is_complete_M = positions_MC[:, -1] + 1 < len(ids)  # the closing token is there as well
    cut_positions_R = positions_MC[~is_complete_M].flatten()
    return Target(ids, positions_MC[is_complete_M], cut_positions_R[cut_positions_R < len(ids)])


def target_length(desc_lengths: Iterable[int], structure: Structure, *, num_box_tokens: int = NUM_COORDS) -> int:
    """Return the length of a target in tokens, the end token included.

    Args:
        desc_lengths: tokens of each description.
        structure: which markers surround an object.
        num_box_tokens: tokens of a box.
    """
    num_beside_desc = _num_beside_desc(structure, num_box_tokens)
    return sum(desc_length + num_beside_desc for desc_length in desc_lengths) + 1


def num_whole_objects(
    desc_lengths: Sequence[int], structure: Structure, *, num_box_tokens: int = NUM_COORDS, room: int
) -> int:
    """Return how many objects, from the first on, are whole within the first ``room`` tokens of a target.

    Args:
        desc_lengths: tokens of each description.
        structure: which markers surround an object.
        num_box_tokens: tokens of a box.
        room: tokens that are kept.
    """
    ends = np.cumsum(np.asarray(desc_lengths, np.int64) + _num_beside_desc(structure, num_box_tokens))
    return int(np.searchsorted(ends, room, side="right"))


def _num_beside_desc(structure: Structure, num_box_tokens: int) -> int:
    """Return the number of tokens of an object that are not its description: markers and box."""
    return num_box_tokens + sum(token is not None for token in STRUCTURE_TOKENS[structure])


def text_encoder(tokenizer: PreTrainedTokenizerBase) -> EncodeText:
    """Return a cached function from text to ids.

    It raises a DataError for text without tokens, and for text that holds a special token: a description with
    ``<|box_end|>`` in it would close its own object.
    """
    special_ids = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)

    @lru_cache(maxsize=65_536)
    def encode_text(text: str) -> tuple[int, ...]:
        ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        if not ids:
            raise DataError(f"description {text!r} has no tokens; expected some text")
        special_in_text = special_ids.intersection(ids)
        if special_in_text:
            token = tokenizer.convert_ids_to_tokens(min(special_in_text))
            raise DataError(f"description {text!r} contains the special token {token}; expected plain text")
        return ids

    return encode_text

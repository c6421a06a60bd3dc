"""Sample -> target sequence: order the objects, cap them, write them as token ids."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from coordexp.coord_tokens.codec import encode
from coordexp.coord_tokens.vocab import CoordVocab
from coordexp.data.sample import DetectionObject
from coordexp.errors import DataError

Ordering = Literal["top_left", "random"]
EncodeText = Callable[[str], tuple[int, ...]]


@dataclass(frozen=True)
class Target:
    """A target sequence.

    Attributes:
        ids: token ids, ending in the end token.
        boxes_norm_xyxy: ground-truth box of each object, in sequence order, not quantised.
    """

    ids: list[int]
    boxes_norm_xyxy: list[tuple[float, float, float, float]]


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


def order_objects(
    objects: Sequence[DetectionObject], *, ordering: Ordering = "top_left", seed: Sequence[int] = (0,)
) -> list[DetectionObject]:
    """Order objects: y1, then x1, then the original index; or a seeded shuffle (DESIGN 3.9)."""
    if ordering == "random":
        order = np.random.default_rng(list(seed)).permutation(len(objects))
        return [objects[i] for i in order]
    return sorted(objects, key=lambda item: (item.box_norm_xyxy[1], item.box_norm_xyxy[0]))


def cap_objects(objects: Sequence[DetectionObject], max_objects: int) -> list[DetectionObject]:
    """Keep the ``max_objects`` largest boxes (earlier first among equals), in their given order."""
    if len(objects) <= max_objects:
        return list(objects)
    keep = sorted(range(len(objects)), key=lambda i: -_area(objects[i]))[:max_objects]
    return [objects[i] for i in sorted(keep)]


def encode_target(objects: Sequence[DetectionObject], vocab: CoordVocab, encode_text: EncodeText) -> Target:
    """Write ordered objects as ids: opening token, description, [box marker], 4 coords, closing token."""
    first_coord = vocab.coord_ids.start
    ids: list[int] = []
    for item in objects:
        x1, y1, x2, y2 = encode(item.box_norm_xyxy).tolist()
        ids.append(vocab.obj_start_id)
        ids.extend(encode_text(item.desc))
        if vocab.box_start_id is not None:
            ids.append(vocab.box_start_id)
        ids.extend((first_coord + x1, first_coord + y1, first_coord + x2, first_coord + y2))
        ids.append(vocab.obj_end_id)
    ids.append(vocab.end_id)
    return Target(ids=ids, boxes_norm_xyxy=[item.box_norm_xyxy for item in objects])


def _area(item: DetectionObject) -> float:
    x1, y1, x2, y2 = item.box_norm_xyxy
    return (x2 - x1) * (y2 - y1)

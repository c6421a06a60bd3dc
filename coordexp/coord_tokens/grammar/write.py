"""Sample -> target sequence: order the objects, cap them, write them as token ids."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from coordexp.coord_tokens.bins import quantise_boxes
from coordexp.coord_tokens.vocab import CoordVocab
from coordexp.data.objects import Ordering, cap_objects, order_objects
from coordexp.data.sample import DetectionObject
from coordexp.errors import DataError

__all__ = ["EncodeText", "Ordering", "Target", "cap_objects", "encode_target", "order_objects", "text_encoder"]

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


def encode_target(objects: Sequence[DetectionObject], vocab: CoordVocab, encode_text: EncodeText) -> Target:
    """Write ordered objects as ids: opening token, description, [box marker], 4 coords, closing token.

    A box thinner than a bin is written one bin wide: a box of no area could not be matched with its own truth.
    """
    first_coord = vocab.coord_ids.start
    bins = quantise_boxes([item.box_norm_xyxy for item in objects]).tolist()
    ids: list[int] = []
    for item, (x1, y1, x2, y2) in zip(objects, bins, strict=True):
        ids.append(vocab.obj_start_id)
        ids.extend(encode_text(item.desc))
        if vocab.box_start_id is not None:
            ids.append(vocab.box_start_id)
        ids.extend((first_coord + x1, first_coord + y1, first_coord + x2, first_coord + y2))
        ids.append(vocab.obj_end_id)
    ids.append(vocab.end_id)
    return Target(ids=ids, boxes_norm_xyxy=[item.box_norm_xyxy for item in objects])

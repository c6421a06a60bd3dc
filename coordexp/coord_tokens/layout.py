"""Find the coordinates, descriptions and objects of a target that is already written.

Shapes: T tokens, M complete objects, P description tokens, C tokens of a box that carry its coordinates: 4 coord
tokens, or in the text arm 12 digits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from coordexp.coord_tokens.vocab import CoordVocab


@dataclass(frozen=True)
class SequenceLayout:
    """Positions in a target sequence, in sequence order.

    Only complete objects are numbered. To object ``i`` belong row ``i`` of ``coord_positions`` and of ``object_spans``,
    and the entries ``desc_positions[desc_object == i]``.

    Attributes:
        coord_positions: ``[M, C]`` int64, the positions of x1, y1, x2, y2 of each complete object.
        desc_positions: ``[P]`` int64, the positions of all description tokens, those of an object cut short included.
        desc_object: ``[P]`` int64, the object of each description token; -1 if the object was cut short.
        object_spans: ``[M, 2]`` int64, half-open ``[start, end)`` from the opening token to one past the closing token.
    """

    coord_positions: Tensor
    desc_positions: Tensor
    desc_object: Tensor
    object_spans: Tensor


def parse_targets(ids_T: Tensor, vocab: CoordVocab) -> SequenceLayout:
    """Find the objects of a target sequence.

    An object is complete if its closing token follows four coordinates (after the box marker under ``native``), and no
    other marker is between its opening token and the coordinates. An object that is not complete, for instance one cut
    by the length limit, gives no box.

    Everything is found from the closing tokens backwards, without a loop over tokens::

        OBJ_START  text text  BOX_START  x1 y1 x2 y2  OBJ_END
                          ^   <------- box_length --->   ^
                          last token of the description  end_M

    Args:
        ids_T: ``[T]`` token ids; other tokens (prompt, padding, -100) may surround the objects.
        vocab: the ids of markers and numbers.

    Returns:
        The layout, on the device of ``ids_T``. Its shapes depend on the ids, so parse on the CPU: on an accelerator the
        host would wait for them.

    Raises:
        ValueError: if ``ids_T`` is not 1-D.

    Source: the specification, "Coordinate positions".
    """
    if ids_T.ndim != 1:
        raise ValueError(f"parse_targets takes one sequence [T], got shape {tuple(ids_T.shape)}")
    position_T = torch.arange(ids_T.shape[0], device=ids_T.device)
    numbers = vocab.numbers
    is_number_T = (ids_T >= numbers.ids.start) & (ids_T < numbers.ids.stop)
    opens_T = ids_T == vocab.obj_start_id
    closes_T = ids_T == vocab.obj_end_id
    ends_desc_T = closes_T | (ids_T == vocab.end_id) | (ids_T < 0)
    if not numbers.are_text:  # a digit may be part of a description, a coord token may not
        ends_desc_T |= is_number_T
    for marker in vocab.before_box:
        ends_desc_T |= ids_T == marker

    # A token belongs to a description if an object was opened before it, and nothing has ended the description since.
    last_open_T = _last_position(opens_T, position_T)
    in_desc_T = (last_open_T > _last_position(ends_desc_T, position_T)) & ~opens_T

    # Closing tokens of complete objects: before each are a description, the markers and a whole box.
    end_M = closes_T.nonzero().squeeze(1)
    end_M = end_M[end_M > vocab.box_length]
    if len(end_M):
        box_ML = end_M.unsqueeze(1) + torch.arange(-numbers.num_box_tokens, 0, device=ids_T.device)
        pattern_L = torch.tensor(numbers.pattern, device=ids_T.device)
        is_complete_M = (is_number_T[box_ML] == pattern_L).all(dim=1)
        if numbers.separator_id is not None:
            is_complete_M &= (ids_T[box_ML][:, ~pattern_L] == numbers.separator_id).all(dim=1)
        is_complete_M &= in_desc_T[end_M - vocab.box_length - 1]
        for place, marker in enumerate(vocab.before_box):
            is_complete_M &= ids_T[end_M - vocab.box_length + place] == marker
        end_M = end_M[is_complete_M]

    start_M = last_open_T[end_M - vocab.box_length - 1] if len(end_M) else end_M
    from_end_C = torch.from_numpy(numbers.number_positions).to(ids_T.device) - numbers.num_box_tokens
    return SequenceLayout(
        coord_positions=end_M.unsqueeze(1) + from_end_C,
        desc_positions=position_T[in_desc_T],
        desc_object=_object_of(last_open_T[in_desc_T], start_M),
        object_spans=torch.stack([start_M, end_M + 1], dim=1),
    )


def _last_position(mark_T: Tensor, position_T: Tensor) -> Tensor:
    """Return for each position the latest marked position up to it; -1 if there is none."""
    if len(mark_T) == 0:
        return position_T
    return torch.where(mark_T, position_T, -1).cummax(dim=0).values


def _object_of(open_P: Tensor, start_M: Tensor) -> Tensor:
    """Return the index of the complete object that starts at each position; -1 if none does."""
    if len(start_M) == 0:
        return torch.full_like(open_P, -1)
    index_P = torch.searchsorted(start_M, open_P).clamp(max=len(start_M) - 1)
    return torch.where(start_M[index_P] == open_P, index_P, -1)

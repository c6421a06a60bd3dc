"""Coordinates <-> bins <-> coord tokens, for tensors.

A coordinate ``c`` in [0, 1] (a fraction of the image width or height) is bin ``round(c * 1000)``, clamped to 0..999.
Bin ``k`` decodes to ``k / 1000``. Both directions have one divisor: decoding with ``k / 999`` would move every box.
The number 1000, and everything that needs no torch, is in :mod:`coordexp.coord_tokens.bins` and is public here too.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from coordexp.coord_tokens.bins import (
    NUM_BINS,
    encode_array,
    int_to_token,
    ints_to_tokens,
    is_coord_token,
    token_to_int,
    tokens_to_ints,
)

__all__ = [
    "DEFAULT_COORD_IDS",
    "NUM_BINS",
    "CoordIds",
    "as_id_list",
    "coord_mask",
    "decode",
    "encode",
    "int_to_token",
    "ints_to_tokens",
    "is_coord_token",
    "token_to_int",
    "tokens_to_ints",
]

CoordIds = range | Mapping[str, int] | Sequence[int]

DEFAULT_COORD_IDS = range(151_670, 152_670)  # of Qwen3-VL; 151669 is the wildcard <|coord_*|>


def encode(values: Tensor | ArrayLike) -> Tensor:
    """Quantise coordinates: ``round(c * 1000)`` clamped to 0..999.

    Args:
        values: coordinates as fractions of the image side, any shape: a tensor, array, list or number. They are rounded
            in float64, halves to even, whatever the input type. Finite values outside [0, 1] are clamped to the
            nearest bin; readers check ranges before they call this.

    Returns:
        int64 tensor of the same shape, on the device of ``values``.

    Raises:
        ValueError: if a value is not finite.

    Source: the specification, "Coordinate Tokens".
    """
    if isinstance(values, Tensor):
        return torch.as_tensor(encode_array(values.detach().to("cpu", torch.float64).numpy()), device=values.device)
    return torch.as_tensor(encode_array(values))


def decode(bins: Tensor | ArrayLike) -> Tensor:
    """Return ``k / 1000`` for each bin, in float64.

    Args:
        bins: integers in 0..999, any shape; or floats (expected bins) in [0, 999].

    Returns:
        float64 tensor of the same shape, in [0, 0.999].

    Raises:
        ValueError: if a bin is outside 0..999.
    """
    tensor = bins if isinstance(bins, Tensor) else torch.as_tensor(np.asarray(bins, np.float64))
    bins_f64 = tensor.to(torch.float64)
    is_inside = (bins_f64 >= 0) & (bins_f64 <= NUM_BINS - 1)
    if not bool(is_inside.all()):
        first_outside = bins_f64[~is_inside].flatten()[0].item()
        raise ValueError(f"bin {first_outside} is outside 0..{NUM_BINS - 1}")
    return bins_f64 / NUM_BINS


def as_id_list(coord_ids: CoordIds) -> list[int]:
    """Expand coord ids to a list.

    Args:
        coord_ids: a range, ``{"start": a, "end": b}`` (both included), or a list.

    Raises:
        ValueError: if they are in no such form, empty, negative or repeated.
    """
    value = cast("object", coord_ids)  # it may come from a configuration, so its type is checked
    if isinstance(value, Mapping):
        if set(value) != {"start", "end"}:
            raise ValueError(f"coord ids: got the keys {list(value)}, expected start and end")
        items = [value["start"], value["end"]]
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        items = list(value)
    else:
        raise ValueError(f"coord ids: got {value!r}, expected a range, a list of ids, or a mapping of start and end")
    ids: list[int] = []
    for item in items:
        if isinstance(item, bool) or not isinstance(item, int | np.integer):
            raise ValueError(f"coord ids: got {item!r}, expected an integer")
        ids.append(int(item))
    if isinstance(value, Mapping):
        start, end = ids
        if start > end:
            raise ValueError(f"coord ids: start {start} is above end {end}")
        ids = list(range(start, end + 1))
    if not ids:
        raise ValueError("coord ids are empty; expected at least one token id")
    if min(ids) < 0 or len(set(ids)) != len(ids):
        raise ValueError("coord ids must be distinct and not negative")
    return ids


def coord_mask(ids: Tensor, coord_ids: CoordIds) -> Tensor:
    """Mark the coord tokens among token ids.

    Args:
        ids: token ids or labels, any shape; -100 is never marked.
        coord_ids: ids of the coord tokens: a range, ``{"start": a, "end": b}`` or a list.

    Returns:
        bool tensor of the shape of ``ids``.
    """
    id_list = as_id_list(coord_ids)
    start = min(id_list)
    end = max(id_list)
    if end - start + 1 == len(id_list):  # ids are distinct, so they are contiguous
        return (ids >= start) & (ids <= end)
    return torch.isin(ids, torch.tensor(id_list, dtype=ids.dtype, device=ids.device))

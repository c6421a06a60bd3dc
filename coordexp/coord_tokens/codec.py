"""Coordinates <-> bins <-> coord tokens, for tensors.

A coordinate ``c`` in [0, 1] (a fraction of the image width or height) is bin ``round(c * 1000)``,
clamped to 0..999; bin ``k`` decodes to ``k / 1000``. Both directions share the divisor: decoding
with ``k / 999`` would move every box. The number itself, and all that needs no torch,
is in :mod:`coordexp.coord_tokens.bins`, and is public here as well.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from coordexp.coord_tokens.bins import (
    CODEC_VERSION,
    NUM_BINS,
    int_to_token,
    ints_to_tokens,
    is_coord_token,
    quantise_boxes,
    token_to_int,
    tokens_to_ints,
)

__all__ = [
    "CODEC_VERSION",
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
    "quantise_boxes",
    "token_to_int",
    "tokens_to_ints",
]

CoordIds = range | Mapping[str, int] | Sequence[int]

DEFAULT_COORD_IDS = range(151_670, 152_670)  # of Qwen3-VL; 151669 is the wildcard <|coord_*|>


def encode(values: Tensor | ArrayLike) -> Tensor:
    """Quantise coordinates: ``round(c * 1000)`` clamped to 0..999.

    Args:
        values: coordinates as fractions of the image side, any shape; a tensor, array, list or
            number. Rounded in float64, halves to even, whatever the input type. Finite values
            outside [0, 1] clamp to the nearest bin; readers check ranges before they call this.

    Returns:
        int64 tensor of the same shape, on the device of ``values``.

    Raises:
        ValueError: if a value is not finite.

    Source: the specification, "Coordinate Tokens".
    """
    values_f64 = _as_float64(values)
    if not bool(values_f64.isfinite().all()):
        raise ValueError("coordinates must be finite numbers, got NaN or infinity")
    return (values_f64 * NUM_BINS).round().clamp(0, NUM_BINS - 1).to(torch.int64)


def decode(bins: Tensor | ArrayLike) -> Tensor:
    """Return ``k / 1000`` for each bin, in float64.

    Args:
        bins: integers in 0..999, any shape; or floats (expected bins) in [0, 999].

    Returns:
        float64 tensor of the same shape, in [0, 0.999].

    Raises:
        ValueError: if a bin is outside 0..999.
    """
    bins_f64 = _as_float64(bins)
    inside = (bins_f64 >= 0) & (bins_f64 <= NUM_BINS - 1)
    if not bool(inside.all()):
        bad = bins_f64[~inside].flatten()[0].item()
        raise ValueError(f"bin {bad} is outside 0..{NUM_BINS - 1}")
    return bins_f64 / NUM_BINS


def as_id_list(coord_ids: CoordIds) -> list[int]:
    """Expand coord ids given as a range, ``{"start": a, "end": b}`` (both included) or a list.

    Raises:
        ValueError: if the ids are empty, negative, repeated, or the mapping has other keys.
    """
    if isinstance(coord_ids, Mapping):
        if set(coord_ids) != {"start", "end"}:
            raise ValueError(f"coord ids as a mapping need the keys start and end, got {sorted(coord_ids)}")
        ids = list(range(coord_ids["start"], coord_ids["end"] + 1))
    else:
        ids = [int(i) for i in coord_ids]
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
    start, end = min(id_list), max(id_list)
    if end - start + 1 == len(id_list):
        return (ids >= start) & (ids <= end)
    return torch.isin(ids, torch.tensor(id_list, dtype=ids.dtype, device=ids.device))


def _as_float64(values: Tensor | ArrayLike) -> Tensor:
    if isinstance(values, Tensor):
        return values.to(torch.float64)
    return torch.from_numpy(np.asarray(values, dtype=np.float64))

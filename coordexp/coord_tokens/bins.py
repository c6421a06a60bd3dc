"""Bins and coord tokens without torch, for readers of data and their worker processes. The number 1000 is defined here.

:mod:`coordexp.coord_tokens.codec` says what a bin is, and does the same for tensors.

Shapes: M boxes.
"""

# Tokens and bins come out of JSON, so their types are checked although they are annotated.
# pyright: reportUnnecessaryIsInstance=false

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

NUM_BINS = 1000
NUM_COORDS = 4  # of a box: x1, y1, x2, y2
# Raise it when the same coordinates become other bins. Prepared data names the version that made it.
CODEC_VERSION = 1

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_COORD_TOKEN = re.compile(r"<\|coord_(0|[1-9][0-9]{0,2})\|>")


def is_coord_token(text: str) -> bool:
    """Return whether ``text`` is exactly one of ``<|coord_0|>`` .. ``<|coord_999|>``, without leading zeros."""
    return isinstance(text, str) and _COORD_TOKEN.fullmatch(text) is not None


def token_to_int(token: str) -> int:
    """Return the bin ``k`` of ``<|coord_k|>``.

    Raises:
        ValueError: if ``token`` is not a coord token.
    """
    match = _COORD_TOKEN.fullmatch(token) if isinstance(token, str) else None
    if match is None:
        raise ValueError(f"not a coord token: {token!r}; expected '<|coord_0|>' .. '<|coord_999|>'")
    return int(match.group(1))


def int_to_token(k: int) -> str:
    """Return ``<|coord_k|>``.

    Raises:
        ValueError: if ``k`` is not an integer in 0..999.
    """
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 0 <= k < NUM_BINS:
        raise ValueError(f"not a coord bin: {k!r}; expected an integer in 0..{NUM_BINS - 1}")
    return f"<|coord_{int(k)}|>"


def tokens_to_ints(tokens: Iterable[str]) -> list[int]:
    """Return the bin of each token; a ValueError names the first bad item and its index."""
    return _each(token_to_int, tokens)


def ints_to_tokens(ks: Iterable[int]) -> list[str]:
    """Return the token of each bin; a ValueError names the first bad item and its index."""
    return _each(int_to_token, ks)


def encode_array(values: ArrayLike) -> NDArray[np.int64]:
    """Quantise fractions of the image side, any shape, as :func:`coordexp.coord_tokens.codec.encode` does.

    Raises:
        ValueError: if a value is not finite.
    """
    values_f64 = np.asarray(values, dtype=np.float64)
    if not np.isfinite(values_f64).all():
        raise ValueError("coordinates must be finite numbers, got NaN or infinity")
    return np.rint(values_f64 * NUM_BINS).clip(0, NUM_BINS - 1).astype(np.int64)


def decode_array(bins: ArrayLike) -> NDArray[np.float64]:
    """Return ``k / 1000`` for each bin, any shape, as :func:`coordexp.coord_tokens.codec.decode` does.

    Raises:
        ValueError: if a bin is outside 0..999.
    """
    bins_f64 = np.asarray(bins, dtype=np.float64)
    is_inside = (bins_f64 >= 0) & (bins_f64 <= NUM_BINS - 1)
    if not is_inside.all():
        raise ValueError(f"bin {bins_f64[~is_inside].flat[0]} is outside 0..{NUM_BINS - 1}")
    return bins_f64 / NUM_BINS


def quantise_boxes(boxes_norm_xyxy: ArrayLike) -> NDArray[np.int64]:
    """Quantise boxes to bins with x1 < x2 and y1 < y2.

    A box without area overlaps with nothing, not even with itself. So a box whose edges fall into the same bin becomes
    one bin wide (or high). It grows towards its true centre, and inwards at the border of the image.

    Args:
        boxes_norm_xyxy: ``[M, 4]`` fractions of image width and height.

    Returns:
        ``[M, 4]`` bins.

    Raises:
        ValueError: if a corner is not finite, or corners are not in order.
    """
    boxes = np.asarray(boxes_norm_xyxy, dtype=np.float64).reshape(-1, 4)
    bins = encode_array(boxes)
    if (boxes[:, :2] > boxes[:, 2:]).any():
        raise ValueError("boxes must have x1 <= x2 and y1 <= y2")
    low_M2 = bins[:, :2]  # views: writing to them changes bins
    high_M2 = bins[:, 2:]
    is_thin_M2 = low_M2 == high_M2
    centre_M2 = (boxes[:, :2] + boxes[:, 2:]) * (NUM_BINS / 2)
    grows_up_M2 = is_thin_M2 & ((centre_M2 >= low_M2) | (low_M2 == 0)) & (low_M2 < NUM_BINS - 1)
    grows_down_M2 = is_thin_M2 & ~grows_up_M2
    high_M2[grows_up_M2] += 1
    low_M2[grows_down_M2] -= 1
    return bins


def are_thin(boxes_norm_xyxy: ArrayLike) -> NDArray[np.bool_]:
    """Return for each box, ``[M]``, whether :func:`quantise_boxes` has to widen it."""
    bins = encode_array(np.asarray(boxes_norm_xyxy, dtype=np.float64).reshape(-1, 4))
    return (bins[:, :2] == bins[:, 2:]).any(axis=1)


def _each(convert: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Convert each item; the error of a bad one begins with its index."""
    results: list[_Result] = []
    for index, item in enumerate(items):
        try:
            results.append(convert(item))
        except ValueError as error:
            raise ValueError(f"item {index}: {error}") from None
    return results

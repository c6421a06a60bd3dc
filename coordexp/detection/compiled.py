"""How the loops of this room are compiled."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call, and keep the machine code beside the source or in the user's cache.

    If neither place can be written (a read-only image, no home), each process compiles for itself.

    ``nogil`` lets Python threads share the work (:func:`coordexp.detection.precision.average_precision.precisions`).
    ``error_model="numpy"`` makes a division by 0 inf or NaN, as in the arrays around the loops, and costs no branch.
    """
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # numba raises it where it finds no place for a cache.
        return numba.njit(nogil=True, error_model="numpy")(function)
